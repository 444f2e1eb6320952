"""Steps of a smoke run: which are done with which allocations and chapters, and by which ids they are found again."""

import uuid

import pytest

from runner.model.platform import AppInstance, Member
from runner.slurm.components import CONTROLLER, WORKER
from runner.slurm.smoke import CHAPTERS, steps
from runner.smoke.plan import Ask, At, Deploy, Look, State, Step, Wait, correlation_id, nowhere, planned
from runner.smoke.state import has_failed, lacks, member_at
from tests.platform_process import our_manifest

ALLOCATIONS = [uuid.uuid4() for _ in range(3)]


def names(count: int, *chosen: str, same_node: bool = False, keep: bool = False) -> list[str]:
    found = planned(steps(count, same_node=same_node), chosen, count, keep=keep)
    return [one.step.name for one in found if one.left_out is None]


def left_out(count: int, *, same_node: bool = False) -> set[str]:
    found = planned(steps(count, same_node=same_node), [], count, keep=False)
    return {one.step.name for one in found if one.left_out}


@pytest.mark.parametrize(
    ("count", "same_node", "expected"),
    [
        (1, False, {"replace", "bulk-add"}),
        (2, False, {"replace", "bulk-add"}),
        (2, True, {"bulk-add"}),
        (3, False, {"bulk-add"}),
        (4, False, set()),
        (9, False, set()),
    ],
)
def test_steps_that_need_more_allocations_are_left_out(count: int, same_node: bool, expected: set[str]) -> None:
    assert left_out(count, same_node=same_node) == expected


def test_a_reason_names_how_many_allocations_a_step_needs() -> None:
    (replace,) = [one for one in planned(steps(1, same_node=False), [], 1, keep=False) if one.step.name == "replace"]
    assert replace.left_out == "needs 2 allocations, and 1 was given"


def test_the_chosen_chapters_are_done_with_those_they_depend_on() -> None:
    always = {one.name for one in CHAPTERS if one.always}
    chosen = planned(steps(4, same_node=False), ["packages"], 4, keep=False)
    assert {one.step.chapter.name for one in chosen} == always | {"packages"}
    default = {one.step.chapter.name for one in planned(steps(4, same_node=False), [], 4, keep=False)}
    assert default == {one.name for one in CHAPTERS} - {"packages", "pilot"}


def test_the_cluster_is_taken_down_last_unless_it_is_kept() -> None:
    assert names(4)[-1] == "decommission"
    assert "decommission" not in names(4, keep=True)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("same_node", [False, True])
def test_no_step_names_an_allocation_that_was_not_given(count: int, same_node: bool) -> None:
    for one in planned(steps(count, same_node=same_node), [one.name for one in CHAPTERS], count, keep=False):
        if one.left_out is None:
            assert max(places(one.step), default=0) < count, one.step.name


def places(step: Step) -> list[int]:
    match step.does:
        case Deploy(lead=lead, others=others):
            return [lead, *others]
        case Ask(places=named, member=member, then=then):
            return [*named, *(one.place for one in (member, then.member) if one)]
        case Wait(then=then):
            return [then.member.place] if then.member else []
    return []


def test_with_one_host_the_deploy_requests_the_worker() -> None:
    first = {one.name: one.does for one in steps(1, same_node=False)}
    assert first["deploy"] == Deploy(0, (0,))
    assert isinstance(first["worker"], Ask) and first["worker"].seeded
    split = {one.name: one.does for one in steps(2, same_node=False)}
    assert split["deploy"] == Deploy(0)
    assert isinstance(split["worker"], Ask) and not split["worker"].seeded and split["worker"].places == (1,)


