"""Which instances are ticked when, and when a run is over. Time is a number that a test passes in."""

from datetime import UTC, datetime
from uuid import UUID

from runner.loop.schedule import Schedule
from runner.model.platform import AppInstance
from tests.unit.worlds import instance

PAUSE = 15
A, B = (instance(id=UUID(int=number), status="running") for number in (1, 2))


def begun(schedule: Schedule, now: float, *instances: AppInstance, first: bool = False) -> list[UUID]:
    assert schedule.is_pass_due(now)
    schedule.begin_pass(now)
    return [one.id for one in schedule.begin(instances, first=first)]


def test_a_run_ends_when_each_instance_was_ticked_once() -> None:
    schedule = Schedule(PAUSE, forever=False)
    assert begun(schedule, 0, A, B, first=True) == [A.id, B.id]
    schedule.end(A.id)
    assert not schedule.is_over
    schedule.end(B.id)
    assert schedule.is_over and not schedule.is_pass_due(1000)


def test_while_one_instance_hangs_the_others_are_ticked_again_and_again() -> None:
    schedule = Schedule(PAUSE, forever=False)
    begun(schedule, 0, A, B, first=True)
    schedule.end(B.id)
    assert not schedule.is_pass_due(PAUSE - 1) and schedule.seconds_to_pass(PAUSE - 1) == 1
    for number in range(1, 100):
        assert begun(schedule, number * PAUSE, A, B) == [B.id], "and the one that hangs is not"
        schedule.end(B.id)
        assert not schedule.is_over
    schedule.end(A.id)
    assert schedule.is_over


def test_an_instance_that_appears_while_another_hangs_is_ticked() -> None:
    schedule = Schedule(PAUSE, forever=False)
    begun(schedule, 0, A, first=True)
    assert begun(schedule, PAUSE, A, B) == [B.id]


def ending() -> Schedule:
    """A run whose work is done, while B is still observed."""
    schedule = Schedule(PAUSE, forever=False)
    begun(schedule, 0, A, B, first=True)
    schedule.end(B.id)
    begun(schedule, PAUSE, A, B)
    schedule.end(A.id)
    return schedule


def test_a_run_does_not_wait_for_routine_observations() -> None:
    schedule = ending()
    assert schedule.is_ending and not schedule.is_over
    schedule.end(B.id)
    assert schedule.is_over and not schedule.is_pass_due(10 * PAUSE)


def test_an_ending_run_asks_the_others_for_work_and_goes_on_if_there_is_some() -> None:
    schedule = ending()
    assert begun(schedule, 2 * PAUSE, A, B) == [A.id]
    assert schedule.is_ending, "a check is not work"
    schedule.work_found(A.id)
    schedule.end(B.id)
    assert not schedule.is_ending and not schedule.is_over
    assert begun(schedule, 3 * PAUSE, A, B) == [B.id]


def test_checks_do_not_keep_a_run_from_ending() -> None:
    schedule = ending()
    begun(schedule, 2 * PAUSE, A, B)
    schedule.end(B.id)
    assert not schedule.is_pass_due(10 * PAUSE) and schedule.seconds_to_pass(10 * PAUSE) == float("inf")
    schedule.end(A.id)
    assert schedule.is_over


def test_a_run_continues_while_requested_work_is_under_way() -> None:
    schedule = Schedule(PAUSE, forever=False)
    begun(schedule, 0, A, B, first=True)
    schedule.end(B.id)
    begun(schedule, PAUSE, A, B)
    schedule.work_found(B.id)
    schedule.end(A.id)
    assert not schedule.is_ending
    assert begun(schedule, 2 * PAUSE, A, B) == [A.id]


def test_a_run_with_forever_continues_when_nothing_is_under_way() -> None:
    schedule = Schedule(PAUSE, forever=True)
    assert begun(schedule, 0, first=True) == []
    assert not schedule.is_over and not schedule.is_ending
    assert not schedule.is_pass_due(1)
    assert begun(schedule, PAUSE, A) == [A.id]


def test_unsettled_instances_are_ticked_first_then_the_longest_unobserved() -> None:
    def seen(number: int, minute: int) -> AppInstance:
        at = datetime(2026, 1, 1, 0, minute, tzinfo=UTC).isoformat()
        return instance(id=UUID(int=number), status="running", status_detail={"observed_at": at})

    late, early, never = seen(1, 9), seen(2, 1), A.model_copy(update={"id": UUID(int=3)})
    deploying = instance(id=UUID(int=4), status="deploying")
    schedule = Schedule(PAUSE, forever=False)
    assert begun(schedule, 0, late, early, never, deploying, first=True) == [
        deploying.id,
        never.id,
        early.id,
        late.id,
    ]
