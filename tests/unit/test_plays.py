"""How a run of real ansible-runner ends: well, out of time, stopped, without hosts, or not at all."""

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from ansible.module_utils.slurm.leave import owns

from runner.act.play_queue import PlaySlot
from runner.act.plays import OwnEvents, PlayError, stopped_result
from runner.model.names import host_name
from runner.model.plan import AdapterError, Play
from runner.slurm.app import SLURM
from runner.slurm.node_rules import ANY_OPERATION
from runner.slurm.notes import WorkerNotes
from runner.slurm.readiness import controller_problem, worker_problem
from runner.translate import RunResult
from tests.unit.lifecycle import serving
from tests.unit.local_plays import STUBS, LocalPlays
from tests.unit.worlds import add, controller, worker, world

SLOW = """
- hosts: controller:worker
  gather_facts: false
  tasks:
    - member_report: {phase: "{{ 'serving' if gpuaas_component_key == 'controller' else 'joining' }}"}
    - ansible.builtin.command: sleep 60
"""


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalPlays:
    return LocalPlays(tmp_path, monkeypatch)


def test_a_join_by_the_real_playbook_brings_detail_and_the_controllers_snapshot(local: LocalPlays) -> None:
    members = (controller(status="ready"), worker(add(2), 2))
    run = local.play(Play("test", "add_worker", members), world(members=members))
    assert {outcome.error for outcome in run.outcomes.values()} == {None}
    detail = run.outcomes[members[1].id].detail
    assert run.outcomes[members[1].id].phase == "serving"
    assert worker_problem(run.snapshot, WorkerNotes.read(detail)) is None
    assert controller_problem(run.snapshot) is None


def test_a_join_lifts_the_drain_of_an_operation_and_leaves_a_persons(local: LocalPlays) -> None:
    chief, removed, held = members = (controller(status="ready"), worker(add(2), 2), worker(add(3), 3))
    reasons = {host_name(removed): f"gpuaas:{UUID(int=5)}: removed", host_name(held): "gpuaas:manual: new disk"}
    drained = "".join(
        f"snapshot['nodes'][{name!r}] = {{**node, 'flags': ['DRAIN'], 'reason': {reason!r}}}\n"
        for name, reason in reasons.items()
    )
    local.module("slurm_snapshot", drained + STUBS["slurm_snapshot"])
    run = local.play(Play("test", "add_worker", members), world(members=members))
    assert run.outcomes[chief.id].error is None
    (asked,) = local.asked("slurm_nodes")
    assert asked["resume"] == [{"nodes": [host_name(removed)], "owner": ANY_OPERATION}]
    assert owns(ANY_OPERATION, reasons[host_name(removed)])


def test_a_play_that_times_out_fails_unfinished_members_with_a_retryable_error(local: LocalPlays) -> None:
    local.playbook("observe", SLOW)
    members = (controller(status="ready"), serving(2))
    run = local.play(Play("test", "observe", members), world(members=members), seconds=6)
    done, cut = (run.outcomes[one.id] for one in members)
    assert done.error is None
    assert cut.error is not None and (cut.error.code, cut.error.klass) == ("play_timeout", "retryable")
    assert processes_of(local) == []


def test_a_play_that_gives_up_has_no_result(local: LocalPlays) -> None:
    """A lost lease or a signal: the outcome so far is for another runner to find out."""
    local.playbook("observe", SLOW)
    members = (controller(status="ready"),)
    run = local.play(Play("test", "observe", members), world(members=members), give_up=lambda: bool(local.events))
    assert local.events, "it was stopped before it began"
    assert (run.outcomes, run.snapshot, run.no_hosts_matched) == ({}, None, False)


def test_a_stalled_play_fails_unfinished_members_with_a_retryable_error(local: LocalPlays) -> None:
    local.playbook("observe", SLOW)
    members = (controller(status="ready"), serving(2), serving(3))
    slot = PlaySlot(requested=True, hosts=2, forks=2)

    def seen() -> bool:
        slot.is_to_stop = len(local.events) == len(members)
        return False

    run = local.play(Play("test", "observe", members), world(members=members), give_up=seen, slot=slot)
    done, *cut = (run.outcomes[one.id] for one in members)
    assert done.error is None
    assert [(one.error.code, one.error.klass) for one in cut if one.error] == [("play_stalled", "retryable")] * 2
    assert slot.last_event is not None, "events of the play reach its slot"
    assert processes_of(local) == []