def test_every_verb_is_in_the_manifest_and_every_step_that_is_named_exists() -> None:
    manifest, table = our_manifest(), steps(4, same_node=False)
    listed = [one.name for one in table]
    assert len(listed) == len(set(listed))
    for step in table:
        if isinstance(step.does, Ask):
            of_instance, of_member = manifest["instance_operations"], manifest["member_operations"]
            verbs = of_member[step.does.component] if step.does.component else of_instance
            assert step.does.verb in verbs, step.name
        about = step.does.about if isinstance(step.does, Look) else getattr(step.does, "after", None)
        assert about is None or about in listed[: listed.index(step.name)], step.name


# Verbs of the manifest that no step requests.
LEFT_OUT = {
    "rotate_credentials": "it shows nothing about the platform: the adapter makes the new key itself",
    "retry": "it needs a deploy that failed, and a smoke run causes none",
}


def test_every_verb_of_the_manifest_is_requested_or_left_out_with_a_reason() -> None:
    manifest = our_manifest()
    verbs = {
        *manifest["instance_operations"],
        *(verb for own in manifest["member_operations"].values() for verb in own),
    }
    requested = {step.does.verb for step in steps(4, same_node=False) if isinstance(step.does, Ask)}
    assert verbs - requested == set(LEFT_OUT)


def test_ids_are_the_same_in_each_process_and_differ_between_runs_and_steps() -> None:
    assert correlation_id("a-run", "drain") == correlation_id("a-run", "drain")
    different = {correlation_id(run, step) for run in ("a-run", "b-run") for step in ("drain", "stop")}
    assert len(different | {str(nowhere("a-run")), str(nowhere("b-run"))}) == 6


def instance(status: str = "running", health: str = "healthy") -> AppInstance:
    own = {"id": uuid.uuid4(), "org_id": uuid.uuid4(), "app_slug": "x", "correlation_id": "c"}
    return AppInstance.model_validate({**own, "status": status, "health": health})


def worker(status: str, at: str = "2026-01-01T00:00:00Z", place: int = 1) -> Member:
    own = {"id": uuid.uuid4(), "app_instance_id": uuid.uuid4(), "component_key": WORKER, "created_at": at}
    return Member.model_validate({**own, "allocation_id": ALLOCATIONS[place], "status": status})


WORKER_AT = At(WORKER, 1)


def test_of_several_members_on_an_allocation_the_one_that_is_there_counts() -> None:
    old, new = worker("deleted"), worker("ready", "2026-01-02T00:00:00Z")
    assert member_at(WORKER_AT, [new, old], ALLOCATIONS) is new
    later = worker("deleted", "2026-01-03T00:00:00Z")
    assert member_at(WORKER_AT, [later, new], ALLOCATIONS) is new
    assert member_at(WORKER_AT, [later, old], ALLOCATIONS) is later
    assert member_at(At(CONTROLLER, 1), [new], ALLOCATIONS) is None
    assert member_at(At(WORKER, 2), [new], ALLOCATIONS) is None


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (State(), None),
        (State(instance="running", health="healthy"), None),
        (State(instance="stopped"), "the instance is running, not stopped"),
        (State(health="degraded"), "its health is healthy, not degraded"),
        (State(WORKER_AT, "ready"), None),
        (State(WORKER_AT, "deleted"), "is ready, not deleted"),
        (State(At(WORKER, 2), "ready"), f"no worker is on allocation {ALLOCATIONS[2]}"),
    ],
)
def test_what_is_lacking_is_named(state: State, expected: str | None) -> None:
    found = lacks(state, instance(), [worker("ready")], ALLOCATIONS)
    assert found is None if expected is None else found is not None and expected in found


def test_a_failed_instance_or_member_ends_the_wait() -> None:
    wanted = State(WORKER_AT, "ready")
    assert has_failed(wanted, instance("failed"), [], ALLOCATIONS)
    assert has_failed(wanted, instance(), [worker("failed")], ALLOCATIONS)
    assert not has_failed(wanted, instance(), [worker("reconciling")], ALLOCATIONS)
    assert not has_failed(State(), instance(), [worker("failed")], ALLOCATIONS)
