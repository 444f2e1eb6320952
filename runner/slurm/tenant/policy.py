"""`app_policy` of an attachment: what a project may use. The tenant's administrator sets it; the default is a deny."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, ValidationError

from runner.intent.errors import IntentError, first_problem
from runner.model.times import Time
from runner.slurm.tenant.accounting_state import Limits

MOST_MINUTES = 366 * 24 * 60
Count = Annotated[StrictInt, Field(ge=0, le=10**6)]


class LimitsPolicy(BaseModel):
    """Limits of all users of the project together. An absent one is no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gpus: Count | None = Field(None, description="GPUs in use at once")
    cpus: Count | None = Field(None, description="CPUs in use at once")
    jobs: Count | None = Field(None, description="jobs that run at once; more of them wait")
    wall_minutes: Annotated[StrictInt, Field(ge=1, le=MOST_MINUTES)] | None = Field(
        None, description="the longest time limit of a job, in minutes"
    )

    def read(self) -> Limits:
        return Limits(self.gpus, self.cpus, self.jobs, self.wall_minutes)


class AppPolicy(BaseModel):
    """What a project may use. A field that is not known makes the whole policy unreadable, which allows nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    submit: StrictBool = Field(False, description="whether the project's users may submit jobs")
    partitions: list[Literal["main", "own"]] = Field(
        default_factory=list,
        max_length=2,
        description="where: `main` is the tenant's workers, `own` the workers that the project contributed",
    )
    limits: LimitsPolicy = LimitsPolicy.model_validate({})
    share_workers: StrictBool = Field(
        False, description="whether every project that may submit to `main` may use the workers it contributed"
    )
    detach_jobs: Literal["wait", "cancel"] = Field(
        "wait", description="whether a detach waits for the project's jobs or cancels them"
    )


class DetachTerms(BaseModel):
    """`detach_parameters` of an attachment."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cancel_jobs_at: Time | None = None


def read_detach(given: dict[str, Any] | None) -> DetachTerms:
    """IntentError if they cannot be read; no job is cancelled then."""
    try:
        return DetachTerms.model_validate(given or {})
    except ValidationError as error:
        raise IntentError("detach_invalid", f"detach_parameters cannot be used: {first_problem(error)}") from None


def read_policy(given: dict[str, Any]) -> AppPolicy:
    """IntentError if it cannot be read; the project may then submit nowhere."""
    try:
        return AppPolicy.model_validate(given)
    except ValidationError as error:
        raise IntentError("app_policy_invalid", f"app_policy cannot be used: {first_problem(error)}") from None
