"""Jobs in the way of a worker that leaves: addressed exactly, waited for, and ended only as the operation asks."""

from typing import Any

import pytest

from runner.model.plan import Finish, SetMember, Wait
from runner.slurm.decide import decide
from runner.slurm.decide.workers import evict
from runner.slurm.decide.workers.requests import WantedPlays
from runner.slurm.notes import WorkerNotes
from runner.slurm.snapshot import Job
from tests.unit.fake_slurm import FakeNode, FakeSlurm
from tests.unit.lifecycle import ask, cluster, serving, the, tick
from tests.unit.worlds import of_kind, settle


def terms(policy: str) -> dict[str, Any]:
    return {"deadline_seconds": 0, "on_deadline": policy}


def array_over_three() -> FakeSlurm:
    """An array with one element on each of three workers; the last has the array's own id in Slurm."""
    return FakeSlurm({f"w{number}": FakeNode({f"100_{number}"}) for number in (2, 3, 4)})


@pytest.mark.parametrize("policy", ["cancel", "requeue"])
@pytest.mark.parametrize("verb", ["drain", "remove"])
def test_only_the_element_on_the_worker_that_leaves_is_ended(verb: str, policy: str) -> None:
    one, others = serving(3), [serving(2), serving(4)]
    slurm = array_over_three()
    now = cluster(one, *others, operations=(ask(verb, one, parameters=terms(policy)),))
    now, steps, _ = tick(now, slurm)
    assert of_kind(steps, Finish) == [] and set(slurm.nodes["w3"].ending) == {"100_3"}
    now, steps, _ = tick(now, slurm)
    assert slurm.evictions == [(policy, "100_3")]
    assert slurm.nodes["w2"].jobs == {"100_2"} and slurm.nodes["w4"].jobs == {"100_4"}
    assert slurm.waiting == ({"100_3"} if policy == "requeue" else set())
    assert [finish.status for finish in of_kind(steps, Finish)] == ["succeeded"]
    assert the(now, one).adapter_detail["leave"]["announced_eviction"] == f"{policy} of job 100_3"


@pytest.mark.parametrize(
    ("how", "address", "state", "announced"),
    [
        ("cancel", "200+1", "RUNNING", "cancel of job 200+1"),
        ("cancel", "200+0", "RUNNING", "cancel of job 200+0 (the whole heterogeneous job 200)"),
        ("requeue", "200+1", "RUNNING", "requeue of job 200+1 (the whole heterogeneous job 200)"),
        (
            "cancel",
            "200+1",
            "PENDING",
            "cancel of job 200+1 (the whole heterogeneous job 200), waiting for the node by name",
        ),
        ("requeue", "9", "PENDING", "required nodes cleared of job 9"),
    ],
)
def test_an_announcement_names_jobs_that_are_affected_besides_the_named_one(
    how: str, address: str, state: str, announced: str
) -> None:
    assert evict.announcement(how, [Job(id=201, address=address, state=state)]) == announced


def test_a_plan_shows_what_a_requeue_of_a_component_does() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode({"200+1"})})
    now = cluster(one, operations=(ask("drain", one, parameters=terms("requeue")),))
    _, steps, plays = tick(now, slurm)
    whole = "200+1 (the whole heterogeneous job 200)"
    assert any(whole in step.why for step in of_kind(steps, SetMember))
    assert any(whole in play.why for play in plays)


# -- jobs that wait for the node by name ---------------------------------------------------------------------------


def test_without_a_deadline_a_waiting_job_is_waited_for_and_named() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()}, pending_on={11: "w2"})
    now = cluster(one, operations=(ask("remove", one),))
    for _ in range(3):
        now, steps, _ = tick(now, slurm)
        assert the(now, one).status == "draining" and slurm.evictions == []
        assert the(now, one).adapter_detail["jobs_naming_node"] == ["11"]
        assert any("11" in wait.why for wait in of_kind(steps, Wait))
    slurm.pending_on.clear()
    now, _, _ = tick(now, slurm)
    assert the(now, one).status == "deleted"


