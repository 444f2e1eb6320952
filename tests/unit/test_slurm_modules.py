"""Decisions of modules about Slurm, with Slurm, systemd and apt in memory."""

import functools
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.module_utils.host.digest import content_version
from ansible.module_utils.host.errors import AdapterError
from ansible.module_utils.host.ledger import Ledger
from ansible.module_utils.slurm.backups import COMPLETE
from ansible.module_utils.slurm.kept import Kept

from plugins.modules import (
    slurm_accounting,
    slurm_backup,
    slurm_follow,
    slurm_packages,
    slurm_partitions,
    slurm_restore,
)


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(AdapterError) as refused:
        call()
    return refused.value.code


# -- slurm_accounting ------------------------------------------------------------------------------------------------


def sacctmgr(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> slurm_accounting.Sacctmgr:
    program = directory / "sacctmgr"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    return slurm_accounting.Sacctmgr(directory / "own.conf")


def test_accounting_is_asked_with_a_configuration_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = sacctmgr(tmp_path, monkeypatch, 'echo "$SLURM_CONF|$*"')
    command.wait(0.0)
    [[config, arguments]] = command.rows("account", "format=account")
    assert config == str(tmp_path / "own.conf")
    assert arguments == "--noheader --parsable2 show account format=account"


def test_a_slurmdbd_that_does_not_answer_is_retried_and_a_refusal_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = sacctmgr(tmp_path, monkeypatch, "echo 'Connection refused' >&2; exit 1")
    assert refusal(lambda: command.wait(0.0)) == "accounting_unreachable"
    assert refusal(lambda: command.change("add", "user", "alice")) == "accounting_failed"


# -- slurm_backup ----------------------------------------------------------------------------------------------------


def test_a_change_has_one_backup_and_an_unfinished_one_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []
    monkeypatch.setattr(slurm_backup, "Kept", functools.partial(Kept, directory=tmp_path / "kept"))
    monkeypatch.setattr(slurm_backup, "check_room", lambda *_: None)
    monkeypatch.setattr(slurm_backup, "take_backup", lambda *_, **more: taken.append(more["change"]))
    pruned: list[tuple[int, set[str]]] = []
    monkeypatch.setattr(slurm_backup, "prune", lambda _room, keep, spare: pruned.append((keep, spare)))
    params = {"owner": "controller/packages", "name": "op-1", "database": "db", "target": "2", "keep": 2}
    params |= {"state": str(tmp_path / "state"), "timeout": 1.0}
    changed, path = slurm_backup.back_up(params)
    assert (changed, path, pruned) == (True, tmp_path / "kept" / "backups" / "op-1", [(2, {"op-1"})])
    path.mkdir()
    assert slurm_backup.back_up(params)[0], "the first run was killed"
    (path / COMPLETE).touch()
    assert slurm_backup.back_up(params) == (False, path)
    assert taken == ["op-1", "op-1"]


# -- slurm_follow ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("present", "state", "fetched", "expected"),
    [
        ("new", "active", "new", False),
        ("old", "active", "new", True),
        ("old", "failed", "new", "slurmd_not_active"),
        ("old", "active", "old", "config_not_fetched"),
    ],
)
def test_slurmd_is_restarted_only_for_a_configuration_that_it_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, present: str, state: str, fetched: str, expected: bool | str
) -> None:
    cache = tmp_path / "slurm.conf"
    cache.write_text(present)
    restarts: list[str] = []

    def request(verb: str, name: str) -> None:
        restarts.append(f"{verb} {name}")
        cache.write_text(fetched)

    monkeypatch.setattr(slurm_follow, "state_of", lambda _name: {"ActiveState": state})
    monkeypatch.setattr(slurm_follow, "request", request)
    monkeypatch.setattr(slurm_follow, "listening", lambda _port: True)
    monkeypatch.setattr(slurm_follow, "POLL_SECONDS", 0.0)

    def follow() -> bool:
        return slurm_follow.follow(cache, content_version(b"new"), 6818, patience=0.0, seconds=0.0)

    assert (refusal(follow) if isinstance(expected, str) else follow()) == expected
    assert restarts == (["restart slurmd"] if state == "active" and present == "old" else [])


# -- slurm_packages --------------------------------------------------------------------------------------------------

