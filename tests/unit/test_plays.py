"""How a run of real ansible-runner ends: well, out of time, stopped, with nobody to play, or not at all."""

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from ansible.module_utils.slurm.leave import owns

from runner.act.play_queue import Turn
from runner.act.plays import OwnEvents, PlayError, stopped
from runner.model.names import host_name
from runner.model.plan import AdapterError, Play
from runner.slurm.node_rules import ANY_OPERATION
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
    story = local.play(Play("test", "add_worker", members), world(members=members))
    assert {outcome.error for outcome in story.outcomes.values()} == {None}
    known = story.outcomes[members[1].id].detail
    assert story.outcomes[members[1].id].phase == "serving"
    assert worker_problem(story.snapshot, known["worker_hostname"], known) is None
    assert controller_problem(story.snapshot) is None


def test_a_join_lifts_the_drain_of_an_operation_and_leaves_a_persons(local: LocalPlays) -> None:
    chief, removed, held = members = (controller(status="ready"), worker(add(2), 2), worker(add(3), 3))
    reasons = {host_name(removed): f"gpuaas:{UUID(int=5)}: removed", host_name(held): "gpuaas:manual: new disk"}
    drained = "".join(
        f"snapshot['nodes'][{name!r}] = {{**node, 'flags': ['DRAIN'], 'reason': {reason!r}}}\n"
        for name, reason in reasons.items()
    )
    local.module("slurm_snapshot", drained + STUBS["slurm_snapshot"])
    story = local.play(Play("test", "add_worker", members), world(members=members))
    assert story.outcomes[chief.id].error is None
    (asked,) = local.asked("slurm_nodes")
    assert asked["resume"] == [{"nodes": [host_name(removed)], "owner": ANY_OPERATION}]
    assert owns(ANY_OPERATION, reasons[host_name(removed)])


def test_a_play_out_of_time_fails_whoever_had_not_finished_and_may_be_retried(local: LocalPlays) -> None:
    local.playbook("observe", SLOW)
    members = (controller(status="ready"), serving(2))
    story = local.play(Play("test", "observe", members), world(members=members), seconds=6)
    done, cut = (story.outcomes[one.id] for one in members)
    assert done.error is None
    assert cut.error is not None and (cut.error.code, cut.error.klass) == ("play_timeout", "retryable")


def test_a_play_that_is_stopped_concludes_nothing(local: LocalPlays) -> None:
    """A lost lease or a signal: what was heard so far is another runner's to find out."""
    local.playbook("observe", SLOW)
    members = (controller(status="ready"),)
    story = local.play(Play("test", "observe", members), world(members=members), give_up=lambda: bool(local.heard))
    assert local.heard, "it was stopped before it began"
    assert (story.outcomes, story.snapshot, story.nothing_matched) == ({}, None, False)


def test_a_play_whose_turn_is_stopped_fails_whoever_had_not_finished_and_may_be_retried(local: LocalPlays) -> None:
    """And nothing of it goes on: Ansible's forks do not end with it."""
    local.playbook("observe", SLOW)
    members = (controller(status="ready"), serving(2), serving(3))
    turn = Turn(requested=True, forks=2, number=1)

    def seen() -> bool:
        turn.stopped = len(local.heard) == len(members)
        return False

    story = local.play(Play("test", "observe", members), world(members=members), give_up=seen, turn=turn)
    done, *cut = (story.outcomes[one.id] for one in members)
    assert done.error is None
    assert [(one.error.code, one.error.klass) for one in cut if one.error] == [("play_stalled", "retryable")] * 2
    assert turn.last_event is not None, "events of the play reach its turn"
    left = [one for one in Path("/proc").glob("[0-9]*/environ") if str(local.bundle).encode() in read_or_none(one)]
    assert left == []


def read_or_none(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(("status", "names"), [("ready", [2]), ("reconciling", [1, 2])])
def test_a_stopped_play_fails_silent_members_but_no_controller_it_only_asks(status: str, names: list[int]) -> None:
    members = (controller(status=status), worker(add(2), 2))
    error = AdapterError("play_stalled", "it hangs", "retryable")
    story = stopped(RunResult(), Play("test", "add_worker", members), error, ("serving",))
    assert [number for number, one in enumerate(members, 1) if one.id in story.outcomes] == names
    assert {one.error for one in story.outcomes.values()} == {error}


def test_a_play_works_on_as_many_hosts_at_once_as_its_turn_says(
    local: LocalPlays, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, str] = {}

    def run(**options: Any) -> Any:
        given.update(options["envvars"])
        raise PlayError("not run")

    monkeypatch.setattr("ansible_runner.run", run)
    members = (controller(status="ready"),)
    with pytest.raises(PlayError):
        local.play(
            Play("test", "observe", members), world(members=members), turn=Turn(requested=True, forks=7, number=1)
        )
    assert given["ANSIBLE_FORKS"] == "7"


def test_a_late_registration_is_a_fact_for_the_runner_and_an_error_by_hand(local: LocalPlays) -> None:
    """One function judges: the runner with everything it knows, a person's play by the same words."""
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
    known = world(members=members)
    story = local.play(Play("test", "add_worker", members), known)
    seen = story.outcomes[members[1].id]
    assert (seen.phase, seen.error) == ("registering", None)
    assert seen.detail["registered_in_controller"] is False
    problem = worker_problem(story.snapshot, seen.detail["worker_hostname"], seen.detail)
    assert problem is not None and problem[0] == "not_registered"

    done = local.by_hand("add_worker", known, *members)
    assert done.returncode == 2, done.stdout
    assert problem[1] in " ".join(done.stdout.replace("\\", "").split())


def test_an_unready_controller_is_reported_to_the_runner_and_fails_by_hand(local: LocalPlays) -> None:
    members = (controller(status="ready"),)
    local.module(
        "slurm_snapshot", 'up["slurmdbd"] = snapshot["controller"]["slurmdbd"] = "failed"\n' + STUBS["slurm_snapshot"]
    )
    known = world(members=members)
    story = local.play(Play("test", "add_worker", members), known)
    assert story.outcomes[members[0].id].error is None
    problem = controller_problem(story.snapshot)
    assert problem is not None and problem[0] == "slurmdbd_not_active"
    done = local.by_hand("add_worker", known, *members)
    assert done.returncode == 2 and "slurmdbd is failed on the controller" in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("playbook", "words"),
    [
        ("- hosts: nobody\n  tasks: []\n", "matched no host"),
        ("- hosts: all\n  tasks: [{no_such_module_at_all: {}}]\n", "ended with"),
    ],
)
def test_an_ansible_that_did_nothing_is_an_error_with_its_last_words(
    local: LocalPlays, playbook: str, words: str
) -> None:
    local.playbook("observe", playbook)
    members = (controller(status="ready"),)
    with pytest.raises(PlayError, match=words):
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
