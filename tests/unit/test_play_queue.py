"""Which plays run now: order, bounds, and what becomes of plays that have stalled. A test sets the time."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.act import play_queue
from runner.act.play_queue import FORK_MB, PLAY_MB, SMALL_PLAY_MB, Bounds, PlayGate, PlayQueue, PlaySlot
from runner.settings import Settings

STALL = 60


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def queue(clock: Clock, plays: int = 2, memory_mb: int = 100_000, forks: int = 32) -> PlayQueue:
    return PlayQueue(Bounds(plays, forks, memory_mb, STALL), clock)


def joined(of: PlayQueue, *, requested: bool = True, hosts: int = 1) -> PlaySlot:
    slot = of.join(requested=requested, hosts=hosts)
    of.admit()
    return slot


def runs(slot: PlaySlot) -> bool:
    return slot.last_event is not None


def test_no_more_plays_run_at_once_than_the_bound(clock: Clock) -> None:
    plays = queue(clock, plays=2)
    first, second, third = (joined(plays) for _ in range(3))
    assert (runs(first), runs(second), runs(third)) == (True, True, False)
    plays.leave(first)
    plays.admit()
    assert runs(third)


def test_requested_work_goes_before_routine_observations_then_by_arrival(clock: Clock) -> None:
    plays = queue(clock, plays=1)
    running = joined(plays)
    early, late = joined(plays, requested=False), joined(plays, requested=False)
    asked, asked_later = joined(plays), joined(plays)
    order = []
    for _ in range(4):
        plays.leave(running)
        plays.admit()
        (running,) = plays.running
        order.append(running)
    assert order == [asked, asked_later, early, late]


def test_a_stalled_play_does_not_count_against_the_bound(clock: Clock) -> None:
    plays = queue(clock, plays=1)
    hanging, waiting = joined(plays), joined(plays)
    clock.now = STALL - 1
    plays.admit()
    assert not runs(waiting)
    clock.now = STALL
    plays.admit()
    assert runs(waiting) and not hanging.is_to_stop


def test_an_event_keeps_a_play_from_being_stalled(clock: Clock) -> None:
    plays = queue(clock, plays=1)
    busy, waiting = joined(plays), joined(plays)
    clock.now = STALL - 1
    busy.record_event()
    clock.now = STALL + 5
    plays.admit()
    assert not runs(waiting)


def test_at_twice_the_bound_the_oldest_stalled_play_is_stopped_and_only_that_one(clock: Clock) -> None:
    plays = queue(clock, plays=2)
    oldest, older = joined(plays), joined(plays)
    clock.now = 10
    older.record_event()
    clock.now = 10 + STALL
    third, fourth = joined(plays), joined(plays)
    assert runs(third) and runs(fourth) and not (oldest.is_to_stop or older.is_to_stop), "twice the bound run"
    clock.now = 20 + 2 * STALL
    waiting = joined(plays)
    plays.admit()
    assert not runs(waiting)
    assert [one.is_to_stop for one in (oldest, older, third, fourth)] == [True, False, False, False]
    oldest.record_event()
    plays.admit()
    assert not older.is_to_stop, "the first one has not ended yet"
    plays.leave(oldest)
    plays.admit()
    assert runs(waiting)
    assert not older.is_to_stop


def test_a_stalled_play_is_left_alone_while_no_other_waits(clock: Clock) -> None:
    plays = queue(clock, plays=1)
    hanging = joined(plays)
    clock.now = STALL
    joined(plays)
    clock.now = 100 * STALL
    plays.admit()
    assert not hanging.is_to_stop


def test_plays_that_send_events_are_never_stopped(clock: Clock) -> None:
    plays = queue(clock, plays=1)
    first = joined(plays)
    clock.now = STALL
    second = joined(plays)
    first.record_event()
    second.record_event()
    joined(plays)
    plays.stop_stalled(requested=True)
    assert not (first.is_to_stop or second.is_to_stop)


def test_an_ending_run_stops_stalled_looks_and_a_signal_stops_stalled_work_too(clock: Clock) -> None:
    plays = queue(clock)
    work, look = joined(plays), joined(plays, requested=False)
    clock.now = STALL
    plays.stop_stalled(requested=False)
    assert (work.is_to_stop, look.is_to_stop) == (False, True)
    plays.stop_stalled(requested=True)
    assert work.is_to_stop


def test_memory_bounds_the_plays_at_once_and_a_stalled_one_makes_room(clock: Clock) -> None:
    small = PLAY_MB + FORK_MB
    plays = queue(clock, plays=8, memory_mb=2 * small)
    first, second, third = (joined(plays) for _ in range(3))
    assert (runs(first), runs(second), runs(third)) == (True, True, False)
    assert not (first.is_to_stop or second.is_to_stop)
    clock.now = STALL
    second.record_event()
    plays.admit()
    assert first.is_to_stop and not second.is_to_stop
    plays.leave(first)
    plays.admit()
    assert runs(third)


@pytest.mark.parametrize(
    ("hosts", "forks", "free_mb", "free_places", "expected"),
    [
        (3, 32, 2048, 7, 3),
        (100, 32, 2048, 7, 32),
        (100, 64, 2048, 7, (2048 - 7 * SMALL_PLAY_MB - PLAY_MB) // FORK_MB),
        (100, 32, PLAY_MB + 5 * FORK_MB, 0, 5),
        (100, 4, 2048, 7, 4),
        (100, 32, 128, 7, 1),
        (0, 32, 2048, 7, 1),
    ],
)
def test_a_play_gets_as_many_forks_as_its_hosts_the_setting_and_memory_allow(
    hosts: int, forks: int, free_mb: int, free_places: int, expected: int
) -> None:
    assert Bounds(8, forks, 2048, STALL).forks_for(hosts, free_mb, free_places) == expected


def default(name: str) -> int:
    return int(Settings.model_fields[name].default)


@pytest.mark.parametrize("bulk", [1, 2, 7])
def test_a_bulk_play_leaves_room_for_an_add(clock: Clock, bulk: int) -> None:
    plays = queue(clock, default("parallel_plays"), default("memory_mb"), default("forks"))
    large = [joined(plays, hosts=33) for _ in range(bulk)]
    adds = [joined(plays, hosts=2) for _ in range(default("parallel_plays") - bulk)]
    assert all(map(runs, (*large, *adds)))
    assert [one.forks for one in adds] == [2] * len(adds)
    assert large[0].forks == default("forks"), "the first one is not slowed down"


def test_with_default_settings_twice_the_bound_of_adds_run_while_half_have_stalled(clock: Clock) -> None:
    bound = default("parallel_plays")
    plays = queue(clock, bound, default("memory_mb"), default("forks"))
    hanging = [joined(plays, hosts=2) for _ in range(bound)]
    clock.now = STALL
    adds = [joined(plays, hosts=2) for _ in range(bound)]
    assert all(map(runs, adds)) and not any(one.is_to_stop for one in hanging)


EVENTS = st.lists(st.tuples(st.sampled_from(["join", "leave", "wait", "event"]), st.integers(0, 40)), max_size=60)


@given(st.integers(1, 4), st.integers(128, 1000), EVENTS)
def test_bounds_hold_whatever_happens(bound: int, memory_mb: int, events: list[tuple[str, int]]) -> None:
    clock = Clock()
    plays = queue(clock, plays=bound, memory_mb=memory_mb, forks=8)
    for kind, number in events:
        before = list(plays.running)
        if kind == "join":
            plays.join(requested=number % 2 == 0, hosts=number)
        elif kind == "wait":
            clock.now += number
        elif plays.running:
            one = plays.running[number % len(plays.running)]
            plays.leave(one) if kind == "leave" else one.record_event()
        plays.admit()
        assert len(plays.running) <= 2 * bound
        assert sum(one.megabytes for one in plays.running) <= memory_mb or len(plays.running) == 1
        began = [one for one in plays.running if one not in before]
        if began:
            assert sum(not plays.is_stalled(one) for one in plays.running) <= bound
            assert all(not (late.order < one.order) for one in began for late in plays.waiting), "one was overtaken"


def test_a_play_that_waits_gives_up_when_its_runner_ends() -> None:
    gate = PlayGate(Bounds(1, 1, 2048, STALL))
    first = gate.enter(requested=True, hosts=1, give_up=lambda: False)
    assert first and not first.waited
    assert gate.enter(requested=True, hosts=1, give_up=lambda: True) is None
    gate.leave(first)
    assert gate.enter(requested=True, hosts=1, give_up=lambda: False)


def test_a_play_that_ends_lets_the_next_one_begin_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(play_queue, "LOOK_SECONDS", 60)
    gate = PlayGate(Bounds(1, 1, 2048, STALL))
    first = gate.enter(requested=True, hosts=1, give_up=lambda: False)
    assert first
    entered: list[PlaySlot | None] = []
    asked = threading.Event()

    def wait() -> bool:
        asked.set()
        return False

    other = threading.Thread(target=lambda: entered.append(gate.enter(requested=False, hosts=1, give_up=wait)))
    other.start()
    assert asked.wait(10) and not entered
    gate.leave(first)
    other.join(10)
    assert entered and entered[0] and entered[0].waited
