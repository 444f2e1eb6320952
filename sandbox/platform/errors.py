"""The platform's error type. The API returns it as a flat JSON object."""

from typing import Any


class ApiError(Exception):
    """An error answer. The transaction in which it is raised is rolled back."""

    def __init__(self, status: int, code: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.details = details


def not_found(kind: str) -> ApiError:
    return ApiError(404, f"{kind}_not_found", f"there is no such {kind.replace('_', ' ')} here")


def invalid_transition(message: str, **details: Any) -> ApiError:
    return ApiError(409, "invalid_transition", message, **details)


def validation_error(message: str, **details: Any) -> ApiError:
    return ApiError(400, "validation_error", message, **details)
