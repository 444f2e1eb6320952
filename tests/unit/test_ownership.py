"""Whose a member is that another client wrote to, or that was just read: no write goes over another runner's work."""

from typing import Any
from uuid import UUID

import pytest

from runner.model.plan import stamp
from runner.model.platform import Member, Operation
from runner.report.leases import LostLease
from tests.unit.lifecycle import ask, ask_whole, cluster
from tests.unit.record_writer import INSTANCE, OURS, Platform, a_member, changed, writer
from tests.unit.worlds import NOW, OTHER, add, claimed_by_another, claimed_by_us, controller, held


def write_over(member: Member, *operations: Operation, others: tuple[Member, ...] = (), **more: Any) -> None:
    platform = Platform({member.id: changed(member, **more.pop("after", {}))}, {one.id: one for one in operations})
    writes = writer(platform, member, *others)
    for one in more.pop("now", ()):
        platform.members[one.id] = one
    writes.claimed = {one.id: one for one in more.pop("claimed", ())}
    writes.write_member(member.id, member.status, {"phase": "x"})


@pytest.mark.parametrize("of_instance", [False, True])
def test_a_member_at_which_anothers_operation_works_is_left_to_it(of_instance: bool) -> None:
    operation = claimed_by_another(ask_whole("stop") if of_instance else ask("drain"))
    member = a_member(detail={"operation_id": str(operation.id)})
    with pytest.raises(LostLease, match=f"^{operation.operation} {operation.id} is held by another runner$"):
        write_over(member, operation)
    for free in (claimed_by_us(operation), operation.model_copy(update={"claimed_by": None})):
        write_over(member, free)
    write_over(member, operation.model_copy(update={"status": "succeeded"}))
    write_over(member)
    write_over(member, operation, claimed=(claimed_by_us(ask_whole("restart")),))
    with pytest.raises(LostLease):
        write_over(member, operation, claimed=(claimed_by_us(ask("drain")),))


def test_the_operation_that_removes_a_member_counts_before_the_one_that_added_it() -> None:
    added, removes = claimed_by_us(add(2)), claimed_by_another(ask("remove"))
    leave = {"format": 2, "operation_id": str(removes.id), "verb": "remove", "started_at": stamp(NOW)}
    member = a_member(detail={"operation_id": str(added.id), "leave": leave})
    with pytest.raises(LostLease, match=r"^remove "):
        write_over(member, added, removes)
    ended = a_member(detail={"operation_id": str(added.id), "leave": leave | {"result": "done"}})
    write_over(ended, added, removes)


def test_a_controller_that_is_brought_up_is_held_by_its_own_claim() -> None:
    first = controller(status="reconciling", etag="1", adapter_detail={"fence": 4})
    with pytest.raises(LostLease, match=f"^controller {first.id} is held by another runner$"):
        write_over(first)
    write_over(first, after=OURS)
    write_over(controller(status="ready", etag="1", adapter_detail={"fence": 4}))


def test_a_decommission_without_an_operation_is_held_by_one_of_the_members() -> None:
    leave = {"format": 2, "operation_id": str(INSTANCE), "verb": "decommission", "started_at": stamp(NOW)}
    member, keeper = a_member(detail={"leave": leave}), a_member(3, detail=OURS)
    write_over(member, others=(keeper,))
    with pytest.raises(LostLease, match=f"^the decommission of {INSTANCE} is held by another runner$"):
        write_over(member, others=(keeper,), now=(held(keeper),))
    write_over(member, others=(a_member(3),), now=(held(keeper),))


# -- records that were just read -------------------------------------------------------------------------------


def test_the_next_writes_are_based_on_the_records_that_were_read() -> None:
    ours, free, member = claimed_by_us(ask("drain")), ask("remove"), a_member(detail=OURS)
    whole = claimed_by_us(ask_whole("stop"))
    writes = writer(Platform(), member, a_member(3))
    writes.claimed = {ours.id: ours, whole.id: whole}
    newest = changed(member, "2", note="new")
    now = cluster(newest, operations=(ours, free), whole=(whole,)).later(fences={member.id: 4, UUID(int=5): 1})
    writes.adopt(now)
    assert writes.members == {one.id: one for one in now.members} and writes.instance is now.instance
    assert writes.claimed == {ours.id: ours, whole.id: whole}
    writes.adopt(cluster())
    assert writes.claimed == {}, "they have ended"


@pytest.mark.parametrize(
    ("after", "fence", "text"),
    [
        ({"claimed_by": OTHER}, 4, "was taken over by another runner"),
        ({"claimed_by": None}, 4, "was taken over by another runner"),
        ({}, 5, "was claimed again by another runner"),
    ],
)
def test_a_member_that_is_not_ours_any_more_ends_the_tick(after: dict[str, Any], fence: int, text: str) -> None:
    member = a_member(detail=OURS)
    writes = writer(Platform(), member, a_member(3))
    now = cluster(changed(member, **after)).later(fences={member.id: fence})
    with pytest.raises(LostLease, match=f"^worker {member.id} {text}$"):
        writes.adopt(now)


def test_an_operation_that_another_runner_took_over_ends_the_tick() -> None:
    ours = claimed_by_us(ask("drain"))
    writes = writer(Platform())
    writes.claimed = {ours.id: ours}
    with pytest.raises(LostLease, match=f"^drain {ours.id} was taken over by {OTHER}$"):
        writes.adopt(cluster(operations=(claimed_by_another(ours),)))
    assert writes.claimed == {}
