"""The shape in which everything on a host says what went wrong.

An adapter error is read by an operator at night, so it names a code a runbook can list, a class that
tells whether trying again helps, and a message that ends with what to do next.
"""

from __future__ import annotations

RETRYABLE = "retryable"
DRIFT = "drift"
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
        told = {"code": self.code, "message": self.message, "class": self.error_class}
        return told | {"instance": self.instance} if self.instance else told


def from_os_error(error: OSError, doing: str) -> AdapterError:
    """A full or read-only disk is a matter for a person; anything else may be gone at the next attempt."""
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
        "host_io_failed", f"{error.strerror or error} while {doing}. Look at the host, then retry.", RETRYABLE
    )
