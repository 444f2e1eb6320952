"""What the Slurm app keeps in a member's `adapter_detail`: its notes, and what was seen of the member. Pure.

First the notes (`Record`), then the classes that hold them with the fields beside them: `SlurmNotes` has what
controller and workers share, `ControllerNotes` and `WorkerNotes` the rest; `InstanceNotes` is for `status_detail` of
the instance. What any app keeps is in runner/model/member_notes.py and instance_notes.py. The fields that docs/ names
keep their name and place in storage.
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, AliasChoices, Field, StrictBool

from runner.intent.addresses import HOSTNAME
from runner.model.instance_notes import StatusDetail
from runner.model.member_notes import Leave, MemberNotes
from runner.model.platform import AppInstance, Member
from runner.model.records import (
    Attempts,
    Count,
    Deciding,
    Detail,
    Fact,
    Id,
    NotedError,
    Observation,
    Record,
    Text,
    note,
)
from runner.model.times import Time
from runner.slurm.components import CONTROLLER

# Addresses of jobs. Version 1.0 wrote ids.
Address = Annotated[
    str, Field(pattern=r"^[1-9][0-9]{0,9}(_[0-9]{1,9}|_\[([0-9,:-]{1,60}(\.\.\.)?|\?)\]|\+[0-9]{1,4})?$")
]
Jobs = Sequence[Count | Address]
# The error of a leave whose operation gave up at its deadline.
GAVE_UP = "drain_deadline"


def _is_hostname(name: str) -> str:
    if not HOSTNAME.fullmatch(name):
        raise ValueError("not a host name")
    return name


def _stored_as(stored: str, name: str) -> Any:
    """A field of `Attempts` that is stored under another name."""
    return Field(validation_alias=AliasChoices(stored, name), serialization_alias=stored)


class WorkerLeave(Leave):
    """`leave`: progress of one member's drain, resume or removal. A result ends it. FORMAT is in its base."""

    verb: Literal["drain", "resume", "remove", "decommission"]
    started_at: Time
    error: NotedError | None = None
    # Written before jobs are ended, so that a killed run leaves a trace.
    announced_eviction: Text | None = None
    unreachable_since: Time | None = None
    attempts: Attempts = Attempts()
    # Of a decommission: whether its host was never changed, and for which request the last attempt was made.
    untouched: StrictBool = False
    tried_for: Text | None = None

    @classmethod
    def upgrade(cls, stored: Detail) -> Detail:
        """Format 1 (version 1.0) has since, verdict, did, and a number in attempts."""
        renamed = {"since": "started_at", "did": "announced_eviction"}
        made = {renamed.get(key, key): value for key, value in super().upgrade(stored).items()}
        tried = made.pop("attempts", None)
        return made | ({"attempts": {"count": tried}} if tried is not None else {})

    def ended(self, result: Literal["done", "failed", "cancelled"], error: NotedError | None = None) -> "WorkerLeave":
        return self.but(result=result, error=error)

    @property
    def at_deadline(self) -> str | None:
        """What was done at the deadline, in the words of the operation's result."""
        return "gave up" if self.error and self.error.code == GAVE_UP else self.announced_eviction


# The outcome was `mended` in earlier versions.
RepairOutcome = Annotated[Text, AfterValidator(lambda found: "repaired" if found == "mended" else found)]


class Repair(Attempts):
    """`repair`: the attempts against drift, each written before its play. The reasons of health show it.

    docs/usage/health.md has the stored names `attempts` and `why`; `why` has the codes of the drift.
    """

    count: Annotated[Count, _stored_as("attempts", "count")] = 0
    last_error: Annotated[Text | None, _stored_as("why", "last_error")] = None
    outcome: RepairOutcome | None = None


class ConfigTrial(Attempts):
    """`change`: the configuration that is being put live; a run that was cut off leaves it here."""

    digest: Text
    count: Annotated[Count, _stored_as("attempt", "count")] = 0
    next_at: Annotated[Time | None, _stored_as("next_attempt_at", "next_at")] = None
    # What was on trial before may have gone live, and no run has reported it.
    unsure: StrictBool | None = None
    # It tells this trial from an earlier one of the same configuration.
    begun_at: Time | None = None


class RefusedConfig(Record):
    """`config_refused`: the configuration that was refused last, and why."""

    digest: Text
    code: Text
    message: Text
    at: Time | None = None


class RotationLeftOut(Record):
    """`rotation_left_out`: the rotation that continues without this worker, and why."""

    operation_id: Id
    code: Text


class Conversion(Record):
    """`conversion`: how far slurmdbd is with its database, as its host reports it."""

    since: Text | None = None
    seconds: Count | None = None
    idle_seconds: Count | None = None
    cpu_seconds: Count | None = None
    last_line: Text | None = None


class Versions(Observation):
    """`versions` of an instance: the app's, the controller's packages', and those that running daemons report."""

    app: Text | None = None
    package: Text | None = None
    slurmdbd: Text | None = None
    slurmctld: Text | None = None
    slurmd: list[Text] = Field(default_factory=list)