@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
@pytest.mark.parametrize("how", ["cancel", "requeue"])
def test_a_worker_in_whose_way_a_job_is_counts_as_one_that_needs_the_controller(how: str, state: str) -> None:
    one = serving(2)
    assert WantedPlays.evicting(how, [Job(id=11, address="11", state=state)], one).members == [one]


@pytest.mark.parametrize("policy", ["cancel", "requeue"])
def test_at_the_deadline_a_waiting_job_no_longer_blocks_the_removal(policy: str) -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()}, pending_on={11: "w2"})
    parameters = {"deadline_seconds": 100, "on_deadline": policy}
    now, _, _ = tick(cluster(one, operations=(ask("remove", one, parameters=parameters),)), slurm)
    assert slurm.pending_on == {11: "w2"}, "before the deadline it is waited for"
    now, _, _ = tick(now, slurm, seconds=60)
    now, steps, _ = tick(now, slurm)
    assert slurm.evictions == [("unpin" if policy == "requeue" else "cancel", "11")]
    assert slurm.waiting == ({11} if policy == "requeue" else set())
    assert the(now, one).status == "deleted" and "w2" not in slurm.nodes
    (finish,) = of_kind(steps, Finish)
    assert "11" in finish.result["members"][str(one.id)]["did"]


def test_give_up_returns_the_worker_to_service_and_ends_the_operation() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()}, pending_on={11: "w2"})
    _, steps, _ = tick(cluster(one, operations=(ask("remove", one, parameters={"deadline_seconds": 0}),)), slurm)
    (finish,) = of_kind(steps, Finish)
    assert finish.status == "failed" and finish.error and finish.error["code"] == "drain_deadline"
    assert "11" in finish.error["message"]
    assert slurm.nodes["w2"].reason is None and slurm.pending_on == {11: "w2"} and slurm.evictions == []


def test_a_drain_does_not_touch_a_job_that_waits_for_the_node() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()}, pending_on={11: "w2"})
    now, steps, _ = tick(cluster(one, operations=(ask("drain", one, parameters=terms("cancel")),)), slurm)
    assert slurm.evictions == [] and the(now, one).adapter_detail["phase"] == "drained"
    assert [finish.status for finish in of_kind(steps, Finish)] == ["succeeded"]


def test_running_jobs_and_waiting_ones_are_both_in_the_result() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode({7})}, pending_on={11: "w2"})
    now, _, _ = tick(cluster(one, operations=(ask("remove", one, parameters=terms("cancel")),)), slurm)
    assert slurm.evictions == [("cancel", "7")] and the(now, one).status == "draining"
    now, steps, _ = tick(now, slurm)
    assert slurm.evictions == [("cancel", "7"), ("cancel", "11")] and the(now, one).status == "deleted"
    (finish,) = of_kind(steps, Finish)
    did = finish.result["members"][str(one.id)]["did"]
    assert did == "cancel of job 7; cancel of job 11, waiting for the node by name"


def test_a_job_that_names_a_node_which_is_being_taken_off_its_host_is_waited_for() -> None:
    """It cannot be given back any more: its slurmd may be stopped already."""
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()}, breaks_on_host={"w2"})
    now, _, _ = tick(cluster(one, operations=(ask("remove", one, parameters={"deadline_seconds": 0}),)), slurm)
    assert the(now, one).status == "deleting"
    slurm.pending_on, slurm.breaks_on_host = {11: "w2"}, set()
    now, steps, _ = tick(now, slurm)
    assert the(now, one).status == "deleting" and slurm.nodes["w2"].reason and of_kind(steps, Wait)
    slurm.pending_on.clear()
    now, _, _ = tick(now, slurm)
    assert the(now, one).status == "deleted"


def test_what_is_done_to_jobs_is_written_before_it_is_done() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode({7})})
    now = cluster(one, operations=(ask("drain", one, parameters=terms("cancel")),))
    now, _, play = settle(now, decide)
    assert play
    now, _, play = settle(slurm.run(now, play), decide)
    assert play and play.work["cancel"] == ["7"]
    assert the(now, one).adapter_detail["leave"]["announced_eviction"] == "cancel of job 7" and slurm.nodes[
        "w2"
    ].jobs == {7}


