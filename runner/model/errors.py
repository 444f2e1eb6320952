"""Errors of calls to the platform: one class for each way to handle them."""

from typing import Any


class PlatformError(Exception):
    """The platform answered with an error, or not at all. The message says what to do next."""

    def __init__(
        self, message: str, *, code: str = "platform_error", status: int | None = None, **context: Any
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.context = context


class Unauthenticated(PlatformError):
    """401 with a fresh token as well: the credentials are wrong, expired or revoked."""


class Forbidden(PlatformError):
    """403: an action key or an ownership is missing. Never retried."""


class NotFound(PlatformError):
    """404."""


class Rejected(PlatformError):
    """400 and other refusals of what we sent. Never retried."""


class Conflict(PlatformError):
    """409 or 412: another client changed the record. Read again, then decide."""


class Unavailable(PlatformError):
    """5xx, 429, time-outs, answers that cannot be read: retried up to the limit, without success."""


class RequestError(Exception):
    """The request cannot be used as typed; nothing was sent."""
