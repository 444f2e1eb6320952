"""An attachment with what the adapter reports of it. Pure, and the same for every app."""

from typing import Any
from uuid import UUID

from runner.model.attachments import Attachment


class AttachedProject(Attachment):
    """A project on a shared runtime: what its tenant wants, and what the adapter wrote last."""

    app_instance_id: UUID | None = None
    health: str | None = None
    status_detail: dict[str, Any] | None = None
    access: dict[str, Any] | None = None
    detach_parameters: dict[str, Any] | None = None

    def differs(self, body: dict[str, Any]) -> bool:
        """Whether a write of these fields would change the record."""
        return any(getattr(self, name) != value for name, value in body.items())

    def written(self, body: dict[str, Any]) -> "AttachedProject":
        """The attachment once this is written to it."""
        return self.model_copy(update=body)
