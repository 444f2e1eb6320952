"""Ends the leases of a killed runner through the API, for tests that are not about waiting for them."""

from datetime import UTC, datetime, timedelta
from typing import Any

from runner.model.plan import stamp
from tests.platform_process import ApiClient


def holder(member: dict[str, Any]) -> str | None:
    """The runner that holds a member now. A killed runner stays in the record; its claim ends with its lease."""
    detail = member["adapter_detail"]
    by, until_when = detail.get("claimed_by"), detail.get("lease_expires_at")
    return by if by and datetime.fromisoformat(until_when) > datetime.now(UTC) else None


def end_leases(adapter: ApiClient, instance_path: str) -> None:
    """End the lease of every claim on an instance's operations and members; claimed_by stays in the records."""
    past = stamp(datetime.now(UTC) - timedelta(seconds=1))

    def read(what: str) -> list[dict[str, object]]:
        answer = adapter.get(f"{instance_path}/{what}")
        assert answer.status_code == 200, answer.text
        return list(answer.json()["items"])

    def write(what: str, change: dict[str, object]) -> None:
        answer = adapter.patch(f"{instance_path}/{what}", change)
        assert answer.status_code == 200, answer.text

    for kind in ("member-operations", "operations"):
        for one in read(kind):
            if one["status"] == "running":
                write(f"{kind}/{one['id']}", {"claimed_by": one["claimed_by"], "lease_expires_at": past})
    for member in read("members"):
        detail = member["adapter_detail"]
        if isinstance(detail, dict) and detail.get("claimed_by"):
            write(f"members/{member['id']}", {"adapter_detail": {**detail, "lease_expires_at": past}})
