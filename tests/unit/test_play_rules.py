"""The rules of playbooks as filters, and in real plays."""

from pathlib import Path
from types import ModuleType

import pytest

from plugins.filter import slurm_refusals, slurm_reports, slurm_targets
from runner.model.names import host_name
from runner.model.plan import Play
from tests.unit.lifecycle import serving
from tests.unit.local_plays import SECRETS, STUBS, LocalPlays
from tests.unit.worlds import add, controller, worker, world


@pytest.mark.parametrize("rules", [slurm_refusals, slurm_reports, slurm_targets])
def test_every_rule_is_a_filter(rules: ModuleType) -> None:
    functions = {name for name, one in vars(rules).items() if getattr(one, "__module__", "") == rules.__name__}
    public = {name for name in functions if not name.startswith("_")} - {"FilterModule"}
    assert set(rules.FilterModule().filters()) == public


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalPlays:
    return LocalPlays(tmp_path, monkeypatch)


@pytest.mark.parametrize("running", [True, False])
def test_a_cluster_with_a_running_job_is_not_stopped(local: LocalPlays, running: bool) -> None:
    chief, helper = controller(status="ready"), serving(2)
    jobs = [{"id": 7, "address": "7", "state": "RUNNING" if running else "PENDING", "nodes": ["w2"]}]
    local.module("slurm_snapshot", f"answer = {{'snapshot': {{**snapshot, 'jobs': {jobs!r}}}}}")
    local.module("host_units", "answer = {'units': {}, 'left': {}}")
    result = local.play(Play("test", "stop", (chief, helper)), world(members=(chief, helper)))
    codes = [error and error.code for error in (result.outcomes[chief.id].error, result.outcomes[helper.id].error)]
    assert codes == (["jobs_running", "controller_not_quiet"] if running else [None, None])
    assert len(local.asked("host_units")) == (0 if running else 2)


def test_by_hand_the_workers_of_the_run_are_drained_in_the_persons_name(local: LocalPlays) -> None:
    chief, leaver = controller(status="ready"), serving(2)
    done = local.by_hand("drain_worker", world(members=(chief, leaver)), chief, leaver)
    assert done.returncode == 0, done.stdout
    [asked] = local.asked("slurm_nodes")
    assert asked["drain"] == [{"nodes": ["w2"], "reason": "gpuaas:manual: requested by an operator"}]


def test_the_runners_orders_are_all_that_is_asked_of_slurm(local: LocalPlays) -> None:
    chief, leaver = controller(status="ready"), serving(2)
    orders = [{"nodes": ["w2"], "reason": "gpuaas:op-1: disk"}]
    step = Play("test", "drain_worker", (chief, leaver), work={"drain": orders, "requeue": ["7"]})
    outcome = local.play(step, world(members=(chief, leaver))).outcomes[leaver.id]
    [asked] = local.asked("slurm_nodes")
    assert (asked["drain"], asked["requeue"], asked["resume"]) == (orders, ["7"], [])
    assert (outcome.phase, outcome.error) == ("draining", None)


def test_a_recovery_by_hand_waits_for_started_workers_and_shows_their_nodes(local: LocalPlays) -> None:
    chief, broken, fine = controller(status="ready"), serving(2), serving(3)
    local.module(
        "mend_host",
        """
started = ["unit slurmd started"] if asked["claim"]["member"] == BROKEN else []
answer = {"changed": bool(started), "found": [], "changes": started, "units": {"slurmd": "active"}}
""".replace("BROKEN", repr(str(broken.id))),
    )
    done = local.by_hand("recover", world(members=(chief, broken, fine)), chief, broken, fine, undrain="true")
    assert done.returncode == 0, done.stdout
    assert [one["wait_for_nodes"] for one in local.asked("slurm_snapshot")] == [["w2"]]
    [[order]] = [one["resume"] for one in local.asked("slurm_nodes")]
    assert (sorted(order["nodes"]), order["owner"]) == (["w2", "w3"], "gpuaas:")
    assert "node: IDLE+DYNAMIC_NORM" in done.stdout and "node: not in the cluster" in done.stdout


@pytest.mark.parametrize("silent", [False, True])
def test_workers_follow_only_a_controller_that_reports_its_configuration(local: LocalPlays, silent: bool) -> None:
    chief, first, second = controller(status="ready"), serving(2), serving(3)
    if silent:
        local.module("slurm_snapshot", "snapshot['controller']['config_version'] = None\n" + STUBS["slurm_snapshot"])
    else:
        local.module("slurm_snapshot", STUBS["slurm_snapshot"] + "answer['serving'] = ['w2']\n")
    local.module("slurm_follow", "answer = {'restarted': True, 'config_version': 'sha256:abc', 'package_version': '1'}")
    run = local.play(Play("test", "follow", (chief, first, second)), world(members=(chief, first, second)))
    errors = [error and error.code for error in (run.outcomes[one.id].error for one in (first, second))]
    assert errors == (["controller_silent"] * 2 if silent else [None, None])
    waited = [one["wait_for_nodes"] for one in local.asked("slurm_snapshot") if "wait_for_nodes" in one]
    assert waited == ([] if silent else [["w2"]])


