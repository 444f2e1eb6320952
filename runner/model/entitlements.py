"""Which projects may use the app, as the platform answered."""

from dataclasses import dataclass
from uuid import UUID

from runner.model.platform import PlatformRecord


class Entitlement(PlatformRecord):
    project_id: UUID
    app_slug: str
    status: str


@dataclass(frozen=True)
class Entitlements:
    """The records of one read, or why there are none. runner/intent/placement_policy.py draws the conclusions."""

    listed: tuple[Entitlement, ...] = ()
    # The platform has no such call, and whether the settings say that it need not have one.
    missing: bool = False
    required: bool = True
    # It answered, and the answer cannot be used.
    unreadable: str | None = None
    # It did not answer, or the settings are wrong: nothing is concluded, and nothing begins.
    held: str | None = None
