"""Writes the records of one instance: each on the newest copy, and never over the work of another runner."""

import contextlib
import threading
from collections.abc import Iterator
from uuid import UUID

from runner import context
from runner.model import claims, limits, play_history
from runner.model.app import App
from runner.model.attached import AttachedProject
from runner.model.errors import Conflict
from runner.model.instance_notes import OWN_PLAYS, StatusDetail
from runner.model.member_notes import MemberNotes
from runner.model.plan import Detail, NewMember, NewOperation, SetAttachment, SetInstance, stamp
from runner.model.platform import AppInstance, Member, Operation, OperationStatus
from runner.model.work_notes import PlayHistory
from runner.model.world import World
from runner.platform.client import Client
from runner.report.keys import idempotency_key, update_key
from runner.report.leases import LostLease, OperationEnded, Outdated
from runner.report.ownership import check_still_ours
from runner.settings import Settings

# A write that conflicts with another one is sent again, based on the newest copy.
WRITE_TRIES = 4


def marked() -> Detail:
    """The correlation id and the trace of the work at hand, for the record of a member on which it is done."""
    found = context.correlation_id()
    return MemberNotes(correlation_id=found, trace_id=context.trace_id()).changes if found else {}


class RecordWriter:
    """Holds the newest copy of each record. Its `lock` is held by whichever thread writes."""

    def __init__(self, client: Client, settings: Settings, world: World, app: App) -> None:
        self.client = client
        self._app = app
        self._runner_id = settings.runner_id
        self.instance: AppInstance = world.instance
        self.members: dict[UUID, Member] = {member.id: member for member in world.members}
        self.claimed: dict[UUID, Operation] = {}
        # Operations that ended while we held them, since a person cancelled them.
        self.ended: set[UUID] = set()
        # Plays that no operation asked for, with those that are not written yet; None if all are.
        self.own_plays: PlayHistory | None = None
        self.lock = threading.RLock()

    def adopt(self, world: World) -> None:
        """Base the next writes on the records that were just read; LostLease if one is no longer ours."""
        with self.lock:
            held = [member.id for member in self.members.values() if self.holds(member)]
            before, self.instance = self.claimed, world.instance
            self.members = {member.id: member for member in world.members}
            open_now = [one for one in (*world.operations, *world.instance_operations) if one.id in before]
            self.claimed = {one.id: one for one in open_now if one.claimed_by == self._runner_id}
            for operation in open_now:
                if operation.id not in self.claimed:
                    raise LostLease(f"{operation.operation} {operation.id} was taken over by {operation.claimed_by}")
            for member_id in held:
                newest = self.members.get(member_id)
                if newest and not self.holds(newest):
                    raise LostLease(f"{newest.component_key} {newest.id} was taken over by another runner")
            for member_id, fence in world.fences.items():
                newest = self.members.get(member_id)
                if newest and claims.fence(newest) != fence:
                    raise LostLease(f"{newest.component_key} {newest.id} was claimed again by another runner")

    def holds(self, member: Member) -> bool:
        return claims.is_held_by(self._runner_id, member)

    @contextlib.contextmanager
    def using(self, client: Client) -> Iterator[None]:
        """Write through another client for a moment."""
        with self.lock:
            usual, self.client = self.client, client
            try:
                yield
            finally:
                self.client = usual

    # -- members ---------------------------------------------------------------------------------------------

    def create_member(self, step: NewMember) -> Member:
        body = {
            "component_key": step.component_key,
            "allocation_id": str(step.allocation_id),
            "adapter_detail": step.detail | marked() | {claims.FENCE: 1},
        }
        key = idempotency_key("member", step.operation.id, step.allocation_id)
        member = self.client.create_member(self.instance.id, body, key=key)
        self.members[member.id] = member
        return member

    def write_member(self, member_id: UUID, status: str, changes: Detail, *, new_fence: bool = False) -> Member:
        """Write these changes into the newest detail there is; nothing else in it is changed."""
        before = self.members[member_id]
        changes = changes | marked() if new_fence else changes
        # A list may come without the ETags that a single read has.
        member = before if before.etag else self._read_again(before, status, new_fence)
        for _ in range(WRITE_TRIES):
            stored = member.adapter_detail
            detail = {**self._app.full_detail(member), **changes}
            # Only a claim changes the fence, and only upwards.
            detail[claims.FENCE] = (claims.fence(member) or 0) + 1 if new_fence else stored.get(claims.FENCE, 0)
            detail = self._app.fit_detail(member.component_key, detail)
            if member.status == status and {claims.FENCE: 0, **stored} == detail:
                return member
            body: Detail = {"adapter_detail": detail}
            if member.status != status:
                body["status"] = status
            try:
                self.members[member_id] = self._patch_member(member, body)
            except Conflict:
                member = self._read_again(before, status, new_fence)
                continue
            return self.members[member_id]
        raise Outdated(f"{before.component_key} {member_id} could not be written: other clients keep changing it")

    def _read_again(self, before: Member, status: str, new_fence: bool) -> Member:
        """The member as it is now, if the write is still valid: the claim and the base of the decision are the same."""
        newest = self.client.member(self.instance.id, before.id)
        label = f"{newest.component_key} {newest.id}"
        other = claims.other_holder(self._runner_id, self.client.now(), *claims.lease(newest))
        if other:
            raise LostLease(f"{label} is held by {other[0]} until {stamp(other[1])}")
        if self.holds(before) and not self.holds(newest):
            raise LostLease(f"{label} is no longer held by this runner")
        if newest.status not in (before.status, status):
            raise Outdated(f"{label} is {newest.status} now, and was {before.status}")
        if new_fence and (claims.fence(newest) is None or claims.fence(newest) != claims.fence(before)):
            raise Outdated(f"{label} was claimed by another runner")
        # The runner of an instance operation holds all members.
        if newest.etag != before.etag and not any(operation.of_instance for operation in self.claimed.values()):
            members, components = list(self.members.values()), self._app.components
            check_still_ours(self.client, self._runner_id, self.instance.id, newest, members, components)
        return newest

    def _patch_member(self, member: Member, body: Detail) -> Member:
        limits.check(f"member {member.id}", body)
        return self.client.patch_member(member, body, key=update_key("member", member, body))

    def create_operation(self, step: NewOperation) -> Operation:
        """Request an operation of our own. Every runner that requests the same one gets the same record."""
        allocations = [str(one) for one in step.allocation_ids]
        body = {"operation": step.verb, "component_key": step.component_key, "allocation_ids": allocations}
        key = idempotency_key("operation", self.instance.id, step.verb, step.component_key, allocations)
        return self.client.seed_operation(self.instance.id, body, key=key)

    # -- operations and the instance -------------------------------------------------------------------------

    def patch_operation(self, operation: Operation, body: Detail) -> Operation:
        limits.check(f"operation {operation.id}", body)
        try:
            return self._patch_operation(operation, body)
        except Conflict:
            if operation.id not in self.claimed:
                raise
        newest = self.client.operation_again(self.instance.id, operation)
        label = f"{operation.operation} {operation.id} is {newest.status}"
        if newest.status != OperationStatus.RUNNING:
            del self.claimed[operation.id]
            self.ended.add(operation.id)
            raise OperationEnded(label)
        if newest.claimed_by != self._runner_id:
            del self.claimed[operation.id]
            raise LostLease(f"{label}, held by {newest.claimed_by}")
        return self._patch_operation(newest, body)

    def _patch_operation(self, operation: Operation, body: Detail) -> Operation:
        key = update_key("operation", operation, body)
        return self.client.patch_operation(self.instance.id, operation, body, key=key)

    def set_instance(self, step: SetInstance) -> AppInstance:
        """Write what is reported of the instance. What people keep there stays; see `_merged`."""
        body: Detail = {"status": step.status, "health": step.health, "status_detail": self._with_plays(step.detail)}
        if step.access is not None:
            body["access"] = step.access
        limits.check(f"instance {self.instance.id}", body)
        try:
            if self.instance.etag is None:
                # The platform would not notice that a person's note came in between.
                newest = self.client.instance(self.instance.id)
                body["status_detail"] = self._merged(newest, step)
            self.instance = self._patch_instance(self.instance, body)
        except Conflict:
            newest = self.client.instance(self.instance.id)
            self.instance = self._patch_instance(newest, {**body, "status_detail": self._merged(newest, step)})
        self.own_plays = None
        return self.instance

    def set_attachment(self, step: SetAttachment) -> AttachedProject:
        """Outdated if another client wrote the record meanwhile: what is asked for may have changed."""
        attachment, body = step.attachment, step.changes
        limits.check(f"attachment {attachment.id}", body)
        key = update_key("attachment", attachment, body)
        try:
            return self.client.patch_attachment(self.instance.id, attachment, body, key=key)
        except Conflict as conflict:
            raise Outdated(f"attachment {attachment.id} was changed: {conflict.message}") from None

    def write_own_plays(self) -> None:
        """Put the plays that no operation asked for into the newest status_detail, and change nothing else."""
        instance = self.instance
        for _ in range(WRITE_TRIES):
            if instance.etag is None:
                # The platform would not notice that a person's note came in between.
                instance = self.client.instance(instance.id)
            body = {"status_detail": self._with_plays(instance.status_detail or {})}
            limits.check(f"instance {instance.id}", body)
            try:
                written = self._patch_instance(instance, body)
            except Conflict:
                instance = self.client.instance(instance.id)
                continue
            if instance is self.instance:  # else the next report has to notice what others changed
                self.instance = written
            self.own_plays = None
            return
        raise Outdated(f"instance {instance.id} could not be written: other clients keep changing it")

    def _with_plays(self, detail: Detail) -> Detail:
        """With the plays that were not requested, if they fit beside what decisions need."""
        if not self.own_plays:
            return detail
        left = limits.RECORD_BYTES - limits.size({**detail, OWN_PLAYS: None})
        return detail | StatusDetail(own_plays=play_history.fitted(self.own_plays, left)).changes

    def _patch_instance(self, instance: AppInstance, body: Detail) -> AppInstance:
        return self.client.patch_instance(instance, body, key=update_key("instance", instance, body))

    def _merged(self, newest: AppInstance, step: SetInstance) -> Detail:
        """The newest status_detail with what this write changes; Outdated if the decision was based on another one."""
        before, now = self.instance.status_detail or {}, newest.status_detail or {}
        if newest.status != self.instance.status:
            # An operator stopped or deleted it meanwhile, or another runner continued.
            raise Outdated(f"the instance is {newest.status} now, and was {self.instance.status}")
        if newest.notes.lifecycle != self.instance.notes.lifecycle:
            raise Outdated("another runner continued the instance operation")
        gone = before.keys() - step.detail.keys()
        kept = {key: value for key, value in now.items() if key not in gone}
        # A null is a value, too: left out, it would be planned again and again.
        changed = {key: value for key, value in step.detail.items() if key not in before or before[key] != value}
        return self._with_plays(kept | changed)
