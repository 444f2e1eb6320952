"""The platform's objects as we read them: tolerant of what it adds, strict about what we rely on."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from runner.model.instance_notes import StatusDetail
from runner.model.member_notes import MemberNotes
from runner.model.records import CorrelationId
from runner.model.trace import TraceParent

NotesT = TypeVar("NotesT", bound=MemberNotes)

# Sent back in a header as it came.
ETag = Annotated[str, StringConstraints(pattern=r"^[!-~]{1,256}$")]

# A field that only records of a shared runtime have; others are shown without it.
OfShared = Annotated[UUID | None, Field(exclude_if=lambda value: value is None)]

# The runner's status for an allocation for which the platform answers 404. The platform never sends it.
NOT_FOUND = "not_found"


class MemberStatus(StrEnum):
    REQUESTED = "requested"
    RECONCILING = "reconciling"
    READY = "ready"
    DRAINING = "draining"
    DELETING = "deleting"
    FAILED = "failed"
    DELETED = "deleted"


class OperationStatus(StrEnum):
    ACCEPTED = "accepted"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


# A member that has not come up yet, and one that serves. A draining member still serves.
UNFINISHED = (MemberStatus.REQUESTED, MemberStatus.RECONCILING)
IN_SERVICE = (MemberStatus.READY, MemberStatus.DRAINING)
# An operation that has not ended.
OPEN = (OperationStatus.ACCEPTED, OperationStatus.RUNNING)


class InstanceStatus(StrEnum):
    REQUESTED = "requested"
    DEPLOYING = "deploying"
    RUNNING = "running"
    FAILED = "failed"
    STOPPED = "stopped"
    DELETING = "deleting"
    DELETED = "deleted"


class Health(StrEnum):
    HEALTHY = "healthy"
    PROGRESSING = "progressing"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Unreadable:
    """A record that exists but cannot be used. Nothing may be concluded from its absence."""

    kind: str
    id: str | None
    problem: str
    # As the record has them, where they are text: whose it is, and whether it is over.
    app_slug: str | None = None
    status: str | None = None
    code: str = "record_unreadable"

    def __str__(self) -> str:
        return f"{self.kind.replace('_', ' ')} {self.id or 'without a usable id'} cannot be read ({self.problem})"


class PlatformRecord(BaseModel):
    """Unknown fields are ignored; statuses stay text, since the platform may add new ones."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: UUID
    etag: ETag | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None


class AppInstance(PlatformRecord):
    """An app instance of a project, or a shared runtime of a tenant."""

    org_id: UUID
    # None: a shared runtime, which has an owner instead. Who owns it pays for all but what others contributed.
    project_id: UUID | None = None
    owner_project_id: OfShared = None
    app_slug: str
    app_version: str | None = None
    name: str | None = None
    operating_mode: str | None = None
    control_plane_scope: str | None = None
    runtime_backend: str | None = None
    status: str
    health: str | None = None
    status_detail: dict[str, Any] | None = None
    placement_intent: dict[str, Any] | None = None
    config: dict[str, Any] | None = None
    access: dict[str, Any] | None = None
    access_credential_id: UUID | None = None
    # Read strictly by runner/intent/placement_policy.py, where it matters.
    effective_policy: Any = None
    correlation_id: CorrelationId
    traceparent: TraceParent = None

    @property
    def is_shared(self) -> bool:
        """Whether it is a shared runtime of a tenant."""
        return self.project_id is None

    @property
    def is_consumer(self) -> bool:
        """Whether it stands for its project's attachment to a shared runtime, and has that one's access bundle."""
        return self.control_plane_scope == "tenant" and not self.is_shared

    @property
    def notes(self) -> StatusDetail:
        """`status_detail`, typed."""
        return StatusDetail.read(self.status_detail or {})


class Member(PlatformRecord):
    app_instance_id: UUID
    component_key: str
    allocation_id: UUID | None = None
    status: str
    # Of a shared runtime's member that a project contributed: who pays for it, and what opens it.
    source_project_id: OfShared = None
    access_credential_id: OfShared = None
    # As the platform has it. Read it through `notes`, or through the notes of an app.
    adapter_detail: dict[str, Any] = Field(default_factory=dict)
    correlation_id: CorrelationId | None = None

    @property
    def notes(self) -> MemberNotes:
        """What any app keeps about a member."""
        return self.read_notes(MemberNotes)

    def read_notes(self, kind: type[NotesT]) -> NotesT:
        """adapter_detail, read once. A copy of the member keeps what was read, as long as it has the same detail."""
        detail, cached = self.__dict__.get("_notes", (None, {}))
        if detail is not self.adapter_detail:
            cached = {}
            self.__dict__["_notes"] = (self.adapter_detail, cached)
        if kind not in cached:
            cached[kind] = kind.read(self.adapter_detail)
        found: NotesT = cached[kind]
        return found

    def differs(self, changes: dict[str, Any]) -> bool:
        """Whether a write of these fields would change any of them."""
        return any(self.adapter_detail.get(key) != value for key, value in changes.items())

    def written(self, status: str, changes: dict[str, Any]) -> "Member":
        """The member once this is written to it."""
        return self.model_copy(update={"status": status, "adapter_detail": {**self.adapter_detail, **changes}})


class Operation(PlatformRecord):
    """A member operation or an instance operation: the same envelope."""

    app_instance_id: UUID | None = None
    operation: str
    component_key: str | None = None
    member_ids: list[UUID] = Field(default_factory=list)
    allocation_ids: list[UUID] = Field(default_factory=list)
    parameters: dict[str, Any] = Field(default_factory=dict)
    status: str
    claimed_by: str | None = None
    lease_expires_at: datetime | None = None
    attempt: int = 0
    error: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    correlation_id: CorrelationId
    traceparent: TraceParent = None
    requested_by: dict[str, Any] | None = None
    # Of an operation that a project requested on a shared runtime.
    source_project_id: OfShared = None
    # Which of the two lists it came from; the platform's own record has no such field.
    of_instance: bool = Field(default=False, exclude=True)

    @property
    def label(self) -> str:
        """What a person reads in a plan and in a reason."""
        return f"{self.operation} {str(self.id)[:8]}"


class Allocation(PlatformRecord):
    project_id: UUID | None = None
    status: str
    connection: dict[str, Any] | None = None
    sku: str | None = None
    region: str | None = None
    gpus: int | None = None
    name: str | None = None


class CatalogApp(BaseModel):
    """An app of the catalog."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    app_slug: str
    # The newest, and all that may be deployed, the newest last.
    version: str
    versions: list[str] = Field(default_factory=list)
    display_name: str = ""


class Caller(BaseModel):
    """Whose token it is, as the platform knows it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    # Both go into records and onto terminals.
    subject: Annotated[str, StringConstraints(pattern=r"^[!-~]{1,128}$")]
    actor_type: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")] = "unknown"


class Delivery(BaseModel):
    """A wrapped access credential: no secret in it, only the way to fetch it once."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    vault_addr: str
    # It is sent on in a header.
    wrapping_token: str = Field(repr=False, pattern=r"^[A-Za-z0-9._-]{1,1024}$")
    expires_at: datetime
    username: str | None = None


class Resolution(BaseModel):
    """The answer of package policy about an artifact. runner/intent/package_source.py reads the source strictly."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    decision: str
    rule: dict[str, Any] = Field(default_factory=dict)
    source: dict[str, Any] | None = None