NOW, NEXT = "24.11.5-4", "24.11.6-1"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Calls a mode with NOW installed and both versions on offer."""
    monkeypatch.setattr(slurm_packages, "Kept", functools.partial(Kept, directory=tmp_path / "kept"))
    monkeypatch.setattr(slurm_packages, "Ledger", functools.partial(Ledger, directory=tmp_path / "state"))
    monkeypatch.setattr(slurm_packages, "installed_slurm", lambda: {"slurmctld": NOW})
    monkeypatch.setattr(slurm_packages, "refresh_index", lambda: None)
    monkeypatch.setattr(slurm_packages, "Mover", lambda *_: SimpleNamespace(check=lambda _target: None))

    def call(mode: str, *, offers: tuple[str, ...] = (NEXT, NOW), **more: Any) -> dict[str, Any]:
        monkeypatch.setattr(slurm_packages, "offered", lambda *_: list(offers))
        params: dict[str, Any] = {"owner": "controller/packages", "version": "", "window": {}, "source": None}
        params |= {"accept_no_way_back": False, "change": "op-1", "across_series": False}
        result: dict[str, Any] = getattr(slurm_packages, mode)(params | more)
        return result

    return call


def test_a_move_needs_a_backup_unless_an_earlier_run_took_one(
    packages: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    first = packages("plan")
    assert (first["target"], first["needs_backup"], first["from"], first["backup"]) == (NEXT, True, NOW, "")
    assert packages("plan", offers=(NOW,))["needs_backup"] is False, "nothing moves"
    Kept("x", tmp_path / "kept").write("move", {"from": "24.11.4-1", "backup": "/b/op-1"})
    again = packages("plan")
    assert (again["needs_backup"], again["from"], again["backup"]) == (False, "24.11.4-1", "/b/op-1")


def test_a_move_without_a_way_back_has_to_be_accepted(packages: Callable[..., dict[str, Any]]) -> None:
    assert refusal(lambda: packages("plan", offers=(NEXT,))) == "no_way_back"
    assert packages("plan", offers=(NEXT,), accept_no_way_back=True)["target"] == NEXT


def test_a_rollback_uses_its_point_once_and_stays_in_its_series(
    packages: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    kept = Kept("x", tmp_path / "kept")
    assert refusal(lambda: packages("plan_back")) == "nothing_to_return_to"
    kept.write("point", {"packages": {"slurmctld": "24.11.4-1"}})
    assert packages("plan_back")["target"] == "24.11.4-1"
    kept.write("point", {"packages": {"slurmctld": "24.11.4-1"}, "returned_by": "op-0"})
    assert refusal(lambda: packages("plan_back")) == "nothing_to_return_to"
    assert refusal(lambda: packages("plan_back", version="23.02.1-1")) == "rollback_across_series"
    assert packages("plan_back", version="23.02.1-1", across_series=True)["moves"] is True


# -- slurm_partitions ------------------------------------------------------------------------------------------------


@pytest.fixture
def partitions(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """States as slurmctld has them. `stuck` does not change; without a partition slurmctld does not answer."""
    states = {"main": "UP", "night": "DOWN", "stuck": "UP"}

    def update(*command: str) -> tuple[int, str, str]:
        name, state = (one.partition("=")[2] for one in command[2:])
        if name == "stuck":
            return 1, "", "Invalid partition"
        states[name] = state
        return 0, "", ""

    def show(*_: str) -> str | None:
        return "\n".join(f"PartitionName={name} State={state} X=1" for name, state in states.items()) or None

    monkeypatch.setattr(slurm_partitions, "ask", show)
    monkeypatch.setattr(slurm_partitions, "run", update)
    return states


def test_only_partitions_in_another_state_are_changed_and_a_dry_run_changes_none(partitions: dict[str, str]) -> None:
    wanted = {"main": "DOWN", "night": "DOWN"}
    assert slurm_partitions.set_states(wanted, None, dry=True)["changes"] == ["main"]
    assert partitions["main"] == "UP"
    done = slurm_partitions.set_states(wanted, None, dry=False)
    assert (done["changes"], done["before"]["main"], done["partitions"]["main"]) == (["main"], "UP", "DOWN")


def test_a_partition_that_does_not_change_and_a_silent_slurmctld_are_errors(partitions: dict[str, str]) -> None:
    assert refusal(lambda: slurm_partitions.set_states({}, "DOWN", dry=False)) == "partition_unchanged"
    assert partitions["main"] == "DOWN", "every partition was asked for"
    partitions.clear()
    assert refusal(lambda: slurm_partitions.set_states({"main": "UP"}, None, dry=False)) == "slurm_silent"


# -- slurm_restore ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "needed", "expected"),
    [
        ("list", "", ([], [])),
        ("check", "", ([], ["check"])),
        ("check", NEXT, (["source"], ["check"])),
        ("restore", NEXT, (["source"], ["slurmdbd", "slurmctld"])),
    ],
)
def test_a_restore_needs_a_package_source_only_for_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, needed: str, expected: tuple[list[str], list[str]]
) -> None:
    opened: list[str] = []
    done: list[str] = []

    def package_source(*_: Any) -> Any:
        opened.append("source")
        return nullcontext()

    class Restore:
        packages = needed

        def check(self) -> dict[str, Any]:
            done.append("check")
            return {"packages": needed}

        def run(self, units: list[dict[str, Any]], _seconds: float) -> dict[str, Any]:
            done.extend(unit["name"] for unit in units)
            return {}

    monkeypatch.setattr(slurm_restore, "Kept", functools.partial(Kept, directory=tmp_path / "kept"))
    monkeypatch.setattr(slurm_restore, "Ledger", functools.partial(Ledger, directory=tmp_path / "state"))
    monkeypatch.setattr(slurm_restore, "Restore", lambda *_: Restore())
    monkeypatch.setattr(slurm_restore, "package_source", package_source)
    params: dict[str, Any] = {"owner": "controller/packages", "mode": mode, "backup": "op-1", "database": "db"}
    params |= {"accept_unlabelled": False, "live_timeout": 1.0, "source": None, "source_login": None, "state": "/s"}
    result = slurm_restore.run_mode(params)
    assert (opened, done) == expected
    assert mode != "list" or result == {"backups": []}
