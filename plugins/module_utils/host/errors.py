"""The one form of an error on a host: a code for the runbook, a class that says whether a retry helps, a message.

The message says what happened and ends with what an operator does next.
"""

from __future__ import annotations

RETRYABLE = "retryable"
REPAIRABLE = "repairable"
INTERVENTION = "intervention"


class AdapterError(Exception):
    """A failure with a code, a class and a next step. `instance` is the app instance that the host serves instead."""

    def __init__(self, code: str, message: str, error_class: str, instance: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.error_class = error_class
        self.instance = instance

    def as_dict(self) -> dict[str, str]:
        fields = {"code": self.code, "message": self.message, "class": self.error_class}
        return fields | {"instance": self.instance} if self.instance else fields


def last_line(text: str, otherwise: str = "no reason given") -> str:
    """The last line of a command's output, where commands put the cause of a failure."""
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else otherwise


def from_os_error(error: OSError, doing: str) -> AdapterError:
    """A full or read-only disk needs a person; any other error may be gone at the next attempt."""
    if error.errno == 28:
        return AdapterError(
            "disk_full", f"No space left on the host while {doing}. Free space there, then retry.", INTERVENTION
        )
    if error.errno == 30:
        return AdapterError(
            "disk_read_only",
            f"The file system is read-only while {doing}. Repair or remount it, then retry.",
            INTERVENTION,
        )
    return AdapterError(
        "host_io_failed", f"{error.strerror or error} while {doing}. Check the host, then retry.", RETRYABLE
    )
