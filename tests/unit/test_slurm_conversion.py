"""slurmdbd is waited for as long as it works; dead, idle or endless ends the wait."""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.host.errors import AdapterError
from ansible.module_utils.slurm import conversion as slurm_conversion
from ansible.module_utils.slurm.conversion import Patience, StillConverting, cpu_seconds, start_slurmdbd

from runner.slurm import reports

UNIT = {"name": "slurmdbd", "watches": ["package:slurmdbd"], "ready_port": 6819}
PATIENCE = Patience(round=10, idle=60, limit=3600)


@dataclass
class Host:
    """A clock, and a slurmdbd of which everything can be set."""

    now: float = 1_000_000.0
    old: bool = True  # the process is from before the new package
    active: str = "active"
    pid: int = 7
    restarts: int = 0
    cpu: float = 0.0
    cpu_share: float = 0.0  # what it uses while time passes
    statement: bool = False
    listens_at: float = float("inf")
    dies: bool = False  # systemd restarts it all the time
    restarted: list[str] = field(default_factory=list)
    saved: dict[str, Any] = field(default_factory=dict)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.cpu += seconds * self.cpu_share
        self.restarts += self.dies

    def show(self, _names: list[str]) -> dict[str, dict[str, str]]:
        state = {"ActiveState": self.active, "MainPID": str(self.pid), "NRestarts": str(self.restarts)}
        return {"slurmdbd": {**state, "ExecMainStartTimestampMonotonic": str(self.pid)}}

    def restart(self, unit: str) -> None:
        self.restarted.append(unit)
        self.old, self.pid, self.cpu, self.restarts = False, self.pid + 1, 0.0, 0

    def start(self, patience: Patience = PATIENCE) -> list[str]:
        return start_slurmdbd(UNIT, "slurm_acct_db", dict(self.saved), self._save, patience)

    def _save(self, record: dict[str, Any]) -> None:
        self.saved = record


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Host:
    made = Host()
    monkeypatch.setattr(time, "time", lambda: made.now)
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    monkeypatch.setattr(time, "sleep", made.sleep)
    monkeypatch.setattr(slurm_conversion, "state_of", lambda unit: made.show([unit]).get(unit, {}))
    monkeypatch.setattr(slurm_conversion, "reload_changed", made.show)
    monkeypatch.setattr(slurm_conversion, "request", lambda _verb, unit: made.restart(unit))
    monkeypatch.setattr(slurm_conversion, "needs_restart", lambda _state, _watched: made.old)
    monkeypatch.setattr(slurm_conversion, "listening", lambda _port: not made.old and made.now >= made.listens_at)
    monkeypatch.setattr(slurm_conversion, "cpu_seconds", lambda _pid: made.cpu)
    monkeypatch.setattr(slurm_conversion, "statement_runs", lambda _database: made.statement)
    monkeypatch.setattr(slurm_conversion, "journal", lambda *_: ["Dropping old tables"])
    monkeypatch.setattr(slurm_conversion, "DROPIN", tmp_path / "slurmdbd.service.d/x.conf")
    return made


def test_a_slurmdbd_that_listens_soon_ends_the_wait(host: Host) -> None:
    host.listens_at = host.now + 3
    assert host.start() == ["unit slurmdbd restarted"]
    assert host.saved == {}
    assert not slurm_conversion.DROPIN.exists()


def test_systemd_does_not_end_a_start_that_takes_long(host: Host) -> None:
    host.cpu_share = 0.5
    with pytest.raises(StillConverting):
        host.start()
    assert "TimeoutStartSec=infinity" in slurm_conversion.DROPIN.read_text()


@pytest.mark.parametrize("sign", [{"cpu_share": 0.5}, {"statement": True}])
def test_one_that_works_is_waited_for_round_after_round(host: Host, sign: dict[str, Any]) -> None:
    """Well beyond the 300 s that a start once had, and beyond the time that an idle one has."""
    vars(host).update(sign)
    began = host.now
    for _ in range(60):
        with pytest.raises(StillConverting) as caught:
            host.start()
    assert host.now - began > 600
    assert caught.value.progress["seconds"] > 590
    assert caught.value.progress["last_line"] == "Dropping old tables"
    assert host.restarted == ["slurmdbd"], "it is never restarted while it works"
    host.listens_at = host.now
    assert host.start() == []


def test_the_process_that_was_seen_is_not_restarted_when_clocks_disagree(host: Host) -> None:
    host.cpu_share = 0.5
    with pytest.raises(StillConverting):
        host.start()
    host.old = True  # a clock was set back: the package seems newer than the process
    with pytest.raises(StillConverting):
        host.start()
    assert host.restarted == ["slurmdbd"]


def test_one_that_does_nothing_for_long_is_a_failure(host: Host) -> None:
    rounds = 0
    with pytest.raises(AdapterError) as caught:
        while True:
            rounds += 1
            with pytest.raises(StillConverting):
                host.start()
    assert caught.value.code == "slurmdbd_not_ready"
    assert "used no CPU time and ran no statement" in caught.value.message
    assert rounds > 5


def test_one_that_takes_longer_than_the_limit_is_a_failure(host: Host) -> None:
    host.cpu_share = 1.0
    with pytest.raises(AdapterError, match="did not end within"):
        host.start(Patience(round=5000, idle=60, limit=3600))


@pytest.mark.parametrize("state", [{"active": "failed"}, {"dies": True}])
def test_one_that_dies_is_a_failure_at_once(host: Host, state: dict[str, Any]) -> None:
    vars(host).update(state)
    with pytest.raises(AdapterError, match="keeps ending"):
        host.start()
    assert host.saved == {}, "the next attempt begins anew"


def test_one_that_died_before_and_works_now_is_waited_for(host: Host) -> None:
    """An earlier attempt ended in failures; what made it fail is put right, and systemd has started it since."""
    host.old, host.restarts, host.cpu_share = False, 50, 0.5
    for _ in range(3):
        with pytest.raises(StillConverting):
            host.start()
    assert host.restarted == []
    host.dies = True
    with pytest.raises(AdapterError, match="keeps ending"):
        host.start()


def test_the_runner_reads_every_field_of_the_progress(host: Host) -> None:
    host.cpu_share = 0.5
    with pytest.raises(StillConverting) as caught:
        host.start()
    reported = {"conversion": caught.value.progress}
    assert reports.read_detail("controller", reported) == (reported, [])


def test_cpu_time_is_that_of_the_process_and_of_its_ended_children(tmp_path: Path) -> None:
    (tmp_path / "12").mkdir()
    fields = " ".join(str(number) for number in range(4, 30))
    (tmp_path / "12" / "stat").write_text(f"12 (a ) name) S {fields}\n")
    ticks = 14 + 15 + 16 + 17  # utime, stime, cutime, cstime, as proc(5) numbers them
    assert cpu_seconds("12", tmp_path) == pytest.approx(ticks / os.sysconf("SC_CLK_TCK"))
    assert cpu_seconds("13", tmp_path) == 0.0
