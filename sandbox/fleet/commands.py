"""Commands on hosts. They enter the host's namespaces directly: `podman exec` takes thirty times the CPU.

The process gets what `podman exec` gives: the host's cgroups, capabilities, environment and limits. It does not get the
filter of system calls, nor AppArmor or SELinux confinement where a machine has them. They guard little that the missing
capabilities do not guard already.
"""

import functools
import os
import resource
import selectors
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sandbox.fleet import cgroups
from sandbox.fleet.runtime import Podman

# podman's exit code for a failure of its own, not of the command.
PODMAN_FAILED = 125

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Limits of open files and of processes (dash calls these -p, bash -u), the files that take a process into each
# cgroup, "--", the command. A shell does it because a Python with threads must not fork itself.
_CANNOT_JOIN = b"gpuaas-slurm: a cgroup of the host cannot be joined"
_JOIN = f"""umask 022; unset PWD
ulimit -n "$1" 2>/dev/null; ulimit -p "$2" 2>/dev/null || ulimit -u "$2" 2>/dev/null; shift 2
while [ "$1" != -- ]; do echo 0 >"$1" || {{ echo "{_CANNOT_JOIN.decode()}" >&2; exit 125; }}; shift; done
shift; exec "$@"
"""


@dataclass(frozen=True)
class Init:
    """The first process of a container."""

    container_id: str
    pid: int


# By the container's name. Process-wide, because a fleet makes new Hosts for each call.
_first_processes: dict[str, Init] = {}
# Containers whose cgroups cannot be joined; podman runs commands there.
_closed: set[str] = set()


def remember(container: str, container_id: str, pid: int) -> None:
    """Keep the container's first process, so that the next command need not ask podman for it."""
    if pid:
        _first_processes[container] = Init(container_id, pid)


def run(
    podman: Podman, container: str, hostname: str, argv: Sequence[str], stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Run a command as root in a container. Exit codes are those of `podman exec`, and none of them raises."""
    entry = _entry(container) or (_inspect(podman, container) and _entry(container))
    if not entry:
        return podman.try_run("exec", "--interactive", container, *argv, stdin=stdin)
    if entry.frozen:
        return subprocess.CompletedProcess(list(argv), PODMAN_FAILED, b"", f"Error: {container} is paused\n".encode())
    environment = {"PATH": _PATH, "TERM": "xterm", "container": "podman", "HOSTNAME": hostname, "HOME": "/root"}
    with tempfile.TemporaryFile() as given:
        given.write(stdin)
        given.seek(0)
        process = subprocess.Popen(
            [*entry.argv, *argv],
            env=environment,
            stdin=given if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    with process:
        try:
            out, err = _output(process)
        except BaseException:  # also a test's time limit: it must not wait for a command that hangs
            process.kill()
            raise
    if _CANNOT_JOIN in err:  # only an attempt shows that the cgroup cannot be joined
        _closed.add(container)
        return podman.try_run("exec", "--interactive", container, *argv, stdin=stdin)
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    # The host may have stopped since its process was read.
    return subprocess.CompletedProcess(list(argv), PODMAN_FAILED if err.startswith(b"nsenter: ") else code, out, err)


@dataclass(frozen=True)
class _Entry:
    frozen: bool
    argv: list[str]


def _inspect(podman: Podman, container: str) -> bool:
    shown = podman.try_run("container", "inspect", "--format", "{{.Id}} {{.State.Pid}}", container)
    if shown.returncode == 0:
        container_id, pid = shown.stdout.decode().split()
        remember(container, container_id, int(pid))
    return shown.returncode == 0


def _entry(container: str) -> _Entry | None:
    """How to enter the container now; None if its first process is unknown, has ended, or cannot be entered."""
    first, nsenter = _first_processes.get(container), _nsenter()
    if first is None or nsenter is None or container in _closed:
        return None
    try:
        lines = Path(f"/proc/{first.pid}/status").read_text().splitlines()
        status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        groups = cgroups.membership(first.pid, first.container_id)
        limits = _limits(first.pid)
    except (OSError, KeyError, ValueError):
        groups = {}
    # The pid may belong to another process by now, so check that it still is the container's first one.
    if not groups or status["NSpid"].split()[-1] != "1" or status["State"].startswith("Z"):
        _first_processes.pop(container, None)
        return None
    joined = [str(one / "cgroup.procs") for one in dict.fromkeys(groups.values())]
    join = ["/bin/sh", "-c", _JOIN, "sh", *limits, *joined, "--"]
    enter = [nsenter, f"--target={first.pid}", "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--"]
    bounds = f"--bounding-set={_capabilities(int(status['CapBnd'], 16))}"
    limit = ["setpriv", "--clear-groups", "--inh-caps=-all", bounds, "--"]
    return _Entry(cgroups.is_frozen(groups), [*join, *enter, *limit])


@functools.cache
def _nsenter() -> str | None:
    return shutil.which("nsenter") if os.geteuid() == 0 else None


def _limits(pid: int) -> list[str]:
    """How many files and processes a process of the container may have; podman gives a command the highest values."""
    limits = (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)
    return [str(resource.prlimit(pid, limit)[1]).replace("-1", "unlimited") for limit in limits]


def _capabilities(mask: int) -> str:
    return ",".join(["-all", *(f"+cap_{bit}" for bit in range(mask.bit_length()) if mask >> bit & 1)])


def _output(process: "subprocess.Popen[bytes]") -> tuple[bytes, bytes]:
    """Read until the command has ended. A background process that keeps the pipes open is not waited for."""
    assert process.stdout and process.stderr
    output = {stream.fileno(): bytearray() for stream in (process.stdout, process.stderr)}
    out, err = output.values()
    ended = os.pidfd_open(process.pid)
    try:
        with selectors.DefaultSelector() as watched:
            for descriptor in (ended, *output):
                watched.register(descriptor, selectors.EVENT_READ)
            while (ready := {key.fd for key, _ in watched.select()}) != {ended}:
                for descriptor in ready - {ended}:
                    piece = os.read(descriptor, 1 << 16)
                    output[descriptor] += piece
                    if not piece:
                        watched.unregister(descriptor)
    finally:
        os.close(ended)
    return bytes(out), bytes(err)
