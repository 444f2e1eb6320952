"""Units stopped in order and restarted by their age, on a systemd in memory."""

import time
from typing import Any

import pytest
from ansible.module_utils.host import unit_actions
from ansible.module_utils.host import units as converge_units
from ansible.module_utils.host.errors import AdapterError
from ansible.module_utils.host.restore import units as restore_units


class FakeSystemd:
    def __init__(self, **ages: float) -> None:
        self.units = {name: self._state(age) for name, age in ages.items()}
        self.asked: list[str] = []

    @staticmethod
    def _state(age: float) -> dict[str, str]:
        started = int((time.monotonic() - age) * 1e6)
        return {
            "LoadState": "loaded",
            "ActiveState": "active",
            "UnitFileState": "enabled",
            "ExecMainStartTimestampMonotonic": str(started),
        }

    def show(self, names: list[str]) -> dict[str, dict[str, str]]:
        return {name: dict(self.units[name]) for name in names if name in self.units}

    def command(self, *arguments: str, **_: Any) -> None:
        verb, name = [one for one in arguments if not one.startswith("--")]
        if verb in ("stop", "restart"):
            self.asked.append(f"{verb} {name}")
        state = self.units[name]
        if verb == "stop":
            state["ActiveState"] = "inactive"
        elif verb == "restart":
            self.units[name] = self._state(0) | {"UnitFileState": state["UnitFileState"]}
        elif verb in ("enable", "disable"):
            state["UnitFileState"] = f"{verb}d"


@pytest.fixture
def systemd(monkeypatch: pytest.MonkeyPatch) -> FakeSystemd:
    fake = FakeSystemd(slurmctld=900, slurmdbd=900, mariadb=900, munge=900)
    for module in (converge_units, restore_units):
        monkeypatch.setattr(module, "show", fake.show)
        monkeypatch.setattr(module, "systemctl", fake.command)
    return fake


ORDER = ["slurmctld", "slurmdbd", "mariadb", "munge"]


def wanted(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "timeout": 5} for name in names]


def test_units_are_stopped_in_the_order_given_and_do_not_start_at_boot(systemd: FakeSystemd) -> None:
    changes, left = unit_actions.stop_in_order(ORDER, {}, dry=False)
    assert systemd.asked == [f"stop {name}" for name in ORDER] and left == {}
    assert changes == [f"unit {name} stopped" for name in ORDER]
    assert {state["UnitFileState"] for state in systemd.units.values()} == {"disabled"}
    assert unit_actions.stop_in_order(ORDER, {}, dry=False) == ([], {})


def test_a_unit_that_ran_before_us_is_left_and_named(systemd: FakeSystemd) -> None:
    ledger: dict[str, Any] = {
        "unit:mariadb": {"before": {"ActiveState": "active"}},
        "unit:munge": {"before": {"ActiveState": None}},
    }
    _, left = unit_actions.stop_in_order(ORDER, unit_actions.found_running(ledger), dry=False)
    assert list(left) == ["mariadb"] and systemd.units["mariadb"]["ActiveState"] == "active"


def test_only_what_is_older_is_restarted_in_order(systemd: FakeSystemd) -> None:
    systemd.units["slurmdbd"] = systemd._state(5)
    assert unit_actions.restart_older(wanted("slurmdbd", "slurmctld"), 60, dry=False) == ["unit slurmctld restarted"]
    assert systemd.asked == ["restart slurmctld"]
    assert unit_actions.restart_older(wanted("slurmdbd", "slurmctld"), 60, dry=False) == []


def test_without_an_age_all_are_restarted(systemd: FakeSystemd) -> None:
    unit_actions.restart_older(wanted("slurmdbd", "slurmctld"), None, dry=False)
    assert systemd.asked == ["restart slurmdbd", "restart slurmctld"]


def test_what_a_stop_left_down_and_off_is_brought_back(systemd: FakeSystemd) -> None:
    unit_actions.stop_in_order(["slurmctld"], {}, dry=False)
    unit_actions.restart_older(wanted("slurmctld"), 60, dry=False)
    assert (systemd.units["slurmctld"]["ActiveState"], systemd.units["slurmctld"]["UnitFileState"]) == (
        "active",
        "enabled",
    )


def test_a_masked_unit_is_a_persons_and_is_not_forced(systemd: FakeSystemd) -> None:
    systemd.units["slurmdbd"]["LoadState"] = "masked"
    with pytest.raises(AdapterError) as refusal:
        unit_actions.restart_older(wanted("slurmdbd"), None, dry=False)
    assert refusal.value.code == "unit_masked" and systemd.asked == []


def test_the_old_process_is_not_taken_for_the_new_one(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converge_units, "systemctl", lambda *_, **__: None)  # systemd has not begun yet
    monkeypatch.setattr(converge_units, "journal", lambda *_: [])
    with pytest.raises(AdapterError):
        converge_units.restart({"name": "munge", "timeout": 0.3})


def test_a_dry_run_touches_nothing(systemd: FakeSystemd) -> None:
    assert unit_actions.stop_in_order(ORDER, {}, dry=True)[0] == [f"unit {name} stopped" for name in ORDER]
    assert unit_actions.restart_older(wanted("munge"), None, dry=True) == ["unit munge restarted"]
    assert systemd.asked == []
