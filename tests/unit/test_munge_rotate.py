"""The module munge_rotate on a host in a directory: a new key, a staged one, an interrupted switch, a foreign key."""

import base64
import functools
import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.module_utils.host import files
from ansible.module_utils.host.errors import AdapterError
from ansible.module_utils.host.ledger import Ledger

from plugins.modules import munge_rotate

OLD, NEW = b"o" * 64, b"n" * 64
# A partition that is up, one that a person closed, and one that Slurm opens again only at the second request.
SCONTROL = """#!/bin/sh
echo "scontrol $*" >> "$LOG"
case "$*" in
*show*)
  echo "PartitionName=main Default=YES State=UP TotalNodes=1"
  echo "PartitionName=closed Default=NO State=DOWN TotalNodes=1"
  echo "PartitionName=slow Default=NO State=UP TotalNodes=1" ;;
*slow*up*) [ -e "$LOG.tried" ] || { touch "$LOG.tried"; exit 1; } ;;
esac
"""


def make_old(path: Path) -> None:
    hour_ago = time.time() - 3600
    os.utime(path, (hour_ago, hour_ago))


class Host:
    """munge runs with the old key. `systemd-run` keeps its command, and `fire` runs that as the timer does."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.live, self.staged, self.socket = (root / name for name in ("munge.key", "munge.key.next", "socket"))
        self.log = root / "log"
        self.units: dict[str, dict[str, str]] = {}
        self.armed: list[str] = []
        self.timer_works = self.peer_accepts = True
        self.pings = ["Slurmctld(primary) at ctl is UP"]
        self.write_key(OLD)
        self.restart_munge(seconds_ago=60)

    def write_key(self, key: bytes) -> None:
        self.live.write_bytes(key)
        make_old(self.live)

    def restart_munge(self, seconds_ago: float = 0.0) -> None:
        started = str(int((time.monotonic() - seconds_ago) * 1e6))
        self.units["munge"] = {"ActiveState": "active", "ExecMainStartTimestampMonotonic": started}
        self.socket.touch()

    @property
    def ledger(self) -> Ledger:
        return Ledger("worker/munge", self.root / "state")

    def ask(self, mode: str, key: bytes = NEW, dry: bool = False, **more: Any) -> dict[str, Any]:
        now = time.time()
        params: dict[str, Any] = {"mode": mode, "owner": "worker/munge", "key": base64.b64encode(key).decode()}
        params |= {"at": now + 60 if mode == "switch" else None, "reference_epoch": now, "skew": None}
        params |= {"timeout": 0.0, "peer_credential": None, "slurm": False, "pause_jobs": False, "fixed": {}}
        return munge_rotate.run_mode(params | more, dry)

    def refusal(self, mode: str, **more: Any) -> str:
        with pytest.raises(AdapterError) as refused:
            self.ask(mode, **more)
        return refused.value.code

    def fire(self, *, killed: bool = False) -> None:
        """What the timer runs, with programs of the test. `killed`: the host stops before munge is restarted."""
        programs = self.root / "bin"
        programs.mkdir(exist_ok=True)
        for name, text in {"systemctl": '#!/bin/sh\necho "systemctl $*" >> "$LOG"', "scontrol": SCONTROL}.items():
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        (programs / "sleep").write_text("#!/bin/sh\n")
        (programs / "sleep").chmod(0o755)
        script = self.armed[self.armed.index("/bin/sh") :]
        subprocess.run(
            [one.replace("/etc/munge/", f"{self.root}/") for one in script],
            env={"PATH": f"{programs}:{os.environ['PATH']}", "LOG": str(self.log)},
            check=True,
        )
        self.units.pop(f"{munge_rotate.TIMER}.timer")
        if not killed:
            assert "systemctl restart munge" in self.log.read_text()
            self.restart_munge()

    # -- what the module calls --
    def state_of(self, name: str) -> dict[str, str]:
        return self.units.get(name, {})

    def command(self, arguments: list[str], **_options: Any) -> "subprocess.CompletedProcess[str]":
        if arguments[0] == "unmunge":
            return subprocess.CompletedProcess(arguments, 0 if self.peer_accepts else 1, "", "Invalid credential")
        assert arguments[0] == "systemd-run"
        if self.timer_works:
            self.armed = arguments
            self.units[f"{munge_rotate.TIMER}.timer"] = {"ActiveState": "active"}
        return subprocess.CompletedProcess(arguments, 0 if self.timer_works else 1, "", "no bus")

    def run(self, *arguments: str) -> tuple[int, str, str]:
        if arguments[0] == "scontrol":
            return 0, self.pings.pop(0) if len(self.pings) > 1 else self.pings[0], ""
        return 0, "MUNGE:new\n", ""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    fake = Host(tmp_path)
    for name in ("live", "staged", "socket"):
        monkeypatch.setattr(munge_rotate, name.upper(), getattr(fake, name))
    monkeypatch.setattr(munge_rotate, "Ledger", functools.partial(Ledger, directory=tmp_path / "state"))
    monkeypatch.setattr(munge_rotate, "state_of", fake.state_of)
    monkeypatch.setattr(munge_rotate, "run", fake.run)
    monkeypatch.setattr(munge_rotate, "subprocess", SimpleNamespace(run=fake.command))
    monkeypatch.setattr(munge_rotate, "shutil", SimpleNamespace(which=lambda name: f"/usr/bin/{name}"))
    monkeypatch.setattr(munge_rotate, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(files, "user_id", lambda _name: os.getuid())
    monkeypatch.setattr(files, "group_id", lambda _name: os.getgid())
    return fake


# -- a new key -------------------------------------------------------------------------------------------------------


def test_a_new_key_is_staged_beside_the_live_one_and_noted_first(host: Host) -> None:
    assert host.ask("stage") == {"ready": True, "changes": [f"file {host.staged}"]}
    assert (host.live.read_bytes(), host.staged.read_bytes()) == (OLD, NEW)
    assert host.staged.stat().st_mode & 0o777 == 0o400
    assert host.ledger.has("path", str(host.staged))
    assert host.ask("stage")["changes"] == [], "a second run changes nothing"


@pytest.mark.parametrize(("mode", "dry"), [("look", False), ("stage", True), ("switch", True)])
def test_a_look_and_a_dry_run_change_nothing(host: Host, mode: str, dry: bool) -> None:
    seen = host.ask(mode, dry=dry, reference_epoch=time.time() - 90)
    assert seen["changes"] == [] and seen["skew"] == pytest.approx(90, abs=5)
    assert not host.staged.exists() and host.armed == []


def test_a_key_that_is_too_short_is_refused(host: Host) -> None:
    assert host.refusal("stage", key=b"k" * 31) == "secret_malformed"
    assert not host.staged.exists()


@pytest.mark.parametrize("mode", ["look", "stage", "switch"])
def test_a_host_whose_munge_does_not_run_is_not_prepared(host: Host, mode: str) -> None:
    host.units["munge"]["ActiveState"] = "failed"
    assert host.refusal(mode) == "munge_not_running"
    host.restart_munge()
    host.live.unlink()
    assert host.refusal(mode) == "munge_not_running", "munged runs, but its key is gone"


def test_a_host_without_systemd_run_is_not_prepared(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(munge_rotate, "shutil", SimpleNamespace(which=lambda _name: None))
    assert host.refusal("look") == "systemd_run_missing"


# -- a foreign key ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_a_path_of_others_beside_the_live_key_is_refused_and_kept(host: Host, kind: str) -> None:
    if kind == "link":
        host.staged.symlink_to("x")
    elif kind == "directory":
        host.staged.mkdir()
    else:
        host.staged.touch()
    assert [host.refusal(mode) for mode in ("look", "stage", "switch")] == ["path_in_the_way"] * 3
    assert host.ask("drop")["changes"] == []
    assert host.staged.is_symlink() or host.staged.exists()


def test_a_staged_key_of_ours_is_dropped_and_the_live_one_stays(host: Host) -> None:
    host.ask("stage")
    assert host.ask("drop")["changes"] == [f"file {host.staged}"]
    assert not host.staged.exists() and host.live.read_bytes() == OLD
    assert host.ask("drop")["changes"] == []


# -- the switch ------------------------------------------------------------------------------------------------------


def test_a_switch_sets_one_timer_and_the_timer_changes_the_key(host: Host) -> None:
    assert host.ask("switch")["changes"] == [f"file {host.staged}", f"timer {munge_rotate.TIMER}"]
    [delay] = [one.partition("=")[2] for one in host.armed if one.startswith("--on-active=")]
    assert 50 < float(delay) <= 60
    assert host.live.read_bytes() == OLD, "not before its time"
    first = host.armed
    assert host.ask("switch")["changes"] == [], "another member on the host has set the timer"
    assert host.armed is first
    host.fire()
    assert host.live.read_bytes() == NEW and not host.staged.exists()
    assert munge_rotate.uses_key(NEW) and not munge_rotate.uses_key(OLD)


def test_a_host_that_has_switched_is_left_alone(host: Host) -> None:
    host.ask("switch")
    host.fire()
    host.armed = []
    assert host.ask("stage")["changes"] == host.ask("switch")["changes"] == host.armed == []
    assert host.ask("prove")["credential"] == "MUNGE:new"


def test_an_interrupted_switch_is_finished_by_the_next_one(host: Host) -> None:
    """The key is in place, but munged still has the old one in memory."""
    host.ask("switch")
    make_old(host.staged)  # older than the munged that runs
    host.fire(killed=True)
    assert host.live.read_bytes() == NEW and not munge_rotate.uses_key(NEW)
    assert host.refusal("prove") == "munge_key_old"
    assert host.ask("switch")["changes"] == [f"timer {munge_rotate.TIMER}"]
    host.fire()
    assert munge_rotate.uses_key(NEW)


def test_a_key_that_is_staged_after_the_switch_is_dropped(host: Host) -> None:
    host.ask("stage")
    host.write_key(NEW)
    assert host.ask("stage")["changes"] == [f"file {host.staged}"]
    assert not host.staged.exists()


def test_a_timer_that_systemd_does_not_set_is_an_error(host: Host) -> None:
    host.timer_works = False
    assert host.refusal("switch") == "timer_failed"
    assert host.staged.read_bytes() == NEW, "the next run continues"


def test_the_controller_closes_open_partitions_around_its_switch(host: Host) -> None:
    host.ask("switch", pause_jobs=True, at=time.time())
    host.fire()
    [shown, *steps] = host.log.read_text().splitlines()
    assert "show partition" in shown
    update = "scontrol update partitionname={} state={}".format
    assert steps == [
        *(update("main", "down"), update("slow", "down"), "systemctl restart munge"),
        *(update("main", "up"), update("slow", "up"), update("slow", "up")),
    ]
    assert host.live.read_bytes() == NEW


# -- the proof -------------------------------------------------------------------------------------------------------


def switched(host: Host) -> Host:
    host.write_key(NEW)
    host.restart_munge()
    return host


def test_a_proof_needs_munged_its_socket_and_the_end_of_the_switch(host: Host) -> None:
    assert host.refusal("prove") == "munge_key_old", "the key is the old one"
    started = switched(host).ask("prove")["switched_at"]
    assert started == pytest.approx(time.time(), abs=30)
    host.socket.unlink()
    assert host.refusal("prove") == "munge_key_old"
    switched(host).units[munge_rotate.TIMER] = {"ActiveState": "activating"}
    assert host.refusal("prove") == "munge_key_old", "its partitions are still closed"


def test_a_proof_fails_if_munge_refuses_the_controllers_credential(host: Host) -> None:
    switched(host).peer_accepts = False
    assert host.ask("prove")["ready"] is True, "without a credential nothing is compared"
    assert host.refusal("prove", peer_credential="MUNGE:x") == "munge_mismatch"


def test_a_proof_waits_until_slurmctld_answers_from_here(host: Host) -> None:
    switched(host).pings = ["is DOWN", "is DOWN", "Slurmctld(primary) at ctl is UP"]
    assert host.ask("prove", slurm=True, timeout=30.0)["ready"] is True
    host.pings = ["Slurmctld(primary) at ctl is DOWN"]
    assert host.refusal("prove", slurm=True) == "slurmctld_not_answering"
