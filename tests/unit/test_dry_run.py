"""dry_run predicts a tick: every step up to the first play, nothing invented, nothing twice."""

from runner.loop.dry_run import dry_run
from runner.model.plan import Claim, NewMember, Play, Refuse, SetInstance, SetMember, Step, Wait, stamp
from runner.model.world import World
from runner.slurm.app import SLURM
from runner.slurm.decide import decide
from tests.unit.worlds import (
    ME,
    NOW,
    add,
    allocation,
    claimed_by_us,
    controller,
    instance,
    of_kind,
    settle,
    worker,
    world,
)


def test_a_dry_run_of_a_deploy_has_a_reason_for_each_step_up_to_the_play() -> None:
    steps = dry_run(world(operations=(add(2, 3),)), SLURM)
    kinds = [type(step) for step in steps]
    assert kinds.count(NewMember) == 2
    assert kinds.count(Claim) == 2
    assert kinds[-1] is Play
    assert kinds.count(Play) == 1
    assert all(step.why for step in steps)


def test_the_predicted_play_has_members_that_do_not_exist_yet() -> None:
    steps = dry_run(world(operations=(add(2, 3),)), SLURM)
    (play,) = of_kind(steps, Play)
    assert sorted(str(member.allocation_id) for member in play.members) == sorted(
        str(allocation(number).id) for number in (1, 2, 3)
    )


def test_a_dry_run_predicts_the_steps_of_a_tick() -> None:
    start = world(operations=(add(2, 3),))
    _, done, play = settle(start, decide)
    foreseen = dry_run(start, SLURM)
    assert [type(step) for step in foreseen] == [type(step) for step in _once(done)]
    assert play is not None
    assert [member.id for member in of_kind(foreseen, Play)[0].members] == [member.id for member in play.members]


def _once(steps: list[Step]) -> list[Step]:
    kept: list[Step] = []
    for step in steps:
        if step not in kept:
            kept.append(step)
    return kept


def test_a_dry_run_of_an_idle_instance_is_empty() -> None:
    status = {"observed_at": stamp(NOW), "reasons": []}
    idle = instance(status="running", health="healthy", status_detail=status)
    assert dry_run(world(instance=idle, complete=False), SLURM) == []


def test_work_that_another_runner_holds_is_shown_as_a_wait_and_not_as_a_play() -> None:
    held = {"claimed_by": "another", "lease_expires_at": stamp(NOW.replace(minute=59))}
    steps = dry_run(world(members=(controller(adapter_detail=held),)), SLURM)
    assert of_kind(steps, Play) == []
    assert any("another" in wait.why for wait in of_kind(steps, Wait))


def test_a_wait_over_many_rounds_is_listed_once() -> None:
    lease = {"status": "running", "claimed_by": "another", "lease_expires_at": NOW.replace(minute=59)}
    held = add(4).model_copy(update=lease)
    steps = dry_run(world(operations=(held, add(2, 3))), SLURM)
    assert len([wait for wait in of_kind(steps, Wait) if str(held.id)[:8] in wait.subject]) == 1


def test_a_refusal_is_predicted_once() -> None:
    operation = add(2).model_copy(update={"operation": "drain"})
    steps = dry_run(_running(operations=(operation,)), SLURM)
    assert [type(step) for step in steps].count(Refuse) == 1


def _running(**changes: object) -> World:
    status = {"observed_at": stamp(NOW), "reasons": []}
    fields: dict[str, object] = {
        "instance": instance(status="running", health="healthy", status_detail=status),
        "members": (controller(status="ready"),),
    }
    return world(**(fields | changes))


def test_a_simulated_claim_is_ours_and_changes_nothing_else() -> None:
    operation = add(2)
    before = _running(operations=(operation,))
    after = before.after(Claim("because", operation))
    (claimed,) = after.operations
    assert (claimed.status, claimed.claimed_by) == ("running", ME)
    assert claimed.lease_expires_at is not None
    assert claimed.lease_expires_at > NOW
    assert (after.members, after.instance) == (before.members, before.instance)


def test_a_simulated_member_has_the_same_id_each_time() -> None:
    operation = claimed_by_us(add(2))
    step = NewMember("because", operation, "worker", operation.allocation_ids[0])
    first, second = (_running(operations=(operation,)).after(step) for _ in range(2))
    assert first.members[-1].id == second.members[-1].id
    assert len(first.after(step).members) == len(first.members)


def test_simulated_writes_change_status_and_detail_of_their_record() -> None:
    operation = claimed_by_us(add(2))
    joining = worker(operation, 2, status="reconciling")
    before = _running(members=(controller(status="ready"), joining), operations=(operation,))
    after = before.after(SetMember("because", joining, "ready", {"phase": "serving"}))
    (written,) = (member for member in after.members if member.id == joining.id)
    assert (written.status, written.adapter_detail["phase"]) == ("ready", "serving")
    assert written.adapter_detail["operation_id"] == str(operation.id)
    later = after.after(SetInstance("because", "running", "degraded", {"reasons": ["one"]}))
    assert (later.instance.health, later.instance.status_detail) == ("degraded", {"reasons": ["one"]})