def processes_of(local: LocalPlays) -> list[Path]:
    """What is left of a play: Ansible's forks do not end with it."""
    return [one for one in Path("/proc").glob("[0-9]*/environ") if str(local.bundle).encode() in read_or_none(one)]


def read_or_none(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(("status", "names"), [("ready", [2]), ("reconciling", [1, 2])])
def test_a_stopped_play_fails_members_without_events_except_a_ready_controller(status: str, names: list[int]) -> None:
    members = (controller(status=status), worker(add(2), 2))
    error = AdapterError("play_stalled", "it hangs", "retryable")
    run = stopped_result(RunResult(), Play("test", "add_worker", members), error, SLURM)
    assert [number for number, one in enumerate(members, 1) if one.id in run.outcomes] == names
    assert {one.error for one in run.outcomes.values()} == {error}


def test_a_play_has_as_many_forks_as_its_slot(local: LocalPlays, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, str] = {}

    def run(**options: Any) -> Any:
        given.update(options["envvars"])
        raise PlayError("not run")

    monkeypatch.setattr("ansible_runner.run", run)
    members = (controller(status="ready"),)
    with pytest.raises(PlayError):
        local.play(
            Play("test", "observe", members), world(members=members), slot=PlaySlot(requested=True, hosts=7, forks=7)
        )
    assert given["ANSIBLE_FORKS"] == "7"


def test_a_late_registration_is_reported_to_the_runner_and_fails_by_hand(local: LocalPlays) -> None:
    """One function decides, for the runner with everything it knows and for a person's play."""
    members = (controller(status="ready"), worker(add(2), 2))
    late = (
        STUBS["slurm_snapshot"]
        + """
for name in asked.get("wait_for_nodes", []):
    del snapshot["nodes"][name]
    answer["missing"].append(name)
"""
    )
    local.module("slurm_snapshot", late)
    recorded = world(members=members)
    run = local.play(Play("test", "add_worker", members), recorded)
    seen = run.outcomes[members[1].id]
    assert (seen.phase, seen.error) == ("registering", None)
    assert seen.detail["registered_in_controller"] is False
    problem = worker_problem(run.snapshot, WorkerNotes.read(seen.detail))
    assert problem is not None and problem[0] == "not_registered"

    done = local.by_hand("add_worker", recorded, *members)
    assert done.returncode == 2, done.stdout
    assert problem[1] in " ".join(done.stdout.replace("\\", "").split())


def test_an_unready_controller_is_reported_to_the_runner_and_fails_by_hand(local: LocalPlays) -> None:
    members = (controller(status="ready"),)
    local.module(
        "slurm_snapshot", 'up["slurmdbd"] = snapshot["controller"]["slurmdbd"] = "failed"\n' + STUBS["slurm_snapshot"]
    )
    recorded = world(members=members)
    run = local.play(Play("test", "add_worker", members), recorded)
    assert run.outcomes[members[0].id].error is None
    problem = controller_problem(run.snapshot)
    assert problem is not None and problem[0] == "slurmdbd_not_active"
    done = local.by_hand("add_worker", recorded, *members)
    assert done.returncode == 2 and "slurmdbd is failed on the controller" in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("playbook", "text"),
    [
        ("- hosts: absent\n  tasks: []\n", "matched no host"),
        ("- hosts: all\n  tasks: [{no_such_module_at_all: {}}]\n", r"ended with [1-9]\d*: .*no_such_module_at_all"),
    ],
)
def test_an_ansible_run_that_did_nothing_is_an_error_with_its_last_output(
    local: LocalPlays, playbook: str, text: str
) -> None:
    local.playbook("observe", playbook)
    members = (controller(status="ready"),)
    with pytest.raises(PlayError, match=text):
        local.play(Play("test", "observe", members), world(members=members))


def test_only_events_with_the_id_of_the_run_are_its_own() -> None:
    is_own = OwnEvents()
    start = {"event": "playbook_on_start", "event_data": {"playbook_uuid": "run-1"}}
    forged = {"event": "playbook_on_start", "event_data": {"playbook_uuid": "run-2"}}
    assert not is_own({"event": "runner_on_ok", "event_data": {"playbook_uuid": "early"}})
    assert is_own(start)
    assert not is_own(forged)
    assert is_own({"event": "runner_on_ok", "event_data": {"playbook_uuid": "run-1"}})
    for event in (
        {"event": "runner_on_ok", "event_data": {"playbook_uuid": "run-2"}},
        {"event": "runner_on_ok", "event_data": {"host": "controller-1"}},
        {"event": "runner_on_ok", "event_data": ["run-1"]},
        {"event": "verbose"},
    ):
        assert not is_own(event)
