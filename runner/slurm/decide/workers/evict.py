"""Jobs that are in the way: how messages name them, and what the deadline of an operation does to them. Pure."""

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from runner.slurm.snapshot import Job

JOBS_SHOWN = 20
ADDRESS_CHARS = 40
ANNOUNCED_CHARS = 2000


class JobTerms(BaseModel):
    """What becomes of jobs in the way: `parameters` of whatever waits for them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    reason: str = Field("", max_length=120, pattern=r"^[A-Za-z0-9 _.,:/@+-]*$")
    deadline_seconds: int | None = Field(None, ge=0, le=31_536_000)
    on_deadline: Literal["give_up", "requeue", "cancel"] | None = None

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.on_deadline and self.deadline_seconds is None:
            raise ValueError("on_deadline needs deadline_seconds")
        return self

    @property
    def deadline_action(self) -> str:
        """What is done at the deadline: `on_deadline`, or its default."""
        return self.on_deadline or "give_up"


def addresses(jobs: Sequence[Job]) -> list[str]:
    """As many as fit into a record, oldest first; a long list of array elements is cut."""
    return [_short(job.address) for job in sorted(jobs, key=lambda job: job.id)[:JOBS_SHOWN]]


def named(jobs: Sequence[Job]) -> str:
    """job 7, 100_3 and 2 more"""
    return f"job {', '.join(addresses(jobs))}{_more(jobs)}"


def is_open(job: Job) -> bool:
    """One that is already being ended is not ended again."""
    return job.state != "COMPLETING"


def announcement(how: str, jobs: Sequence[Job]) -> str:
    """What is about to be done to jobs, written before it is done."""
    running = [job for job in jobs if job.state != "PENDING"]
    waiting = [job for job in jobs if job.state == "PENDING"]
    parts = []
    if running:
        parts.append(f"{how} of {_affected_jobs(how, running)}")
    if waiting and how == "requeue":
        parts.append(f"required nodes cleared of {named(waiting)}")
    elif waiting:
        parts.append(f"{how} of {_affected_jobs(how, waiting)}, waiting for the node by name")
    return " and ".join(parts)


def is_announced(announced: str | None, eviction: str) -> bool:
    return eviction in (announced or "").split("; ")


def add_announcement(announced: str | None, eviction: str) -> str:
    """What was announced so far and this; the oldest is dropped when it grows too long for a record."""
    parts = [*announced.split("; "), eviction] if announced else [eviction]
    while len(parts) > 1 and len("; ".join(parts)) > ANNOUNCED_CHARS:
        parts.pop(0)
    return "; ".join(parts)


def affected_job(how: str, address: str, *, waits: bool = False) -> str:
    """The job, or all of a heterogeneous job: Slurm requeues only the whole of it, and cancels neither component zero
    nor a component that waits alone."""
    number, plus, component = address.partition("+")
    whole = plus and (how == "requeue" or (how == "cancel" and (waits or component == "0")))
    return f"{_short(address)} (the whole heterogeneous job {number})" if whole else _short(address)


def _affected_jobs(how: str, jobs: Sequence[Job]) -> str:
    oldest = sorted(jobs, key=lambda job: job.id)[:JOBS_SHOWN]
    texts = [affected_job(how, job.address, waits=job.state == "PENDING") for job in oldest]
    return f"job {', '.join(texts)}{_more(jobs)}"


def _more(jobs: Sequence[Job]) -> str:
    return f" and {len(jobs) - JOBS_SHOWN} more" if len(jobs) > JOBS_SHOWN else ""


def _short(address: str) -> str:
    return address if len(address) <= ADDRESS_CHARS else f"{address[: ADDRESS_CHARS - 4]}...]"
