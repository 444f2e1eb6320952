"""Attachments for tests, as the platform sends them."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from runner.model.attachments import Attachment

ORG = UUID("0a000000-0000-4000-8000-000000000000")
A, B, C = (UUID(f"{letter * 8}-0000-4000-8000-000000000000") for letter in "abc")
TO_MAIN = {"submit": True, "partitions": ["main"]}


def attached(project: UUID, *subjects: str | dict[str, Any], **changes: Any) -> Attachment:
    """An active one. A subject may come with more fields."""
    made = {
        "id": project,
        "project_id": project,
        "status": "active",
        "app_policy": TO_MAIN,
        "identities": [{"subject": one} if isinstance(one, str) else one for one in subjects],
        "created_at": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=project.int % 1000),
    }
    return Attachment.model_validate({**made, **changes})


def person(subject: str, **fields: Any) -> dict[str, Any]:
    return {"subject": subject, **fields}