# -- evictions take their time -------------------------------------------------------------------------------------


def test_a_job_that_is_being_cleared_away_is_waited_for_and_not_ended_again() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode({7})}, slow_evictions=True)
    now = cluster(one, operations=(ask("remove", one, parameters=terms("cancel")),))
    for _ in range(3):
        now, steps, _ = tick(now, slurm)
        assert slurm.evictions == [("cancel", "7")] and slurm.deleted_with_jobs == []
        assert the(now, one).status == "draining" and of_kind(steps, Wait)
    slurm.clear_away()
    now, _, _ = tick(now, slurm)
    assert the(now, one).status == "deleted"


def test_a_job_that_does_not_end_is_ended_once_a_tick() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode({7})}, deaf_jobs={7})
    now = cluster(one, operations=(ask("remove", one, parameters=terms("cancel")),))
    for count in (1, 2, 3):
        now, _, _ = tick(now, slurm)
        assert slurm.evictions == [("cancel", "7")] * count
        assert the(now, one).status == "draining"


@pytest.mark.parametrize(
    ("state", "flags"),
    [(None, {"COMPLETING"}), (None, {"UNDRAIN"}), ("UNKNOWN", set()), ("ERROR", set()), ("FUTURE", set())],
)
def test_a_node_that_may_still_have_work_is_neither_drained_nor_removed(state: str | None, flags: set[str]) -> None:
    drains, removes = serving(2), serving(3)
    slurm = FakeSlurm({name: FakeNode(state=state, flags=set(flags)) for name in ("w2", "w3")})
    now = cluster(drains, removes, operations=(ask("drain", drains), ask("remove", removes, age=1)))
    for _ in range(2):
        now, _, plays = tick(now, slurm)
        assert {play.playbook for play in plays} <= {"drain_worker", "observe"}
        assert the(now, drains).adapter_detail["phase"] == "draining" and len(now.operations) == 2
        assert set(slurm.nodes) == {"w2", "w3"}
    for fake in slurm.nodes.values():
        fake.state, fake.flags = None, set()
    for _ in range(2):
        now, _, _ = tick(now, slurm)
    assert the(now, drains).adapter_detail["phase"] == "drained" and set(slurm.nodes) == {"w2"}


# -- notes ---------------------------------------------------------------------------------------------------------


def test_notes_of_an_older_version_are_read() -> None:
    """Releases before ledger format 2 wrote ids into `jobs`."""
    assert WorkerNotes.read({"jobs": [7, 8]}).jobs == [7, 8]
    assert WorkerNotes.read({"jobs": ["7", "100_7", "100_[5-9]", "200+1", "100_[1,3,5...]", "100_[?]"]}).jobs
    wrong: Any
    for wrong in (["x"], ["100_7; rm"], [7.5], "7", [{}], ["100_[a]"]):
        assert WorkerNotes.read({"jobs": wrong}).jobs is None


def test_a_drain_that_an_older_version_announced_is_finished() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode({7})})
    operation = ask("drain", one, parameters=terms("cancel"))
    now, _, play = settle(cluster(one, operations=(operation,)), decide)
    assert play
    note = {"operation_id": str(operation.id), "verb": "drain", "since": "2026-01-01T00:00:00Z", "verdict": None}
    old = the(now, one).adapter_detail | {"leave": note | {"did": "cancel of job 7"}, "jobs": [7]}
    now = now.with_member(the(now, one).model_copy(update={"adapter_detail": old}))
    now, _, _ = tick(now, slurm)
    assert slurm.evictions == [("cancel", "7")]
    stored = WorkerNotes.read(the(now, one).adapter_detail).leave
    assert stored and stored.announced_eviction == "cancel of job 7"


def test_a_long_list_is_cut_for_a_record() -> None:
    jobs = [Job(id=number, address=f"{number}_[{'1,' * 40}3]", state="PENDING") for number in range(1, 40)]
    shown = evict.addresses(jobs)
    assert len(shown) == 20 and all(len(address) <= 40 for address in shown)
    assert WorkerNotes.read({"jobs": shown}).jobs == shown
    assert evict.named(jobs).endswith(" and 19 more")
