"""The module slurm_config: what is tried, written and kept, with slurmctld in memory."""

import functools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.module_utils.host.digest import content_version
from ansible.module_utils.host.errors import AdapterError
from ansible.module_utils.host.ledger import Ledger
from ansible.module_utils.slurm.kept import Kept

from plugins.modules import slurm_config


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(AdapterError) as refused:
        call()
    return refused.value.code


class Controller:
    """The files and documents of a controller in a directory. The trial, and slurmctld, accept every configuration."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory, self.kept = root / "slurm", Kept("controller/slurmctld", root / "kept")
        self.directory.mkdir()
        self.done: list[str] = []
        monkeypatch.setattr(slurm_config, "Kept", functools.partial(Kept, directory=root / "kept"))
        monkeypatch.setattr(slurm_config, "Ledger", functools.partial(Ledger, directory=root / "state"))
        monkeypatch.setattr(slurm_config, "run_trial", lambda *_: self.done.append("trial"))
        monkeypatch.setattr(slurm_config, "installed_slurm", lambda: {"slurmctld": "24.11.5-4"})
        monkeypatch.setattr(slurm_config, "Activation", self.activation)

    def activation(self, kept: Kept, write: Callable[[dict[str, str]], None], _seconds: float) -> SimpleNamespace:
        def go_live(files: dict[str, str], _desired: str) -> str:
            self.done.append("live")
            write(files)
            return "restart"

        return SimpleNamespace(
            is_first=lambda _directory: kept.read("good") is None,
            finish_interrupted=lambda _files: None,
            ensure_loaded=lambda: None,
            go_live=go_live,
        )

    def converge(self, dry: bool = False, source: str = "rendered", **more: Any) -> dict[str, Any]:
        params: dict[str, Any] = {"owner": "controller/slurmctld", "directory": str(self.directory), "source": source}
        params |= {"managed": {"ClusterName": "gs0"}, "requested": {}, "partitions": [], "companions": {"c.conf": "x"}}
        params |= {"slurm_user": "slurm", "timeout": 1.0, "live_timeout": 1.0, "desired_config": "d1", "change": "op-1"}
        return slurm_config.converge(params | more, dry)

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir())


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Controller:
    return Controller(tmp_path, monkeypatch)


def test_the_first_configuration_is_tried_and_written_once(configured: Controller) -> None:
    first = configured.converge()
    assert (configured.done, configured.names, first["loaded_by"]) == (["trial"], ["c.conf", "slurm.conf"], "none")
    assert first["config_version"] == content_version((configured.directory / "slurm.conf").read_bytes())
    assert configured.converge()["changes"] == [] and configured.done == ["trial"]


def test_a_changed_configuration_goes_live_with_a_point_to_return_to(configured: Controller) -> None:
    before = configured.converge()["config_version"]
    done = configured.converge(requested={"MinJobAge": 120}, desired_config="d2")
    assert (configured.done[1:], done["loaded_by"], done["desired_config"]) == (["trial", "live"], "restart", "d2")
    back = configured.converge(source="point")
    assert (back["config_version"], back["desired_config"]) == (before, "d1")
    assert (configured.kept.read("point") or {})["returned_by"] == "op-1", "a point is used once"


def test_a_configuration_that_the_trial_refuses_changes_no_file(
    configured: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AdapterError("config_refused", "no", "intervention")

    monkeypatch.setattr(slurm_config, "run_trial", refuse)
    assert refusal(configured.converge) == "config_refused"
    assert configured.names == [] and configured.kept.read("good") is None


def test_a_host_without_a_stored_configuration_has_nothing_to_return_to(configured: Controller) -> None:
    for source in ("good", "point"):
        assert refusal(functools.partial(configured.converge, source=source)) == "nothing_to_return_to"
    assert configured.converge(dry=True)["changed"] and configured.names == configured.done == []
