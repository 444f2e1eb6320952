"""Action, lookup and vars plugins as ordinary Python: one behaviour of each, without a play."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import ansible.constants as constants
import pytest
from ansible.errors import AnsibleLookupError
from ansible.plugins.action.normal import ActionModule as Normal
from ansible.plugins.loader import action_loader
from ansible.utils.display import Display

from plugins.action import claimed, member_report
from plugins.lookup import runtime_secret
from runner.act import play_secrets

ROOT = Path(__file__).resolve().parents[2]
PROBED = {
    "os_id": "debian",
    "os_version": "12",
    "multiarch": "x86_64-linux-gnu",
    "hostname": "gs-2",
    "cpus": 2,
    "memory_mb": 1000,
    "gpus": [],
    "gres": "",
    "gres_conf": "",
    "process_control": "linuxproc",
    "addresses": ["10.0.0.9"],
    "cgroup": {"version": "v2", "writable": True},
    "slurm_version": "22.05.8",
}
SUPPORTED = [{"id": "debian", "version": "12", "name": "Debian-12", "slurm": "22.05"}]


def plugin(module: ModuleType, **arguments: Any) -> Any:
    """The module's action plugin for a task with these arguments."""
    task, templar = MagicMock(args=arguments, async_val=0, check_mode=False), MagicMock(template=lambda value: value)
    return module.ActionModule(task, MagicMock(), MagicMock(), MagicMock(), templar, MagicMock())


def test_a_module_that_changes_a_host_is_called_with_its_members_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Normal, "run", lambda self, _tmp, _variables: {"sent": self._task.args})
    variables = {"gpuaas_member_id": "m1", "gpuaas_fence": 4, "other": "x"}
    sent = plugin(claimed, mode="look", claim={"member": "forged"}).run(task_vars=variables)["sent"]
    assert sent == {"mode": "look", "claim": {"member": "m1", "number": 4}}


@pytest.mark.parametrize(
    ("nodes", "code"),
    [
        ({}, None),
        ({"gs-9": {"address": "10.0.0.3"}}, None),
        ({"gs-2": {"address": "10.0.0.9"}}, None),
        ({"gs-2": {"address": "gs-2"}}, None),
        ({"gs-2": {"address": "198.51.100.7"}}, None),
        ({"gs-2": {"address": "10.0.0.3"}}, "hostname_taken"),
        ({"gs-2": {"address": None}}, "hostname_taken"),
    ],
)
def test_a_host_joins_unless_another_machine_has_the_node_of_its_name(
    monkeypatch: pytest.MonkeyPatch, nodes: dict[str, Any], code: str | None
) -> None:
    action_loader.add_directory(str(ROOT / "plugins" / "action"))
    host_probe = importlib.import_module("plugins.action.host_probe")
    sent: list[dict[str, Any]] = []

    def run(self: Any, *_: Any) -> dict[str, Any]:
        sent.append(self._task.args)
        return PROBED

    monkeypatch.setattr(Normal, "run", run)
    action = plugin(host_probe, supported=SUPPORTED, cluster_nodes=nodes)
    answer = action.run(task_vars={"ansible_host": "198.51.100.7"})
    assert answer.get("adapter_error", {}).get("code") == code
    assert "cluster_nodes" not in sent[0], "the host does not get them"


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (None, None),
        ({"adapter_error": {"code": "disk_full", "message": "no room", "class": "intervention"}}, "disk_full"),
        ({"msg": "killed"}, "module_failed"),
    ],
)
def test_a_report_fails_with_the_error_of_the_module_that_it_reports(
    outcome: dict[str, Any] | None, code: str | None
) -> None:
    result = plugin(member_report, phase="munge", outcome=outcome).run(task_vars={})
    assert result["member_report"]["phase"] == "munge"
    assert (result.get("failed", False), result.get("adapter_error", {}).get("code")) == (code is not None, code)


@pytest.mark.parametrize("setting", ["DEFAULT_DEBUG", "DEFAULT_KEEP_REMOTE_FILES"])
def test_a_secret_is_withheld_if_ansible_would_print_or_keep_it(monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    asked: list[tuple[Any, ...]] = []

    def fetch(*wanted: Any) -> str:
        asked.append(wanted)
        return "a2V5"

    monkeypatch.setattr(runtime_secret.LookupModule, "set_options", lambda *_, **__: None)
    monkeypatch.setattr(runtime_secret.LookupModule, "get_option", lambda _self, name: name)
    monkeypatch.setattr(play_secrets, "fetch_secret", fetch)
    monkeypatch.setenv(play_secrets.SOCKET_VARIABLE, "/run/secrets.sock")
    lookup = runtime_secret.LookupModule()
    assert lookup.run(["munge_key"]) == ["a2V5"]
    monkeypatch.setattr(constants, setting, True)
    with pytest.raises(AnsibleLookupError, match="withheld"):
        lookup.run(["munge_key"])
    assert asked == [("/run/secrets.sock", "instance", "munge_key", "step")]


def test_text_of_hosts_is_printed_without_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Display, "display", Display.display)  # the plugin replaces it when it is loaded
    preload = importlib.import_module("plugins.vars.preload")
    printed: list[str] = []
    display = preload._without_control_characters(lambda _self, text, *_, **__: printed.append(text))
    display(None, "a\x1b[2Kb\x9bc\td\n")
    assert printed == ["a?[2Kb?c\td\n"]
    assert preload.VarsModule().get_vars() == {}
