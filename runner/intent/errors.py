"""The error of a request that cannot be used."""

from pydantic import ValidationError

MESSAGE_CHARS = 500


class IntentError(Exception):
    """A request cannot be used as it is written; nothing was touched."""

    def __init__(self, code: str, message: str) -> None:
        # It may quote what was sent, and must fit where it is told.
        message = message if len(message) <= MESSAGE_CHARS else message[:MESSAGE_CHARS] + "..."
        super().__init__(message)
        self.code = code
        self.message = message


def first_problem(error: ValidationError) -> str:
    problem = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(str(part) for part in problem["loc"])
    return f"{where}: {problem['msg']}" if where else problem["msg"]
