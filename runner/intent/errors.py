"""Errors in what the API sends."""

from pydantic import ValidationError

MESSAGE_CHARS = 500


class IntentError(Exception):
    """A request or a record cannot be used as it is; nothing was changed."""

    def __init__(self, code: str, message: str) -> None:
        # The message may quote what was sent, and must fit into a record.
        message = message if len(message) <= MESSAGE_CHARS else message[:MESSAGE_CHARS] + "..."
        super().__init__(message)
        self.code = code
        self.message = message


def first_problem(error: ValidationError) -> str:
    """The first problem that pydantic found. The input is not quoted, because it may hold a secret."""
    problem = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(str(part) for part in problem["loc"])
    return f"{where}: {problem['msg']}" if where else problem["msg"]
