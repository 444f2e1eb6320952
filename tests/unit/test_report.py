"""The writer: what it does with leases when the platform, a person or another runner gets in between."""

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from runner.model.errors import Conflict, NotFound, Unavailable
from runner.model.limits import RECORD_BYTES, RecordTooLarge, size
from runner.model.plan import Finish, SetInstance, SetMember, stamp
from runner.model.platform import Member, Operation
from runner.model.world import World
from runner.report.leases import LostLease
from runner.report.reporter import Reporter
from runner.slurm.app import SLURM
from tests.unit.lifecycle import ask, ask_whole, cluster, serving
from tests.unit.worlds import ME, NOW, claimed_by_us, controller
from tests.waits import until


class FakeClient:
    """The edge: records what is sent, and answers as configured."""

    def __init__(self, answer: Callable[[Operation], Operation] = lambda one: one) -> None:
        self.sent: list[tuple[str | None, dict[str, Any]]] = []
        self.newest: dict[UUID, Operation] = {}
        self.members: dict[UUID, Member] = {}
        self._answer = answer

    def clone(self, *, patience: float | None = None) -> "FakeClient":
        return self

    def now(self) -> datetime:
        return NOW

    def __enter__(self) -> "FakeClient":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def patch_operation(self, _instance: UUID, operation: Operation, body: dict[str, Any], **_: Any) -> Operation:
        self.sent.append((operation.claimed_by, body))
        return self._answer(operation)

    def patch_member(self, member: Member, body: dict[str, Any], **_: Any) -> Member:
        if member.etag != "newest":
            raise Conflict("changed meanwhile", status=412)
        return member.model_copy(update=body)

    def member(self, _instance: UUID, member_id: UUID) -> Member:
        return self.members[member_id]

    def operation_again(self, _instance: UUID, operation: Operation) -> Operation:
        return self.newest[operation.id]


def reporter(
    client: FakeClient, *operations: Operation, lease_seconds: float = 120, world: World | None = None
) -> Reporter:
    settings: Any = SimpleNamespace(runner_id=ME, lease_seconds=lease_seconds)
    made = Reporter(client, settings, world or cluster(operations=operations), SLURM)  # type: ignore[arg-type]
    made.writer.claimed = {one.id: one for one in operations}
    return made


def test_a_record_over_the_limit_is_not_sent() -> None:
    """The platform would refuse it, at this tick and at every later one."""
    client, too_long = FakeClient(), {"leave": {"did": "x" * 20_000}}
    member = serving(2, etag="newest")
    now = cluster(member)
    report = reporter(client, world=now)
    with pytest.raises(RecordTooLarge, match=r"record_too_large: adapter_detail of member .* 'leave'"):
        report.apply(SetMember("too long", member, "ready", too_long), now)
    with pytest.raises(RecordTooLarge, match="record_too_large: status_detail of instance"):
        report.apply(SetInstance("too long", "running", "healthy", too_long), now)
    operation = claimed_by_us(ask("drain", serving(2)))
    with pytest.raises(RecordTooLarge, match="record_too_large: result of operation"):
        report.apply(Finish("too long", operation, "succeeded", too_long), now)
    assert client.sent == []


def test_a_lease_that_another_runner_took_over_is_not_released() -> None:
    ours = claimed_by_us(ask("drain", serving(2)))
    client = FakeClient()
    report = reporter(client, ours)
    theirs = ours.model_copy(update={"claimed_by": "other", "lease_expires_at": NOW + timedelta(days=1)})
    with pytest.raises(LostLease, match="taken over by other"):
        report.writer.adopt(cluster(operations=(theirs,)))
    report.claims.release()
    assert client.sent == []


def test_a_lease_that_cannot_be_renewed_is_lost_when_it_expires() -> None:
    def away(_: Operation) -> Operation:
        raise Unavailable("the platform is away")

    report = reporter(FakeClient(away), claimed_by_us(ask("drain", serving(2))), lease_seconds=0.3)
    with capture_logs() as logged:
        report.claims.renewal.start()
        until(lambda: report.claims.renewal.is_lost, 5, "the lease is lost")
        report.claims.renewal.stop()
    assert {line["event"] for line in logged} == {"lease not renewed"}
    with pytest.raises(LostLease):
        report.apply(SetMember("too late", controller(), "ready"), cluster())


def test_cancelling_one_operation_does_not_stop_the_play_of_the_others() -> None:
    one, other = claimed_by_us(ask("drain", serving(2))), claimed_by_us(ask("drain", serving(3)))
    renewed = threading.Event()

    def answer(operation: Operation) -> Operation:
        if operation.id == one.id:
            raise Conflict("changed meanwhile", status=412)
        renewed.set()
        return operation

    client = FakeClient(answer)
    client.newest[one.id] = one.model_copy(update={"status": "cancelled"})
    report = reporter(client, one, other, lease_seconds=0.3)
    report.claims.renewal.start()
    assert renewed.wait(5)
    assert not report.claims.renewal.is_lost
    report.claims.renewal.stop()
    assert set(report.writer.claimed) == {other.id}


