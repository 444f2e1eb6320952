"""Values that several modules report in the same form: host name and times."""

from __future__ import annotations

import socket
import time


def short_hostname() -> str:
    return socket.gethostname().split(".")[0]


def utc_time(epoch: float | None = None) -> str:
    """A time in ISO 8601, in whole seconds; now if none is given."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() if epoch is None else epoch))