ROTATE = """
answer = {"ready": True, "changes": [], "skew": 0.0, "credential": "MUNGE:x", "switched_at": 1.0}
answer |= {"munge_version": "0.5.16", "munge_vulnerable": False}
if asked["mode"] == "stage" and asked["claim"]["member"] == REFUSES:
    answer = {"failed": True, "msg": "munge does not run"}
"""


@pytest.mark.parametrize("refuses", [False, True])
def test_a_host_that_cannot_stage_the_key_keeps_every_host_from_the_switch(local: LocalPlays, refuses: bool) -> None:
    members = (controller(status="ready"), serving(2), serving(3))
    local.module("munge_rotate", ROTATE.replace("REFUSES", repr(str(members[1].id) if refuses else "")))
    done = local.by_hand("rotate", world(members=members), *members)
    modes = [asked["mode"] for asked in local.asked("munge_rotate")]
    assert ("switch" in modes, "drop" in modes) == (not refuses, refuses)
    assert ("could not be staged on" in done.stdout, done.returncode == 0) == (refuses, not refuses), done.stdout
    [*times] = {asked["at"] for asked in local.asked("munge_rotate") if asked["mode"] == "switch"}
    assert len(times) == (0 if refuses else 1), "one time for all hosts"


@pytest.mark.parametrize("begun", [False, True])
def test_an_upgrade_that_an_earlier_run_began_keeps_its_backup(local: LocalPlays, begun: bool) -> None:
    chief = controller(status="ready")
    plan = {"now": "1", "target": "2", "moves": True, "from": "1", "backup": "/b/old" if begun else ""}
    local.module("slurm_packages", f"answer = {plan | {'needs_backup': not begun}!r}")
    local.module("slurm_backup", "answer = {'path': '/b/new'}")
    run = local.play(Play("test", "upgrade", (chief,)), world(members=(chief,)))
    assert run.outcomes[chief.id].error is None
    assert len(local.asked("slurm_backup")) == (0 if begun else 1)
    assert [one["backup"] for one in local.asked("slurm_packages") if one["mode"] == "move"] == [
        "/b/old" if begun else "/b/new"
    ]


def test_a_restart_by_hand_closes_the_partitions_that_were_closed(local: LocalPlays) -> None:
    chief, helper = controller(status="ready"), serving(2)
    local.module("slurm_snapshot", "snapshot['partitions']['night'] = 'DOWN'\n" + STUBS["slurm_snapshot"])
    local.module("host_units", "answer = {'units': {'slurmd': 'active'}, 'started': {'slurmd': 7.0}, 'elapsed': None}")
    local.module("slurm_partitions", "answer = {}")
    done = local.by_hand("restart", world(members=(chief, helper)), chief, helper)
    assert done.returncode == 0, done.stdout
    assert [one["states"] for one in local.asked("slurm_partitions")] == [{"night": "DOWN"}]
    assert [one["started"] for one in local.asked("slurm_snapshot") if "started" in one] == [{"w2": 7.0}]


@pytest.mark.parametrize("wanted", ["i1", "i2"])
def test_a_host_is_cleaned_of_the_instance_that_it_serves_only(local: LocalPlays, wanted: str) -> None:
    host = serving(2)
    local.module("restore_host", STUBS["restore_host"] + "answer['instance'] = 'i1'\n")
    done = local.by_hand("clean_host", world(members=(host,)), host, gpuaas_clean_instance=wanted)
    assert (done.returncode == 0, "serves instance i1, not i2" in done.stdout) == (wanted == "i1", wanted == "i2")
    assert {one["mode"] for one in local.asked("restore_host")} == (
        {"look", "stop", "clean"} if wanted == "i1" else {"look"}
    )


def test_a_host_with_the_name_of_another_machines_node_does_not_join(local: LocalPlays) -> None:
    chief, joins = controller(status="ready"), worker(add(2), 2)
    local.module("host_probe", STUBS["host_probe"] + "answer |= {'hostname': 'victim', 'addresses': ['10.0.0.2']}\n")
    run = local.play(Play("test", "add_worker", (chief, joins)), world(members=(chief, joins)))
    error = run.outcomes[joins.id].error
    assert error is not None and (error.code, error.klass) == ("hostname_taken", "intervention")
    assert "at 10.0.0.3" in error.message
    assert [one for asked in local.asked("host_probe") for one in asked if one == "cluster_nodes"] == []
    assert local.asked("converge_host") == []


def test_initial_workers_join_only_a_controller_that_answers(local: LocalPlays) -> None:
    chief, joins = controller(status="reconciling"), worker(add(2), 2)
    local.module("slurm_snapshot", "snapshot['controller']['ping'] = 'DOWN'\n" + STUBS["slurm_snapshot"])
    local.module("slurm_config", "answer = {'desired_config': 'x'}")
    local.module("slurm_accounting", "answer = {}")
    (local.bundle / "plugins" / "lookup" / "runtime_secret.py").write_text(SECRETS.replace("a2V5", "a2V5" * 11))
    run = local.play(Play("test", "deploy", (chief, joins)), world(members=(chief, joins)))
    assert run.outcomes[chief.id].error is None and run.outcomes[chief.id].phase == "baseline"
    error = run.outcomes[joins.id].error
    assert error is not None and (error.code, error.klass) == ("controller_silent", "retryable")
    assert {one["host"] for one in local.asked("converge_host")} == {host_name(chief)}