@pytest.mark.parametrize("taken_by", ["other", None])
def test_a_lease_that_another_runner_holds_is_lost(taken_by: str | None) -> None:
    ours = claimed_by_us(ask("drain", serving(2)))

    def refuse(_: Operation) -> Operation:
        raise Conflict("changed meanwhile", status=412)

    client = FakeClient(refuse)
    client.newest[ours.id] = ours.model_copy(update={"claimed_by": taken_by})
    report = reporter(client, ours, lease_seconds=0.3)
    report.claims.renewal.start()
    until(lambda: report.claims.renewal.is_lost, 5, "the lease is lost")
    report.claims.renewal.stop()


def test_the_runner_of_an_instance_operation_may_write_all_members() -> None:
    """A controller that is stopped is not claimed by itself; after a lost answer our own write is in the way."""
    member = controller(status="requested")
    client = FakeClient()
    client.members[member.id] = member.model_copy(update={"etag": "newest"})
    ours = claimed_by_us(ask_whole("start"))
    step = SetMember("it comes up", member, "reconciling", {"phase": "munge"})
    start = cluster().with_member(member)
    assert reporter(client, ours, world=start).apply(step, start).members[-1].status == "reconciling"
    with pytest.raises(LostLease):
        reporter(client, world=start).apply(step, start)


class Lost(FakeClient):
    """A platform on which another writer changed the member in between."""

    def __init__(self, newest: Member, instance_operation: Operation | None = None) -> None:
        super().__init__()
        self._members = {newest.id: newest}
        self._asked = instance_operation
        self.written: list[dict[str, Any]] = []

    def member(self, _instance: UUID, member_id: UUID) -> Member:
        return self._members[member_id]

    def member_operation(self, _instance: UUID, _operation: UUID) -> Operation:
        raise NotFound("no such operation of a member")

    def instance_operation(self, _instance: UUID, _operation: UUID) -> Operation:
        if self._asked is None:
            raise NotFound("no such operation of the instance")
        return self._asked

    def patch_member(self, member: Member, body: dict[str, Any], **_: Any) -> Member:
        if member.etag != "new":
            raise Conflict("changed meanwhile", status=412)
        self.written.append(body)
        return member


def leaving_by(operation_id: UUID) -> Member:
    return serving(2, status="deleting", adapter_detail={"leave": {"operation_id": str(operation_id), "verdict": None}})


def is_written_only_if(ours: bool, client: Lost, member: Member, world: World) -> None:
    report = Reporter(client, SimpleNamespace(runner_id=ME, lease_seconds=9), world, SLURM)  # type: ignore[arg-type]
    step = SetMember("gone", member, "deleted")
    if ours:
        report.apply(step, world)
        assert client.written
    else:
        with pytest.raises(LostLease):
            report.apply(step, world)


@pytest.mark.parametrize("claimed_by", [ME, "other"])
def test_a_member_of_a_decommission_is_held_by_the_instance_operation(claimed_by: str) -> None:
    asked = claimed_by_us(ask("decommission")).model_copy(update={"claimed_by": claimed_by, "of_instance": True})
    member = leaving_by(asked.id)
    client = Lost(member.model_copy(update={"etag": "new"}), asked)
    world = cluster(member)
    is_written_only_if(claimed_by == ME, client, member, world)


@pytest.mark.parametrize("claimed_by", [ME, "other"])
def test_a_decommission_without_an_operation_is_held_by_one_members_claim(claimed_by: str) -> None:
    world = cluster()
    member = leaving_by(world.instance.id)
    keeper = serving(3, status="deleting", adapter_detail={"claimed_by": ME})
    world = cluster(member, keeper)
    client = Lost(member.model_copy(update={"etag": "new"}))
    client._members[keeper.id] = keeper.model_copy(update={"adapter_detail": {"claimed_by": claimed_by}})
    is_written_only_if(claimed_by == ME, client, member, world)


def test_the_lease_of_a_claimed_member_is_renewed() -> None:
    claim = {"claimed_by": ME, "lease_expires_at": stamp(NOW - timedelta(seconds=60)), "fence": 3}
    member = serving(2, adapter_detail=claim).model_copy(update={"etag": "newest"})
    sent: list[dict[str, Any]] = []

    class Noting(FakeClient):
        def patch_member(self, member: Member, body: dict[str, Any], **more: Any) -> Member:
            sent.append(body["adapter_detail"])
            return super().patch_member(member, body, **more)

    report = reporter(Noting(), lease_seconds=0.3, world=cluster(member))
    report.claims.renewal.start()
    until(lambda: sent, 5, "its lease is renewed")
    report.claims.renewal.stop()
    assert (sent[0]["claimed_by"], sent[0]["fence"]) == (ME, 3)
    assert report.writer.members[member.id].adapter_detail["fence"] == 3


def test_a_record_too_large_is_written_without_what_can_be_observed_again() -> None:
    member = serving(2, etag="newest", status="reconciling")
    report = reporter(FakeClient(), world=cluster(member))
    large = {"residue": ["r" * 9000], "drain_reason": "d" * 9000, "host_cleaned": True}
    report.apply(SetMember("test", member, "reconciling", large), cluster(member))
    written = report.writer.members[member.id].adapter_detail
    assert size(written) <= RECORD_BYTES
    assert (written["cut"], written["residue"], written["host_cleaned"]) == (["residue"], None, True)