class InstanceNotes(StatusDetail):
    """`status_detail` of a cluster."""

    versions: Fact[Versions] = None
    workers: Fact[dict[str, Count]] = None  # how many, by status
    # Of a shared runtime: the digest of what was asked for its projects when it was carried out last.
    attachments_digest: Fact[Text] = None
    # Of a shared runtime: the projects whose partitions are part of `config_digest`.
    contributors: Fact[list[Id]] = None
    not_healthy_since: Fact[Time] = None  # of a running cluster that is degraded or unhealthy


class SlurmNotes(MemberNotes):
    FORMER: ClassVar = {"wish": "applied_config", "wish_refused": "config_refused", "people_version": "users_version"}

    leave: Annotated[WorkerLeave | None, note(WorkerLeave)] = None
    repair: Annotated[Repair | None, note(Repair)] = None
    rotation_left_out: Annotated[RotationLeftOut | None, note(RotationLeftOut)] = None
    role: Fact[Text] = None
    last_runtime_observed_at: Fact[Time] = None
    config_version: Fact[Text] = None
    slurm_version: Fact[Text] = None
    package_version: Fact[Text] = None
    munge_version: Fact[Text] = None
    munge_vulnerable: Fact[StrictBool] = None
    users_version: Fact[Text] = None
    homes_left: Fact[list[Text]] = None
    residue: Fact[list[Text]] = None
    host_left: Fact[Text] = None
    allocation_released_by: Fact[Text] = None

    @property
    def hostname(self) -> str | None:
        """The host's own name, if it was reported."""
        return None


class ControllerNotes(SlurmNotes):
    controller_hostname: Deciding[Text] = None
    # Of a shared cluster: what was last carried out for its projects, and what is being carried out.
    projects_version: Deciding[Text] = None
    projects_change: Annotated[ConfigTrial | None, note(ConfigTrial)] = None
    projects_checked_at: Fact[Time] = None
    # The digest of the configuration that the cluster was last seen to serve; none before its first deploy is over.
    applied_config: Deciding[Text] = None
    # Of a shared cluster: the projects whose partitions were seen live, also those without a worker now.
    contributors: Deciding[list[Id]] = None
    config_refused: Annotated[RefusedConfig | None, note(RefusedConfig)] = None
    change: Annotated[ConfigTrial | None, note(ConfigTrial)] = None
    cluster_name: Fact[Text] = None
    slurmctld_state: Fact[Text] = None
    slurmdbd_state: Fact[Text] = None
    mariadb_state: Fact[Text] = None
    munge_state: Fact[Text] = None
    munge_key_changed_at: Fact[Time] = None  # by the last rotation
    slurmdbd_version: Fact[Text] = None
    slurmctld_started_at: Fact[Time] = None
    projects_busy: Fact[list[Text]] = None
    projects_closed_by_hand: Fact[list[Text]] = None
    projects_foreign: Fact[list[Text]] = None
    projects_refused: Fact[list[Text]] = None
    projects_unresolved: Fact[list[Text]] = None
    services_left: Fact[list[Text]] = None
    conversion: Fact[Conversion] = None

    @property
    def hostname(self) -> str | None:
        return self.controller_hostname


class WorkerNotes(SlurmNotes):
    # The worker's node name in Slurm, as its host reported it.
    worker_hostname: Deciding[Annotated[Text, AfterValidator(_is_hostname)]] = None
    slurmd_state: Fact[Text] = None
    node_state: Fact[Text] = None
    drain_reason: Fact[Text] = None
    drain_held_by: Fact[Text] = None
    registered_in_controller: Fact[StrictBool] = None
    cpus: Fact[Count] = None
    memory_mb: Fact[Count] = None
    gpus: Fact[Count] = None
    jobs: Fact[Jobs] = None
    jobs_naming_node: Fact[Jobs] = None
    jobs_remaining: Fact[Count] = None
    jobs_end_by: Fact[Time] = None
    process_control: Fact[Text] = None
    # Other ways to become root on a contributed host, which its project is trusted with.
    foreign_root: Fact[list[Text]] = None
    # When a contributed worker left, whose project could read the munge key of that time.
    munge_key_left_at: Fact[Time] = None
    superseded_by: Fact[Id] = None

    @property
    def hostname(self) -> str | None:
        return self.worker_hostname


def of(member: Member) -> SlurmNotes:
    """The notes by the member's own component; `problems` has those that cannot be read."""
    return member.read_notes(ControllerNotes if member.component_key == CONTROLLER else WorkerNotes)


def controller(member: Member) -> ControllerNotes:
    return member.read_notes(ControllerNotes)


def worker(member: Member) -> WorkerNotes:
    return member.read_notes(WorkerNotes)


def instance(found: AppInstance) -> InstanceNotes:
    return InstanceNotes.read(found.status_detail or {})
