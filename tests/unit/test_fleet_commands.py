"""Commands on hosts: by nsenter, or by podman where nsenter is not possible."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sandbox.fleet import cgroups, commands
from sandbox.fleet.runtime import Podman

ID = "a" * 64
HYBRID = f"""3:cpuacct,cpu:/parent/libpod-{ID}
2:freezer:/parent/libpod-{ID}
1:name=systemd:/parent/libpod-{ID}/init.scope
0::/parent/libpod-{ID}
"""
UNIFIED = f"0::/parent/libpod-{ID}/init.scope\n"
MOUNTS = """cgroup {root}/cpu cgroup rw,cpuacct,cpu 0 0
cgroup {root}/freezer cgroup rw,freezer 0 0
cgroup {root}/systemd cgroup rw,name=systemd 0 0
cgroup2 {root}/unified cgroup2 rw 0 0
"""


class FakeProc:
    """A /proc with one process, and hierarchies under the same directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "self").mkdir()
        (root / "7").mkdir()
        (root / "self" / "mounts").write_text(MOUNTS.format(root=root))

    def process_in(self, text: str) -> dict[str, Path]:
        (self.root / "7" / "cgroup").write_text(text)
        return cgroups.membership(7, ID)

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeProc:
    monkeypatch.setattr(cgroups, "_PROC", tmp_path)
    monkeypatch.setattr(cgroups, "_mounts", cgroups._mounts.__wrapped__)
    return FakeProc(tmp_path)


def test_a_container_is_found_in_every_hierarchy(proc: FakeProc) -> None:
    own = f"parent/libpod-{ID}"
    assert proc.process_in(HYBRID) == {
        "cpu": proc.root / "cpu" / own,
        "cpuacct": proc.root / "cpu" / own,
        "freezer": proc.root / "freezer" / own,
        "name=systemd": proc.root / "systemd" / own,
        "": proc.root / "unified" / own,
    }
    assert proc.process_in(UNIFIED) == {"": proc.root / "unified" / own / "init.scope"}


@pytest.mark.parametrize("text", ["0::/\n", HYBRID.replace(ID, "b" * 64), ""])
def test_a_process_outside_the_container_has_no_cgroup_of_it(proc: FakeProc, text: str) -> None:
    assert proc.process_in(text) == {}


@pytest.mark.parametrize(("state", "frozen"), [("THAWED", False), ("FROZEN", True), ("FREEZING", True)])
def test_a_paused_container_is_seen_in_cgroup_v1(proc: FakeProc, state: str, frozen: bool) -> None:
    proc.write(f"freezer/parent/libpod-{ID}/freezer.state", f"{state}\n")
    assert cgroups.is_frozen(proc.process_in(HYBRID)) is frozen


@pytest.mark.parametrize("frozen", [False, True])
def test_a_paused_container_is_seen_in_cgroup_v2(proc: FakeProc, frozen: bool) -> None:
    proc.write(f"unified/parent/libpod-{ID}/init.scope/cgroup.events", f"populated 1\nfrozen {frozen:d}\n")
    assert cgroups.is_frozen(proc.process_in(UNIFIED)) is frozen


def test_the_cpu_time_of_a_container_is_read_from_v1_and_from_v2(proc: FakeProc) -> None:
    proc.process_in(HYBRID)
    assert cgroups.cpu_seconds(7, ID) is None
    proc.write(f"cpu/parent/libpod-{ID}/cpuacct.usage", "1500000000\n")
    assert cgroups.cpu_seconds(7, ID) == 1.5
    proc.process_in(UNIFIED)
    proc.write(f"unified/parent/libpod-{ID}/cpu.stat", "usage_usec 2500000\nuser_usec 1\n")
    assert cgroups.cpu_seconds(7, ID) == 2.5
    assert cgroups.cpu_seconds(8, ID) is None


