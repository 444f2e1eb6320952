"""Values that several modules report in the same form: host name, system and times."""

from __future__ import annotations

import socket
import time
from pathlib import Path


def short_hostname() -> str:
    return socket.gethostname().split(".")[0]


def utc_time(epoch: float | None = None) -> str:
    """A time in ISO 8601, in whole seconds; now if none is given."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() if epoch is None else epoch))


def os_release() -> dict[str, str]:
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except OSError:
        return {}
    return {key: value.strip('"') for key, _, value in (line.partition("=") for line in lines)}
