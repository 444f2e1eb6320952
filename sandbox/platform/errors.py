"""The platform's one error type; it becomes the flat envelope on the wire."""

from typing import Any


class ApiError(Exception):
    """An answer that is not a success. The transaction it is raised in leaves no trace."""

    def __init__(self, status: int, code: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.details = details


def not_found(kind: str) -> ApiError:
    return ApiError(404, f"{kind}_not_found", f"no such {kind.replace('_', ' ')} in this project")


def invalid_transition(message: str, **details: Any) -> ApiError:
    return ApiError(409, "invalid_transition", message, **details)


def validation_error(message: str, **details: Any) -> ApiError:
    return ApiError(400, "validation_error", message, **details)