class Recorder(Podman):
    """A podman with one container, which records the calls."""

    def __init__(self, pid: int) -> None:
        super().__init__("runc", ())
        object.__setattr__(self, "pid", pid)
        object.__setattr__(self, "calls", [])

    pid: int
    calls: list[str]

    def try_run(self, *args: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        self.calls.append(args[0])
        return subprocess.CompletedProcess(args, 0, f"{ID} {self.pid}\n".encode(), b"")


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> dict[str, commands.Init]:
    found: dict[str, commands.Init] = {}
    monkeypatch.setattr(commands, "_first_processes", found)
    monkeypatch.setattr(commands, "_nsenter", lambda: "/usr/bin/nsenter")
    return found


def test_podman_runs_the_command_if_the_first_process_has_ended(processes: dict[str, commands.Init]) -> None:
    processes["c"] = commands.Init(ID, os.getpid())  # in use by a process that is not the container's
    podman = Recorder(os.getpid())
    assert commands.run(podman, "c", "gs-1", ["true"]).returncode == 0
    assert podman.calls == ["container", "exec"]
    assert processes == {}


def test_podman_runs_the_command_without_nsenter(
    processes: dict[str, commands.Init], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "_nsenter", lambda: None)
    podman = Recorder(1)
    commands.run(podman, "c", "gs-1", ["true"])
    assert podman.calls[-1] == "exec"


def test_a_paused_host_refuses_a_command_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "_entry", lambda _: commands._Entry(True, ["sleep", "600"]))
    done = commands.run(Recorder(1), "c", "gs-1", ["true"])
    assert (done.returncode, done.stderr) == (commands.PODMAN_FAILED, b"Error: c is paused\n")


@pytest.mark.parametrize(
    ("script", "code", "out", "err"),
    [
        ("print('x' * 200000)", 0, b"x" * 200000 + b"\n", b""),
        ("import sys; print(sys.stdin.read()); sys.exit(3)", 3, b"given\n", b""),
        ("import os; os.kill(os.getpid(), 9)", 137, b"", b""),
        ("import sys; sys.exit('nsenter: cannot open /proc/1/ns/mnt')", 125, b"", None),
    ],
)
def test_output_and_exit_code_are_those_of_podman(
    monkeypatch: pytest.MonkeyPatch, script: str, code: int, out: bytes, err: bytes | None
) -> None:
    monkeypatch.setattr(commands, "_entry", lambda _: commands._Entry(False, [sys.executable, "-c"]))
    done = commands.run(Recorder(1), "c", "gs-1", [script], b"given")
    assert (done.returncode, done.stdout) == (code, out)
    assert err is None or done.stderr == err


def test_a_process_that_a_command_leaves_behind_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The background process keeps the pipes of the command open."""
    monkeypatch.setattr(commands, "_entry", lambda _: commands._Entry(False, ["/bin/sh", "-c"]))
    began = time.monotonic()
    done = commands.run(Recorder(1), "c", "gs-1", ["sleep 60 & echo $!"])
    os.kill(int(done.stdout), signal.SIGKILL)
    assert time.monotonic() - began < 30


def test_a_time_limit_ends_a_command_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    def alarm(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(commands, "_entry", lambda _: commands._Entry(False, ["/bin/sh", "-c"]))
    before = signal.signal(signal.SIGALRM, alarm)
    outer = signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(TimeoutError):
            commands.run(Recorder(1), "c", "gs-1", ["exec sleep 60"])
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *outer)


def test_podman_runs_commands_if_a_cgroup_cannot_be_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "_closed", set())
    join = ["/bin/sh", "-c", commands._JOIN, "sh", "64", "64", "/nonexistent/cgroup.procs", "--"]
    monkeypatch.setattr(
        commands, "_entry", lambda name: None if name in commands._closed else commands._Entry(False, join)
    )
    podman = Recorder(1)
    commands.run(podman, "c", "gs-1", ["true"])
    assert podman.calls[-1] == "exec" and commands._closed == {"c"}


def test_the_capabilities_of_a_command_are_named_by_number() -> None:
    assert commands._capabilities(0b100011) == "-all,+cap_0,+cap_1,+cap_5"
