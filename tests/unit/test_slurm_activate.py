"""A configuration on trial is confirmed or taken back, also by whoever comes after a run that was killed."""

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from ansible.module_utils.host.errors import AdapterError
from ansible.module_utils.slurm import activate as slurm_activate
from ansible.module_utils.slurm.activate import Activation
from ansible.module_utils.slurm.kept import Kept
from ansible.module_utils.slurm.watch import Cluster

OLD, NEW, BAD = ({"slurm.conf": f"MinJobAge={age}\n"} for age in (1, 2, 3))


class Killed(BaseException):
    """As SIGKILL: nothing of ours runs after it."""


@dataclass
class FakeHost:
    """A slurmctld that serves any configuration but BAD, and a run that can be killed at any of its steps."""

    directory: Path
    series: str = "22.05"
    disk: dict[str, str] = field(default_factory=lambda: dict(OLD))
    memory: dict[str, str] = field(default_factory=lambda: dict(OLD))
    refuses_reconfigure: bool = False
    steps: list[str] = field(default_factory=list)
    killed_at: int = -1
    held: bool = False

    def step(self, what: str) -> None:
        if len(self.steps) == self.killed_at:
            self.killed_at = -1
            raise Killed(what)
        self.steps.append(what)

    # -- what the code under test sees --
    def write(self, files: dict[str, str]) -> None:
        self.step("write")
        self.disk = dict(files)

    def hold_down(self) -> None:
        self.held = True

    def restart(self, unit: str) -> None:
        assert self.held, "a node that a person set down would be put back to work"
        self.step(f"restart {unit}")
        self.memory = dict(self.disk)

    def reconfigure(self) -> str | None:
        assert self.held, "a node that a person set down would be put back to work"
        self.step("reconfigure")
        if self.refuses_reconfigure:
            return "slurm_reconfigure error: Unable to contact"
        self.memory = dict(self.disk)
        return None

    def runs(self) -> bool:
        return True

    def running_series(self) -> str:
        return self.series

    def look_at_cluster(self) -> Cluster:
        return Cluster(["w1"], ["w1"])

    def is_loaded(self) -> bool:
        return self.memory == self.disk

    def problem(self, before: Cluster) -> str | None:
        assert before.nodes == ["w1"]
        return "slurmctld is failed and does not answer" if self.memory == BAD else None

    def watch(self, before: Cluster, _seconds: float) -> str | None:
        self.step("watch")
        return self.problem(before)

    @property
    def kept(self) -> Kept:
        return Kept("test", self.directory)

    def bring(self, files: dict[str, str]) -> str:
        """As the module does it: finish an interrupted trial, then go live or check that the files are loaded."""
        live = Activation(self.kept, self.write, 1)
        live.finish_interrupted(files)
        return live.go_live(files, "new") if self.disk != files else str(live.ensure_loaded())


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    fake = FakeHost(tmp_path / "kept")
    monkeypatch.setattr(slurm_activate, "slurm_watch", fake)
    monkeypatch.setattr(slurm_activate, "request", lambda _verb, unit: fake.restart(unit))
    fake.kept.write("good", {"files": OLD, "wish": "old"})
    return fake


def test_what_serves_is_confirmed_and_is_the_last_good_from_then_on(host: FakeHost) -> None:
    assert host.bring(NEW) == "restart"
    assert (host.disk, host.memory) == (NEW, NEW)
    assert host.kept.read("good") == {"files": NEW, "wish": "new"}
    assert host.kept.read("trial") is None


def test_what_does_not_serve_is_taken_back_by_itself(host: FakeHost) -> None:
    with pytest.raises(AdapterError) as caught:
        host.bring(BAD)
    assert caught.value.code == "config_taken_back"
    assert "does not answer" in caught.value.message
    assert (host.disk, host.memory) == (OLD, OLD)
    assert host.kept.read("good") == {"files": OLD, "wish": "old"}
    assert host.kept.read("trial") is None


def test_a_daemon_that_refuses_to_reconfigure_is_not_restarted_to_take_it_back(host: FakeHost) -> None:
    host.series, host.refuses_reconfigure = "24.11", True
    with pytest.raises(AdapterError, match="scontrol reconfigure failed"):
        host.bring(NEW)
    assert "restart slurmctld" not in host.steps
    assert (host.disk, host.memory) == (OLD, OLD)


@pytest.mark.parametrize("series", ["22.05", "24.11"])
@pytest.mark.parametrize("files", [NEW, BAD])
@pytest.mark.parametrize("then", [OLD, NEW, BAD])
def test_a_run_killed_at_any_step_is_finished_by_the_next_of_any_kind(
    host: FakeHost, series: str, files: dict[str, str], then: dict[str, str]
) -> None:
    host.series = series
    for step in range(12):
        host.disk, host.memory, host.steps, host.killed_at = dict(OLD), dict(OLD), [], step
        host.kept.write("good", {"files": OLD, "wish": "old"})
        with contextlib.suppress(Killed, AdapterError):
            host.bring(files)
        host.killed_at = -1
        try:
            host.bring(then)
        except AdapterError as error:
            assert then == BAD
            assert error.code == "config_taken_back"
        assert host.memory == host.disk != BAD
        assert host.kept.read("trial") is None
        assert then == BAD or host.disk == then


def test_a_trial_left_behind_is_known_to_who_keeps_the_last_good(host: FakeHost) -> None:
    host.killed_at = 2
    with pytest.raises(Killed):
        host.bring(BAD)
    assert host.memory == BAD
    host.bring(OLD)
    assert (host.disk, host.memory) == (OLD, OLD)


def test_a_configuration_that_was_not_loaded_is(host: FakeHost) -> None:
    host.disk = dict(NEW)
    host.kept.write("good", {"files": NEW, "wish": "new"})
    assert Activation(host.kept, host.write, 1).ensure_loaded() == "restart"
    assert host.memory == NEW


def test_one_change_in_several_steps_has_one_point_to_return_to(host: FakeHost) -> None:
    host.kept.keep_point("op-1", {"slurmctld": "1"})
    host.kept.write("good", {"files": NEW, "wish": "new"})
    host.kept.keep_point("op-1", {"slurmctld": "2"})
    point = host.kept.read("point")
    assert point is not None and (point["files"], point["packages"]) == (OLD, {"slurmctld": "1"})
    host.kept.keep_point("op-2", {"slurmctld": "2"})
    point = host.kept.read("point")
    assert point is not None and (point["files"], point["packages"]) == (NEW, {"slurmctld": "2"})
