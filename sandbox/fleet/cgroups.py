"""The control groups of a container, found through the container's first process; cgroup v1, v2, or both at once."""

import contextlib
import functools
from pathlib import Path

_PROC = Path("/proc")


@functools.cache
def _mounts() -> dict[str, Path]:
    """Where each hierarchy is mounted, by controller; v2 has the name ""."""
    found: dict[str, Path] = {}
    for line in (_PROC / "self" / "mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup2":
            found[""] = Path(place)
        elif kind == "cgroup":
            found.update(dict.fromkeys(options.split(","), Path(place)))
    return found


def membership(pid: int, container: str) -> dict[str, Path]:
    """The directory of the container in each hierarchy, by controller. Empty if the process is not the container's.

    In v2 it is the directory of the process itself: once systemd has delegated controllers, the kernel accepts no
    process in the directories above.
    """
    found: dict[str, Path] = {}
    for line in (_PROC / str(pid) / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        parts = path.strip("/").split("/")
        own = next((n for n, part in enumerate(parts) if container in part), None)
        if own is None:
            return {}
        for one in controllers.split(","):
            found[one] = _mounts()[one].joinpath(*(parts[: own + 1] if one else parts))
    return found


def is_frozen(groups: dict[str, Path]) -> bool:
    """Whether the container is paused: nothing in it runs, and a process that enters stops as well."""
    with contextlib.suppress(OSError):
        if "freezer" in groups:
            return (groups["freezer"] / "freezer.state").read_text().strip() != "THAWED"
        return "frozen 1" in (groups[""] / "cgroup.events").read_text()
    return False


def cpu_seconds(pid: int, container: str) -> float | None:
    """CPU time that the container has used so far; None if it cannot be read."""
    with contextlib.suppress(OSError, KeyError, ValueError, StopIteration):
        groups = membership(pid, container)
        if "cpuacct" in groups:
            return int((groups["cpuacct"] / "cpuacct.usage").read_text()) / 1e9
        whole = next(one for one in (groups[""], *groups[""].parents) if container in one.name)
        usage = dict(line.split() for line in (whole / "cpu.stat").read_text().splitlines())
        return int(usage["usage_usec"]) / 1e6
    return None
