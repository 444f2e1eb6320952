"""The state of a cluster as Slurm shows it, typed: the snapshot that a play returns."""

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from runner.model import host_data
from runner.model.times import YEARS
from runner.slurm.tenant.accounting_state import ACCOUNT_NAME, REMEMBERED

WORD_BYTES = 256
VERSION_BYTES = 48
REASON_BYTES = 1000


def _cut(most: int) -> BeforeValidator:
    """Text of at most so many bytes. It goes into records, and a record that is too large is refused at every tick."""

    def cut(value: Any) -> Any:
        if not isinstance(value, str) or 4 * len(value) <= most:  # a character is at most four bytes
            return value
        return host_data.printable(value, most, keep="\n\t")

    return BeforeValidator(cut)


def _in_our_years(value: datetime) -> datetime:
    # Checked as given too: a year at either end of the calendar cannot be converted to UTC.
    if value.year not in YEARS or value.astimezone(UTC).year not in YEARS:
        raise ValueError("the year is not from 2000 to 2199")
    return value.astimezone(UTC)


def _or_none(value: Any, read: ValidatorFunctionWrapHandler) -> Any:
    """None for what cannot be read: a time may come from a worker, and must not make the snapshot unreadable."""
    try:
        return read(value)
    except ValidationError:
        return None


Word = Annotated[str, _cut(WORD_BYTES)]
Version = Annotated[str, _cut(VERSION_BYTES)]
Reason = Annotated[str, _cut(REASON_BYTES)]
Number = Annotated[int, Field(ge=-(2**63), lt=2**64)]
Moment = Annotated[AwareDatetime, AfterValidator(_in_our_years)]
MaybeMoment = Annotated[Moment | None, WrapValidator(_or_none)]
# As in module_utils/slurm/jobs.py; a list of elements may have been cut. Records take no other form.
Address = Annotated[
    str, Field(pattern=r"^[1-9][0-9]{0,9}(_[0-9]{1,9}|_\[([0-9][0-9,:-]*(\]|\.\.\.)|\?\])|\+[0-9]{1,4})?$")
]


def count_gpus(gres: str) -> int:
    """GPUs in a Gres text such as gpu:a100:4(S:0-1) or gpu:(null):2(IDX:0-1)."""
    total = 0
    for entry in gres.replace("(null)", "").split(","):
        kind, _, rest = entry.split("(")[0].partition(":")
        if kind == "gpu":
            count = rest.rpartition(":")[2] or "1"
            total += int(count) if count.isascii() and count.isdigit() and len(count) < 7 else 1
    return total


class _Observed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Disk(_Observed):
    path: Word
    free_mb: Number
    size_mb: Number = 0


class ControllerState(_Observed):
    hostname: Word | None = None
    munge: Word | None = None
    slurmctld: Word | None = None
    slurmdbd: Word | None = None
    mariadb: Word | None = None
    ping: Word = "UNKNOWN"
    slurm_version: Version | None = None
    slurmdbd_version: Version | None = None
    package_version: Version | None = None
    config_version: Word | None = None
    cluster_name: Word | None = None
    started_at: MaybeMoment = None
    submit_account: Word | None = None
    accounting_answers: bool | None = None
    # Whether slurm.conf is as the adapter wrote it, and whether it is what slurmctld has read.
    config_intact: bool | None = None
    config_loaded: bool | None = None
    # How the processes of jobs are tracked on every worker: cgroup or linuxproc.
    process_control: Word | None = None
    # Daemons whose program was replaced on disk since they started.
    outdated: list[Word] = Field(default_factory=list)
    disks: list[Disk] = Field(default_factory=list)
    # The controller's clock against the runner's; positive is ahead.
    clock_skew_seconds: float | None = None


class Node(_Observed):
    state: Word
    flags: frozenset[str] = frozenset()
    reason: Reason | None = None
    reason_by: Word | None = None
    cpus: Number = 0
    memory_mb: Number = 0
    gres: str = ""
    gres_used: str = ""
    address: Word | None = None
    slurm_version: Version | None = None
    slurmd_started_at: MaybeMoment = None
    features: list[str] = Field(default_factory=list)
    partitions: list[Word] = Field(default_factory=list)
    jobs: list[str] = Field(default_factory=list)  # addresses of the jobs on it

    @property
    def summary(self) -> str:
        """State and flags as Slurm's own commands show them: IDLE+DRAIN."""
        return host_data.printable("+".join([self.state, *sorted(self.flags - {"DYNAMIC_NORM"})]), WORD_BYTES)

    @property
    def gpus(self) -> int:
        return count_gpus(self.gres)

    @property
    def gpus_used(self) -> int:
        """GPUs that jobs have."""
        return count_gpus(self.gres_used)


class Job(_Observed):
    id: Number
    # The unique name of this job for users and Slurm: 100, 100_7, 100_[5-9], 200+1. See module_utils/slurm/jobs.py.
    address: Address
    state: Word
    nodes: list[str] = Field(default_factory=list)
    required_nodes: list[str] = Field(default_factory=list)
    end_time: MaybeMoment = None


class Reservation(_Observed):
    name: Word
    nodes: list[str] = Field(default_factory=list)


class Sample(_Observed):
    """A command that a user would type, with its output."""

    kind: Word
    about: Word
    command: Reason
    output: str | None = None
    steady: bool = False
    about_jobs: bool = False


# A user that an accounting database has for a digest of its subject; see tenant/memory.py.
Remembered = Annotated[str, Field(max_length=80, pattern=f"^{REMEMBERED.pattern}$")]
ProjectName = Annotated[str, Field(max_length=14, pattern=f"^{ACCOUNT_NAME.pattern}$")]
MOST_PROJECTS, MOST_USERS = 10_000, 10_000


class Snapshot(_Observed):
    observed_at: Moment
    controller: ControllerState
    nodes: dict[str, Node] | None = None
    jobs: list[Job] | None = None
    reservations: list[Reservation] | None = None
    samples: list[Sample] | None = None
    partitions: dict[str, str] | None = None  # by name: UP, DOWN, DRAIN or INACTIVE
    # Of a shared cluster: for each project's account who is or was a user of it. None if it could not be read.
    remembered: Annotated[
        Annotated[
            dict[ProjectName, Annotated[list[Remembered], Field(max_length=MOST_USERS)]],
            Field(max_length=MOST_PROJECTS),
        ]
        | None,
        WrapValidator(_or_none),
    ] = None

    def jobs_of(self, hostname: str) -> list[Job]:
        return [job for job in self.jobs or [] if hostname in job.nodes]

    def jobs_needing(self, hostname: str) -> list[Job]:
        """Jobs that hold this node or ask for it by name."""
        return [job for job in self.jobs or [] if hostname in job.required_nodes or hostname in job.nodes]

    def timed(self, here: datetime) -> "Snapshot":
        """With the skew of the controller's clock. `here`: when the snapshot arrived, by the runner's clock."""
        skew = round((self.observed_at - here).total_seconds(), 1)
        return self.model_copy(
            update={"controller": self.controller.model_copy(update={"clock_skew_seconds": skew})},
        )


def read_snapshot(data: Any) -> Snapshot | None:
    """A play's snapshot; None if it cannot be read."""
    try:
        return Snapshot.model_validate(data)
    except ValidationError:
        return None
