"""Leases are renewed three times before they end, and a lost one is noticed; claims of members by example."""

import threading
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from runner import log
from runner.model import claims
from runner.model.errors import PlatformError
from runner.report.leases import LostLease, Renewal
from tests.unit.worlds import ME, NOW, add, controller, worker


class Clock:
    """Time that passes only while the renewal waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, waits: int) -> None:
        self.now, self.left, self.waits = 100.0, waits, list[float]()
        monkeypatch.setattr("runner.report.leases.time", SimpleNamespace(monotonic=lambda: self.now))

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.now += seconds
        self.left -= 1
        return self.left < 0


def renewal(clock: Clock, renew: Any, monkeypatch: pytest.MonkeyPatch) -> Renewal:
    """One whose thread is this one: `start` returns when there is nothing left to wait for."""

    def thread(target: Any, args: Any, daemon: bool) -> Any:
        assert daemon is True
        return SimpleNamespace(start=lambda: target(*args), join=lambda: joined.append(True))

    joined: list[bool] = []
    monkeypatch.setattr(threading, "Thread", thread)
    made = Renewal(renew, 90.0)
    made._done = SimpleNamespace(wait=clock.wait, set=lambda: joined.append(False))  # type: ignore[assignment]
    made.joined = joined  # type: ignore[attr-defined]
    return made


def test_a_lease_is_renewed_three_times_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, sent = Clock(monkeypatch, 4), list[float]()

    def renew() -> None:
        sent.append(clock.now)
        clock.now += 5  # the call takes its time; the lease counts from before it was sent

    one = renewal(clock, renew, monkeypatch)
    assert not one.is_lost
    one.start()
    assert clock.waits == [30.0] * 5 and sent == [130.0, 165.0, 200.0, 235.0]
    clock.now = 235.0 + 89.9
    assert not one.is_lost
    one.check()
    clock.now = 235.0 + 90.0
    assert one.is_lost
    with pytest.raises(LostLease, match=r"^the lease was lost, or expired before it could be renewed$"):
        one.check()
    one.start()
    assert len(sent) == 4, "one thread is enough"
    one.stop()
    assert one.joined == [False, True]


def test_a_renewal_that_never_began_is_not_lost_and_can_be_stopped() -> None:
    one = Renewal(lambda: None, 0.0)
    assert not one.is_lost
    one.stop()


def test_a_lease_that_is_not_renewed_runs_out_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, logged = Clock(monkeypatch, 4), list[Any]()
    monkeypatch.setattr(log, "get", lambda: SimpleNamespace(warning=lambda *a, **k: logged.append((a, k))))

    def renew() -> None:
        raise PlatformError("the platform is away")

    one = renewal(clock, renew, monkeypatch)
    one.start()
    assert one.is_lost and clock.waits == [30.0] * 3, "it is tried until the lease has run out"
    assert logged == [(("lease not renewed",), {"problem": "the platform is away", "error_code": "platform_error"})] * 3
    clock.now = 0.0
    assert one.is_lost, "once lost it stays lost"


class Coded(Exception):
    code = "its_own_code"


@pytest.mark.parametrize(
    ("error", "problem", "code"),
    [
        (LostLease("other has it"), "other has it", "lease_lost"),
        (KeyError(), "KeyError", "lease_lost"),
        (Coded("odd"), "odd", "its_own_code"),
    ],
)
def test_a_lease_that_another_runner_took_is_lost_at_once(
    error: Exception, problem: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, logged = Clock(monkeypatch, 4), list[Any]()
    monkeypatch.setattr(log, "get", lambda: SimpleNamespace(error=lambda *a, **k: logged.append((a, k))))

    def renew() -> None:
        raise error

    one = renewal(clock, renew, monkeypatch)
    one.start()
    assert clock.waits == [30.0] and clock.now < 190.0 and one.is_lost
    assert logged == [(("lease lost",), {"problem": problem, "error_code": code})]


# -- claims of members ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recorded", "number"),
    [({}, 0), ({"fence": 7}, 7), ({"fence": 0}, 0), ({"fence": "7"}, None), ({"fence": []}, None)],
)
def test_a_number_that_cannot_be_read_is_not_taken_for_none(recorded: dict[str, Any], number: int | None) -> None:
    assert claims.fence(controller(adapter_detail=recorded)) == number


@pytest.mark.parametrize(
    ("by", "until", "holder"),
    [
        ("other", 1, ("other", 1)),
        ("other", 0, None),
        ("other", -1, None),
        ("other", None, None),
        (ME, 1, None),
        (None, 1, None),
        ("", 1, None),
    ],
)
def test_another_runner_holds_a_member_until_its_claim_ends(by: str | None, until: int | None, holder: Any) -> None:
    def at(seconds: int | None) -> datetime | None:
        return None if seconds is None else NOW + timedelta(seconds=seconds)

    moment = at(until)
    detail = {"claimed_by": by, "lease_expires_at": moment.isoformat() if moment else None}
    member = controller(adapter_detail=detail)
    assert claims.lease(member) == (by, moment)
    assert claims.other_holder(ME, NOW, *claims.lease(member)) == (holder and (holder[0], at(holder[1])))
    assert claims.is_held_by(ME, member) is (by == ME)


def test_an_operation_concerns_the_members_that_it_names_made_or_takes_out() -> None:
    operation, other = add(2), add(3)
    made, unrelated = worker(operation, 2), worker(other, 3)
    leaving = worker(other, 4, adapter_detail={"leave": {"operation_id": str(operation.id)}})
    named = operation.model_copy(update={"member_ids": [unrelated.id]})
    assert claims.concerns(operation, made) and claims.concerns(operation, leaving)
    assert not claims.concerns(operation, unrelated) and claims.concerns(named, unrelated)
    assert claims.concerns(operation.model_copy(update={"of_instance": True, "id": UUID(int=5)}), unrelated)


@pytest.mark.parametrize(
    ("status", "ends", "written", "vanished"),
    [
        ("running", 60, 0, True),
        ("running", 2, 0, False),
        ("running", 3, 0, True),
        ("running", 0, 0, False),
        ("running", 60, None, True),
        ("running", None, 0, False),
        ("accepted", 60, 0, False),
    ],
)
def test_a_holder_that_handed_back_did_not_vanish(
    status: str, ends: int | None, written: int | None, vanished: bool
) -> None:
    changes = {
        "status": status,
        "lease_expires_at": None if ends is None else NOW + timedelta(seconds=ends),
        "updated_at": None if written is None else NOW,
    }
    assert claims.ran_out(add(2).model_copy(update=changes)) is vanished


@pytest.mark.parametrize(("attempt", "first"), [(0, True), (1, True), (2, False)])
def test_the_first_claim_is_the_first_attempt(attempt: int, first: bool) -> None:
    assert claims.is_first_claim(add(2).model_copy(update={"attempt": attempt})) is first
