"""Writes of one instance's records, call by call: each on the newest copy, and repeated only if it is still valid."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from runner import context
from runner.model import cause
from runner.model.attached import AttachedProject
from runner.model.cause import Cause
from runner.model.errors import Conflict
from runner.model.limits import RECORD_BYTES, RecordTooLarge
from runner.model.plan import NewMember, NewOperation, SetAttachment, SetInstance, stamp
from runner.report.keys import idempotency_key, update_key
from runner.report.leases import LostLease, OperationEnded, Outdated
from runner.report.writes import WRITE_TRIES
from runner.slurm import detail
from runner.slurm.fitting import fitted
from tests.unit.lifecycle import ask, serving
from tests.unit.record_writer import INSTANCE, OURS, Platform, a_member, changed, writer
from tests.unit.worlds import NOW, OTHER, SOON, THEIR_CLAIM, add, claimed_by_us, instance

ATTACHED = AttachedProject(id=UUID(int=3), project_id=UUID(int=5), status="requested", etag="1")


def test_an_operation_of_our_own_is_requested_with_the_same_key_by_every_runner() -> None:
    platform, allocations = Platform(), (UUID(int=7), UUID(int=8))
    made = writer(platform).create_operation(NewOperation("why", "add", "worker", allocations))
    listed = [str(one) for one in allocations]
    body = {"operation": "add", "component_key": "worker", "allocation_ids": listed}
    key = idempotency_key("operation", INSTANCE, "add", "worker", listed)
    assert platform.sent == [(INSTANCE, body, key)] and made is platform.seeded


def test_an_attachment_gets_what_changed_once_for_each_version_of_it() -> None:
    platform, before, body = Platform(), ATTACHED, {"status": "active"}
    written = writer(platform).set_attachment(SetAttachment("why", before, body))
    assert platform.sent == [(INSTANCE, before.id, body, update_key("attachment", before, body))]
    assert written == before.written(body)


def test_an_attachment_that_changed_meanwhile_is_decided_again() -> None:
    before = ATTACHED
    writes = writer(Platform(refusal=Conflict("changed meanwhile", status=412)))
    with pytest.raises(Outdated, match=f"attachment {before.id} was changed: changed meanwhile"):
        writes.set_attachment(SetAttachment("why", before, {"status": "active"}))


def test_what_is_written_to_an_attachment_keeps_to_the_size_of_a_record() -> None:
    before, platform = ATTACHED, Platform()
    large = {"adapter_detail": {"text": "x" * RECORD_BYTES}}
    with pytest.raises(RecordTooLarge, match=f"attachment {before.id}"):
        writer(platform).set_attachment(SetAttachment("why", before, large))
    assert platform.sent == []


def test_a_new_member_begins_with_its_first_number() -> None:
    platform, asked = Platform(), add(4)
    allocation = asked.allocation_ids[0]
    writes = writer(platform)
    with context.bound(cause.of_operation(asked)):
        made = writes.create_member(NewMember("why", asked, "worker", allocation, {"phase": "requested"}))
    body = {
        "component_key": "worker",
        "allocation_id": str(allocation),
        "adapter_detail": {
            "phase": "requested",
            "correlation_id": asked.correlation_id,
            "trace_id": None,
            "fence": 1,
        },
    }
    key = idempotency_key("member", asked.id, allocation)
    assert platform.sent == [(INSTANCE, body, {"key": key})]
    assert writes.members[made.id] is made


@pytest.mark.parametrize(("stored", "new", "fence"), [(4, False, 4), (4, True, 5), (None, False, 0), (None, True, 1)])
def test_a_write_changes_the_number_only_for_a_claim(stored: int | None, new: bool, fence: int) -> None:
    member = a_member(detail={"fence": stored}) if stored else serving(2, etag="1")
    platform = Platform()
    written = writer(platform, member).write_member(member.id, "draining", {"fence": 99, "phase": "x"}, new_fence=new)
    body = {"adapter_detail": {**detail.filled(member), "phase": "x", "fence": fence}, "status": "draining"}
    assert platform.sent == [("1", body, update_key("member", member, body), None)]
    assert written.adapter_detail["fence"] == fence and written.status == "draining"


@pytest.mark.parametrize("claims", [True, False])
def test_a_write_has_the_correlation_id_of_its_cause_and_a_claim_marks_the_member(claims: bool) -> None:
    member = a_member(correlation_id="corr-9")
    platform = Platform()
    with context.bound(Cause("c-drain")):
        writer(platform, member).write_member(member.id, "ready", {"phase": "x"}, new_fence=claims)
    ((_, body, _, correlation_id),) = platform.sent
    assert correlation_id == "c-drain" and "status" not in body
    assert body["adapter_detail"].get("correlation_id") == ("c-drain" if claims else None)


@pytest.mark.parametrize("recorded", [{"fence": 4}, {}])
def test_a_write_without_a_change_is_not_sent(recorded: dict[str, Any]) -> None:
    member = serving(2, etag="1")
    member = member.model_copy(update={"adapter_detail": {**detail.filled(member), **recorded}})
    platform = Platform()
    assert writer(platform, member).write_member(member.id, "ready", {"phase": "serving"}) is member
    assert platform.sent == []


def test_a_write_that_is_too_large_is_fitted_by_the_members_component() -> None:
    member = a_member(detail={"residue": ["r" * 20_000]})
    platform = Platform()
    writer(platform, member).write_member(member.id, "ready", {"phase": "x"})
    ((_, body, _, _),) = platform.sent
    assert body["adapter_detail"] == fitted("worker", {**detail.filled(member), "phase": "x"})
    assert body["adapter_detail"]["cut"] == ["residue"]


def test_a_large_detail_loses_what_its_component_reports_before_what_decides() -> None:
    member = a_member(detail={"slurm_version": "v" * 20_000, "worker_hostname": "w"})
    platform = Platform()
    writer(platform, member).write_member(member.id, "ready", {"phase": "x"})
    ((_, body, _, _),) = platform.sent
    assert body["adapter_detail"] == fitted("worker", {**detail.filled(member), "phase": "x"})
    assert body["adapter_detail"]["cut"] == ["slurm_version"]


def test_a_member_without_an_etag_that_already_has_the_status_is_written() -> None:
    member = a_member(etag=None)
    platform = Platform({member.id: changed(member, "7", "draining")})
    writer(platform, member).write_member(member.id, "draining", {"phase": "x"})
    assert [sent[0] for sent in platform.sent] == ["7"]


def test_a_member_from_a_list_without_etags_is_read_first() -> None:
    member = a_member(etag=None)
    platform = Platform({member.id: changed(member, "7", note="kept")})
    writer(platform, member).write_member(member.id, "ready", {"phase": "x"})
    ((etag, body, _, _),) = platform.sent
    assert etag == "7" and (body["adapter_detail"]["phase"], body["adapter_detail"]["note"]) == ("x", "kept")


@pytest.mark.parametrize("new_fence", [False, True])
def test_a_conflicting_write_is_repeated_on_the_newest_copy(new_fence: bool) -> None:
    member = a_member()
    platform = Platform({member.id: changed(member, note="kept")})
    writes = writer(platform, member)
    written = writes.write_member(member.id, "draining", {"phase": "x"}, new_fence=new_fence)
    assert [sent[0] for sent in platform.sent] == ["1", "2"]
    assert (written.adapter_detail["note"], written.adapter_detail["fence"]) == ("kept", 5 if new_fence else 4)
    assert writes.members[member.id] is written


def test_a_write_is_repeated_a_bounded_number_of_times() -> None:
    member = a_member()
    platform = Platform({member.id: member})

    def write() -> None:
        platform.members[member.id] = changed(member, f"{len(platform.sent)} of another")

    platform.meanwhile = write
    with pytest.raises(Outdated, match=f"^worker {member.id} could not be written: other clients keep changing it$"):
        writer(platform, member).write_member(member.id, "ready", {"phase": "x"})
    assert len(platform.sent) == WRITE_TRIES == 4


@pytest.mark.parametrize("etag", ["1", None])
@pytest.mark.parametrize(
    ("before", "after", "error", "text"),
    [
        ({}, THEIR_CLAIM, LostLease, f"is held by other until {stamp(SOON)}"),
        (OURS, {"claimed_by": None}, LostLease, "is no longer held by this runner"),
        ({}, {"status": "deleting"}, Outdated, "is deleting now, and was ready"),
        ({}, {"fence": 5}, Outdated, "was claimed by another runner"),
        ({}, {"fence": "text"}, Outdated, "was claimed by another runner"),
    ],
)
def test_a_write_ends_if_what_it_was_based_on_changed(
    etag: str | None, before: dict[str, Any], after: dict[str, Any], error: type[Exception], text: str
) -> None:
    member = a_member(etag=etag, detail=before)
    platform = Platform({member.id: changed(member, **after)})
    with pytest.raises(error, match=f"^worker {member.id} {text}$"):
        writer(platform, member).write_member(member.id, "draining", {"phase": "x"}, new_fence=True)
    assert all(sent[0] == "1" for sent in platform.sent)


def test_a_write_goes_on_if_its_basis_is_the_same_in_other_words() -> None:
    past = {"claimed_by": OTHER, "lease_expires_at": stamp(NOW - timedelta(seconds=1))}
    for after in (past, {"status": "draining"}, OURS):
        member = a_member()
        platform = Platform({member.id: changed(member, **after)})
        assert writer(platform, member).write_member(member.id, "draining", {"phase": "x"}).status == "draining"
    member = a_member()
    platform = Platform({member.id: changed(member, fence=5)})
    assert writer(platform, member).write_member(member.id, "draining", {}).adapter_detail["fence"] == 5


def test_another_client_writes_for_a_moment() -> None:
    usual, other = Platform(), Platform()
    writes = writer(usual)
    client: Any = other
    with pytest.raises(KeyError), writes.using(client):
        assert writes.client is client
        raise KeyError
    assert writes.client is usual  # type: ignore[comparison-overlap]


# -- operations and the instance -------------------------------------------------------------------------------


def test_an_operation_is_written_and_a_conflict_with_a_foreign_one_is_raised() -> None:
    operation = claimed_by_us(ask("drain")).model_copy(update={"etag": "1"})
    platform, body = Platform(operations={operation.id: operation}), {"status": "succeeded"}
    writes = writer(platform)
    assert writes.patch_operation(operation, body).status == "succeeded"
    assert platform.sent == [(INSTANCE, "1", body, update_key("operation", operation, body))]
    platform.operations[operation.id] = operation.model_copy(update={"etag": "2"})
    with pytest.raises(Conflict):
        writes.patch_operation(operation, body)


@pytest.mark.parametrize(
    ("after", "error", "text"),
    [
        ({}, None, ""),
        ({"status": "cancelled"}, OperationEnded, "is cancelled"),
        ({"claimed_by": OTHER}, LostLease, "is running, held by other"),
    ],
)
def test_a_conflict_with_our_operation_is_judged_by_the_newest(
    after: dict[str, Any], error: type[Exception] | None, text: str
) -> None:
    operation = claimed_by_us(ask("drain")).model_copy(update={"etag": "1"})
    platform = Platform(operations={operation.id: operation.model_copy(update={"etag": "2"} | after)})
    writes = writer(platform)
    body: dict[str, Any] = {"result": {}}
    writes.claimed = {operation.id: operation}
    if error is None:
        writes.patch_operation(operation, body)
        assert [sent[1:3] for sent in platform.sent] == [("1", body), ("2", body)]
        return
    with pytest.raises(error, match=f"^drain {operation.id} {text}$"):
        writes.patch_operation(operation, body)
    assert writes.claimed == {} and len(platform.sent) == 1
    assert writes.ended == ({operation.id} if error is OperationEnded else set())


STEP = SetInstance("why", "running", "degraded", {"reasons": [1], "note": {"a": 1}, "same": 1})


@pytest.mark.parametrize("access", [None, {"controller": {}}])
def test_an_instance_is_written_whole(access: Any) -> None:
    recorded = instance(status="running", etag="1", status_detail={"gone": 1})
    platform = Platform(instance_record=recorded)
    writes = writer(platform, instance=recorded)
    step = SetInstance(STEP.why, STEP.status, STEP.health, STEP.detail, access)
    body = {"status": "running", "health": "degraded", "status_detail": STEP.detail}
    body |= {"access": access} if access else {}
    assert writes.set_instance(step) is writes.instance and writes.instance.health == "degraded"
    assert platform.sent == [("1", body, update_key("instance", recorded, body))]


def test_a_conflict_keeps_what_others_wrote_into_the_instance() -> None:
    recorded = instance(status="running", etag="1", status_detail={"gone": 1, "same": 1, "reasons": []})
    others = {"gone": 2, "same": 2, "reasons": [9], "theirs": 3}
    platform = Platform(instance_record=recorded.model_copy(update={"etag": "2", "status_detail": others}))
    writer(platform, instance=recorded).set_instance(STEP)
    assert [sent[0] for sent in platform.sent] == ["1", "2"]
    assert platform.sent[1][1] == {
        "status": "running",
        "health": "degraded",
        "status_detail": {"same": 2, "reasons": [1], "note": {"a": 1}, "theirs": 3},
    }


def test_without_an_etag_a_new_field_that_is_null_is_written_too() -> None:
    recorded = instance(status="running", status_detail={"same": 1})
    platform = Platform(instance_record=recorded)
    step = SetInstance("", "running", "degraded", {"same": 1, "note": None})
    writer(platform, instance=recorded).set_instance(step)
    assert platform.sent[-1][1]["status_detail"] == {"same": 1, "note": None}


@pytest.mark.parametrize(
    ("update", "text"),
    [
        ({"status": "stopped"}, "the instance is stopped now, and was running"),
        ({"status_detail": {"lifecycle": {"verb": "stop"}}}, "another runner continued the instance operation"),
    ],
)
def test_a_conflict_with_another_decision_ends_the_write(update: dict[str, Any], text: str) -> None:
    recorded = instance(status="running", etag="1")
    platform = Platform(instance_record=recorded.model_copy(update={"etag": "2"} | update))
    with pytest.raises(Outdated, match=f"^{text}$"):
        writer(platform, instance=recorded).set_instance(STEP)
    assert len(platform.sent) == 1
