"""Parameters of operations on workers, read strictly."""

from typing import TypeVar

from pydantic import BaseModel, Field, StrictBool, ValidationError

from runner.intent.errors import IntentError
from runner.model.plan import Detail
from runner.slurm.decide.workers.evict import JobTerms

M = TypeVar("M", bound=BaseModel)


class LeaveTerms(JobTerms):
    """`parameters` of drain, remove and replace."""

    host_patience_seconds: int = Field(600, ge=0, le=31_536_000)
    remove_homes: StrictBool = False  # of remove and replace


def read_as(model: type[M], parameters: Detail) -> M:
    """IntentError `parameters_invalid` names the parameter that is wrong."""
    try:
        return model.model_validate(parameters)
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        words = f"{where} {problem['msg']}".strip()  # a problem of two parameters together has no place
        raise IntentError("parameters_invalid", f"parameters cannot be used: {words}") from None
