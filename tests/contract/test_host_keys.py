"""Pinning host keys at first sight, against a real platform: once, before any play, also with a kill or two runners.

Hosts are simulated: a test decides which keys they show.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from runner.act import keyscan
from runner.act.keyscan import ScannedHost
from runner.intent.host_keys import fingerprint
from runner.model.plan import AdapterError
from tests.commands import ends
from tests.contract.scene import race
from tests.contract.simulated_hosts import Hosts, work
from tests.platform_process import Doc, Platform, Project
from tests.runner_process import environment, gpuaas_slurm

KEYS = ["ssh-ed25519 " + letter * 68 for letter in "ABCDEFGH"]


@pytest.fixture
def project(platform: Platform, dialable: Project) -> Project:
    for number, allocation_id in enumerate(dialable.allocation_ids):
        connection = {"host": f"192.0.2.{number + 1}", "port": 22, "username": "ops", "host_keys": []}
        platform.control.put_allocation(dialable.project_id, allocation_id, connection=connection, gpus=0)
    return dialable


def keys_of(member: Doc) -> list[str]:
    found: list[str] = member["adapter_detail"]["host_keys_pinned"]["keys"]
    return found


def shows(monkeypatch: pytest.MonkeyPatch, key: Callable[[], str]) -> list[set[str]]:
    """Each scanned host shows the key that `key` returns. Returns the scanned names of each call."""
    calls: list[set[str]] = []

    def scan(wanted: Mapping[str, tuple[str, int]]) -> tuple[dict[str, ScannedHost], dict[str, AdapterError]]:
        calls.append(set(wanted))
        return {name: ScannedHost(host, (key(),)) for name, (host, _) in wanted.items()}, {}

    monkeypatch.setattr(keyscan, "scan", scan)
    return calls


def test_pins_are_in_the_records_before_any_play_and_all_hosts_are_scanned_once(
    project: Project, hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = project.deploy(workers=3)
    calls = shows(monkeypatch, lambda: KEYS[0])
    pinned_at_play: list[bool] = []
    hosts.meanwhile = lambda: pinned_at_play.extend(
        "host_keys_pinned" in one["adapter_detail"] for one in project.shown(made, "/members")
    )
    planned = ends(gpuaas_slurm(environment(project), "plan"), 0).stdout
    assert "pin host keys" in planned
    with capture_logs() as logs:
        assert work(project) == []
    pinned = [line["keys"] for line in logs if line["event"] == "host keys pinned at first contact"]
    assert pinned == [fingerprint(KEYS[0].split()[1])] * 4
    assert [len(asked) for asked in calls] == [4]
    assert pinned_at_play == [True] * 4 * len(hosts.runs)
    members = project.shown(made, "/members")
    assert [(one["status"], keys_of(one)) for one in members] == [("ready", [KEYS[0]])] * 4
    shown = ends(gpuaas_slurm(environment(project), "get", "members", "-o", "wide"), 0).stdout
    assert "PINNED" in shown and shown.count("SHA256:") == 4


def test_a_runner_that_ends_before_it_writes_the_pin_trusts_no_host(
    project: Project, hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = project.deploy(workers=1)

    def killed(*_: Any) -> Any:
        raise RuntimeError("the runner ends here")

    monkeypatch.setattr(keyscan, "scan", killed)
    (problem,) = work(project)
    assert problem.endswith("the runner ends here") and made["id"] in problem
    assert hosts.runs == []
    assert not [one for one in project.shown(made, "/members") if "host_keys_pinned" in one["adapter_detail"]]
    shows(monkeypatch, lambda: KEYS[1])
    assert work(project) == []
    assert {tuple(keys_of(one)) for one in project.shown(made, "/members")} == {(KEYS[1],)}


def test_of_two_runners_one_pins_and_what_it_pinned_stands(
    project: Project, hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = project.deploy(workers=2)
    fresh = itertools.cycle(KEYS)
    calls = shows(monkeypatch, lambda: next(fresh))
    race(project, lambda: project.shown(made)["status"] == "running")
    asked = [name for names in calls for name in names]
    assert len(asked) == len(set(asked)) == 3, "a host was scanned twice"
    assert sorted(key for one in project.shown(made, "/members") for key in keys_of(one)) == KEYS[:3]
    assert hosts.overlaps == []


def test_trust_replaces_the_pinned_key_of_a_host(
    project: Project, hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = project.deploy(workers=0)
    shows(monkeypatch, lambda: KEYS[0])
    assert work(project) == []
    (controller,) = project.shown(made, "/members")
    traced = controller["adapter_detail"] | {"trace_id": "a" * 32}
    path = f"{project.path}/app-instances/{made['id']}/members/{controller['id']}"
    assert project.adapter.patch(path, {"adapter_detail": traced}).status_code == 200
    done = gpuaas_slurm(
        environment(project), "trust", controller["id"], "--reason", "a test", "--key", f"{KEYS[2]} root@gs-1"
    )
    ends(done, 0)
    (controller,) = project.shown(made, "/members")
    assert keys_of(controller) == [KEYS[2]]
    (note,) = project.shown(made)["status_detail"]["by_hand"]["notes"]
    last = controller["adapter_detail"]
    assert (last["correlation_id"], last["trace_id"]) == (note["correlation_id"], None), "not the trace of other work"
    wrong = gpuaas_slurm(environment(project), "trust", controller["id"], "--reason", "a test", "--key", "no key")
    ends(wrong, 2)
    assert "not an ssh public key" in wrong.stderr, wrong.stderr
