"""Attachments of projects to a shared runtime, as the API sends them. Pure, and the same for every app.

A record that cannot be read as a whole is `Unreadable`, as any other record. One identity that cannot be read does not
hide the others of its project: it is left out, and named. What `app_policy` says is the app's own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, ValidationError

from runner.model.host_data import printable
from runner.model.platform import PlatformRecord, Unreadable
from runner.model.records import CorrelationId

# A project with more members than this is not read: every identity costs an account on each host.
MOST_IDENTITIES = 2000
_PROBLEM_BYTES = 300

Subject = Annotated[str, Field(pattern=r"^[!-~]{1,200}$")]


class AttachmentStatus(StrEnum):
    REQUESTED = "requested"
    ACTIVE = "active"
    SUSPENDED = "suspended"
    DETACHING = "detaching"
    DETACHED = "detached"


class Identity(BaseModel):
    """A platform identity that belongs to the project. The app derives what is absent and checks what is given."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    subject: Subject
    username: str | None = Field(None, max_length=200)
    uid: StrictInt | None = Field(None, ge=0, lt=2**32)
    gid: StrictInt | None = Field(None, ge=0, lt=2**32)
    ssh_keys: list[str] = Field(default_factory=list, max_length=20)


@dataclass(frozen=True)
class UnreadableIdentity:
    """An identity that is left out; `subject` only if it can be read."""

    subject: str | None
    problem: str


class Attachment(PlatformRecord):
    """A project on a shared runtime. A status that is not known allows nothing."""

    project_id: UUID
    status: str
    may_contribute: StrictBool = False
    trusted_contributor: StrictBool = False
    app_policy: dict[str, Any] = Field(default_factory=dict)
    # Read them through `people`.
    identities: list[Any] = Field(default_factory=list, max_length=MOST_IDENTITIES)
    adapter_detail: dict[str, Any] = Field(default_factory=dict)
    correlation_id: CorrelationId | None = None

    @property
    def is_active(self) -> bool:
        return self.status == AttachmentStatus.ACTIVE

    @property
    def is_known(self) -> bool:
        """Whether this version knows the status."""
        return self.status in set(AttachmentStatus)

    def read_identities(self) -> tuple[list[Identity], list[UnreadableIdentity]]:
        """The identities by subject, each once, and those that cannot be read.

        Two entries of one subject that differ are both left out: which of them is meant is not known.
        """
        found: dict[str, Identity] = {}
        problems: list[UnreadableIdentity] = []
        doubled: set[str] = set()
        for given in self.identities:
            try:
                one = Identity.model_validate(given)
            except ValidationError as error:
                problems.append(UnreadableIdentity(_subject_of(given), _first(error)))
                continue
            if found.setdefault(one.subject, one) != one:
                doubled.add(one.subject)
        problems += [UnreadableIdentity(one, "it is listed twice, with different values") for one in sorted(doubled)]
        return [found[one] for one in sorted(found) if one not in doubled], problems


def read_attachment(given: object) -> Attachment | Unreadable:
    """The record, or why it cannot be used."""
    try:
        return Attachment.model_validate(given)
    except ValidationError as error:
        record = given if isinstance(given, Mapping) else {}
        known_id, status = record.get("id"), record.get("status")
        return Unreadable(
            "attachment",
            printable(known_id, _PROBLEM_BYTES) if isinstance(known_id, str) else None,
            _first(error),
            status=status if isinstance(status, str) else None,
        )


def _subject_of(given: object) -> str | None:
    subject = given.get("subject") if isinstance(given, Mapping) else None
    return printable(subject, _PROBLEM_BYTES) if isinstance(subject, str) else None


def _first(error: ValidationError) -> str:
    """The first problem, without the input."""
    problem = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(str(part) for part in problem["loc"])
    return printable(f"{where}: {problem['msg']}" if where else problem["msg"], _PROBLEM_BYTES)
