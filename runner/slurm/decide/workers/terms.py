"""Parameters of operations, read strictly."""

from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError

from runner.intent.errors import IntentError
from runner.model.plan import Detail
from runner.slurm.decide.workers.evict import JobTerms

M = TypeVar("M", bound=BaseModel)


class NoTerms(BaseModel):
    """`parameters` of a verb that has none."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class LeaveTerms(JobTerms):
    """`parameters` of remove and replace. A drain takes only JobTerms; the rest has its default there."""

    host_patience_seconds: int = Field(600, ge=0, le=31_536_000)
    remove_homes: StrictBool = False


def read_as(model: type[M], parameters: Detail) -> M:
    """IntentError `parameters_invalid` names the parameter that is wrong."""
    try:
        return model.model_validate(parameters)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        words = f"{where} {problem['msg']}".strip()  # a problem of two parameters together has no place
        raise IntentError("parameters_invalid", f"parameters cannot be used: {words}") from None
