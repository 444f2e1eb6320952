"""Writes back: only what changed, each write with a deterministic key, and never without the lease."""

import contextlib
import functools
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from runner import log
from runner.model import claims, limits
from runner.model.app import App
from runner.model.errors import Conflict, PlatformError
from runner.model.plan import (
    Announce,
    Claim,
    Detail,
    Finish,
    NewMember,
    Refuse,
    SetInstance,
    SetMember,
    SkipPlay,
    Step,
    shown,
    stamp,
)
from runner.model.platform import AppInstance, Member, MemberStatus, Operation, OperationStatus
from runner.model.world import World
from runner.platform.client import Client
from runner.report.leases import LostLease, OperationEnded, Outdated, Renewal
from runner.report.ownership import at_work, check_still_ours
from runner.settings import Settings
from runner.translate import MemberEvent

# A write that meets another's is based on the newest copy and sent again.
WRITE_TRIES = 4


class Reporter:
    """The one writer of a tick for one instance. Holds the newest copy of each object it has written."""

    def __init__(self, client: Client, settings: Settings, world: World, app: App) -> None:
        self._client = client
        self._app = app
        self._settings = settings
        self.instance: AppInstance = world.instance
        self.members: dict[UUID, Member] = {member.id: member for member in world.members}
        self.claimed: dict[UUID, Operation] = {}
        self.failed_operations = 0
        self.renewal = Renewal(self._renew, settings.lease_seconds)
        self._lock = threading.RLock()

    @functools.cached_property
    def _hasty(self) -> Client:
        """For what is nice to show: a platform that is away must not stop a play."""
        return self._client.clone(patience=0)

    def renew_copies(self, world: World) -> None:
        """Take over what was just read, so that the next write is based on it; LostLease if it is not ours any more."""
        with self._lock:
            mine = self._settings.runner_id
            held = [member.id for member in self.members.values() if claims.is_held_by(mine, member)]
            before, self.instance = self.claimed, world.instance
            self.members = {member.id: member for member in world.members}
            open_now = [one for one in (*world.operations, *world.instance_operations) if one.id in before]
            self.claimed = {one.id: one for one in open_now if one.claimed_by == mine}
            for operation in open_now:
                if operation.id not in self.claimed:
                    raise LostLease(
                        f"{operation.operation} {operation.id} was taken over by {operation.claimed_by} meanwhile"
                    )
            for member_id in held:
                newest = self.members.get(member_id)
                if newest and not claims.is_held_by(mine, newest):
                    raise LostLease(f"{newest.component_key} {newest.id} was taken over meanwhile")
            for member_id, fence in world.fences.items():
                newest = self.members.get(member_id)
                if newest and claims.number(newest) != fence:
                    raise LostLease(f"{newest.component_key} {newest.id} was claimed anew meanwhile")

    def start(self, step: Step) -> None:
        """Say what is about to be done, and make sure that it is still ours to do."""
        row = shown(step)
        self._log(step).info(row["step"], subject=row["subject"], why=row["why"])
        self.renewal.check()

    def apply(self, step: Step, world: World) -> World:
        """Carry out one write and return the world with its result in it."""
        self.start(step)
        with self._lock:
            return world.after(step, self._write(step))

    def _write(self, step: Step) -> AppInstance | Member | Operation | None:
        """The record as it was written, where there is one."""
        match step:
            case Refuse():
                self._refuse(step)
            case Claim(subject=Operation() as operation):
                return self._claim_operation(operation)
            case Claim(subject=Member() as member):
                return self._claim_member(member, step)
            case NewMember():
                return self._new_member(step)
            case SetMember():
                return self._write_member(step.member.id, step.status, step.detail, numbers=step.numbers)
            case SetInstance():
                return self._set_instance(step)
            case Announce():
                self._announce(step)
            case Finish():
                self._finish(step)
            case SkipPlay():
                pass
            case _:
                raise AssertionError(f"not a write: {step}")
        return None

    def hear(self, heard: MemberEvent) -> None:
        """Show a member's progress while its play runs. A platform that is away for a moment does not stop the play."""
        member = self.members[heard.member_id]
        status = MemberStatus.RECONCILING if member.status == MemberStatus.REQUESTED else member.status
        if status not in (MemberStatus.RECONCILING, MemberStatus.DELETING) or heard.error:
            return  # an error is judged when the play is over, with everything known
        changes = {**heard.detail, **({"phase": heard.phase} if heard.phase else {})}
        try:
            with self._lock, self._asking(self._hasty):
                self._write_member(member.id, status, changes)
        except (PlatformError, Outdated) as error:
            self._log(member_id=member.id).warning("progress not shown", problem=str(error))

    # -- leases ----------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Hand back what was claimed and is not finished, so that the next tick need not wait for the lease."""
        self.renewal.stop()
        free: Detail = {"claimed_by": None, "lease_expires_at": None}
        for operation in list(self.claimed.values()):
            self._try_release(self._patch_operation, operation, {"lease_expires_at": stamp(self._client.now())})
        for member in list(self.members.values()):
            if self._holds(member):
                self._try_release(self._write_member, member.id, member.status, free)

    def _try_release(self, write: Callable[..., object], *arguments: object) -> None:
        try:
            write(*arguments)
        except (PlatformError, LostLease, Outdated) as error:
            self._log().warning("not handed back; the lease will run out", problem=str(error))

    def _holds(self, member: Member) -> bool:
        return claims.is_held_by(self._settings.runner_id, member)

    def _until(self) -> str:
        return stamp(self._client.now() + timedelta(seconds=self._settings.lease_seconds))

    @contextlib.contextmanager
    def _asking(self, client: Client) -> Iterator[None]:
        """Write through another client for a moment; only while holding the lock."""
        usual, self._client = self._client, client
        try:
            yield
        finally:
            self._client = usual

    def _renew(self) -> None:
        """Every lease once more: operations, and members that are held by themselves. The tick writes in between."""
        with self._client.clone(patience=0) as client:
            for operation_id in list(self.claimed):
                with self._lock, self._asking(client):
                    self._renew_operation(operation_id)
            for member_id in list(self.members):
                with self._lock, self._asking(client):
                    member = self.members.get(member_id)
                    if member and self._holds(member):
                        self._write_member(member_id, member.status, {"lease_expires_at": self._until()})

    def _renew_operation(self, operation_id: UUID) -> None:
        operation = self.claimed.get(operation_id)
        if operation is None:
            return  # it has ended meanwhile
        try:
            self.claimed[operation_id] = self._patch_operation(operation, {"lease_expires_at": self._until()})
        except OperationEnded as ended:
            # A person called this one off; the others of the same play are not to suffer for it.
            self._log(operation_id=operation_id).warning("not renewed", problem=str(ended))

    def _claim_operation(self, operation: Operation) -> Operation:
        body = {
            "status": OperationStatus.RUNNING,
            "claimed_by": self._settings.runner_id,
            "lease_expires_at": self._until(),
        }
        if operation.etag is None:  # a list may come without what a single read has
            known, operation = operation, self._client.operation_again(self.instance.id, operation)
            if (operation.status, operation.claimed_by) != (known.status, known.claimed_by):
                raise LostLease(f"{operation.operation} {operation.id} was claimed by somebody else first")
        self.renewal.start()
        try:
            claimed = self._patch_operation(operation, body)
        except Conflict as conflict:
            raise LostLease(f"{operation.operation} {operation.id} was claimed by somebody else first") from conflict
        self.claimed[operation.id] = claimed
        return claimed

    def _claim_member(self, member: Member, step: Claim) -> Member:
        self.renewal.start()
        lease = {"claimed_by": self._settings.runner_id, "lease_expires_at": self._until()} if step.hold else {}
        return self._write_member(member.id, step.status, lease, numbers=True)

    # -- single writes ---------------------------------------------------------------------------------------

    def _announce(self, step: Announce) -> None:
        key = _key("event", self.instance.id, step.kind, step.cause)
        try:
            self._client.post_event(self.instance, step.kind, step.data, key=key)
        except Conflict as conflict:
            if conflict.code != "idempotency_conflict":
                raise
            self._log().info("already announced, in other words", event_type=step.kind)

    def _refuse(self, step: Refuse) -> None:
        error = {"code": step.code, "message": limits.short(step.why)}
        body = {"status": OperationStatus.FAILED, "error": error}
        self._patch_operation(step.operation, body)
        self.claimed.pop(step.operation.id, None)
        self.failed_operations += 1

    def _finish(self, step: Finish) -> None:
        body: Detail = {"status": step.status, "result": step.result}
        if step.error:
            body["error"] = {**step.error, "message": limits.short(str(step.error.get("message")))}
        self._patch_operation(self.claimed.get(step.operation.id, step.operation), body)
        self.claimed.pop(step.operation.id, None)
        self.failed_operations += step.status == OperationStatus.FAILED

    def _new_member(self, step: NewMember) -> Member:
        body = {
            "component_key": step.component_key,
            "allocation_id": str(step.allocation_id),
            "adapter_detail": step.detail | {claims.FENCE: 1},
        }
        key = _key("member", step.operation.id, step.allocation_id)
        correlation = step.operation.correlation_id
        member = self._client.create_member(self.instance.id, body, key=key, correlation_id=correlation)
        self.members[member.id] = member
        return member

    def _write_member(self, member_id: UUID, status: str, changes: Detail, *, numbers: bool = False) -> Member:
        """Write these changes into the newest detail there is; nothing else in it is touched."""
        known = self.members[member_id]
        # A list may come without the ETags that a single read has.
        member = known if known.etag else self._read_again(known, status, numbers)
        for _ in range(WRITE_TRIES):
            stored = {**member.adapter_detail, **member.unread}
            said = {**self._app.full_detail(member), **member.unread, **changes}
            # Whatever is written, the number only grows, and only by a claim.
            said[claims.FENCE] = (claims.number(member) or 0) + 1 if numbers else stored.get(claims.FENCE, 0)
            said = self._app.fit_detail(member.component_key, said)
            if member.status == status and {claims.FENCE: 0, **stored} == said:
                return member
            body: Detail = {"adapter_detail": said}
            if member.status != status:
                body["status"] = status
            try:
                written = self._patch_member(member, body)
            except Conflict:
                member = self._read_again(known, status, numbers)
                continue
            self.members[member_id] = written
            return written
        raise Outdated(f"{known.component_key} {member_id} is being written by others all the time")

    def _read_again(self, known: Member, status: str, numbers: bool) -> Member:
        """The member as it is now, if our write still fits: it is ours, and what was decided on has not changed."""
        newest = self._client.member(self.instance.id, known.id)
        label, mine = f"{newest.component_key} {newest.id}", self._settings.runner_id
        other = claims.other_holder(mine, self._client.now(), newest)
        if other:
            raise LostLease(f"{label} is held by {other[0]} until {stamp(other[1])}")
        if self._holds(known) and not self._holds(newest):
            raise LostLease(f"{label} is not ours any more")
        if newest.status not in (known.status, status):
            raise Outdated(f"{label} is {newest.status} now, and was {known.status}")
        if numbers and (claims.number(newest) is None or claims.number(newest) != claims.number(known)):
            raise Outdated(f"{label} was claimed meanwhile")
        # Who carries out an operation on the instance holds all its members.
        if newest.etag != known.etag and not any(operation.of_instance for operation in self.claimed.values()):
            check_still_ours(self._client, mine, self.instance.id, newest, list(self.members.values()))
        return newest

    def _patch_member(self, member: Member, body: Detail) -> Member:
        limits.check(f"member {member.id}", body)
        origin = member.correlation_id or self.instance.correlation_id
        return self._client.patch_member(
            member, body, key=_key("member", member.id, _version(member), body), correlation_id=origin
        )

    def _patch_operation(self, operation: Operation, body: Detail) -> Operation:
        limits.check(f"operation {operation.id}", body)
        key = _key("operation", operation.id, _version(operation), body)
        try:
            return self._client.patch_operation(self.instance.id, operation, body, key=key)
        except Conflict:
            if operation.id not in self.claimed:
                raise
            newest = self._client.operation_again(self.instance.id, operation)
            if newest.status != OperationStatus.RUNNING:
                self.claimed.pop(operation.id, None)
                raise OperationEnded(f"{operation.operation} {operation.id} is {newest.status}") from None
            if newest.claimed_by != self._settings.runner_id:
                self.claimed.pop(operation.id, None)
                raise LostLease(
                    f"{operation.operation} {operation.id} is {newest.status}, held by {newest.claimed_by}"
                ) from None
            return self._client.patch_operation(
                self.instance.id, newest, body, key=_key("operation", newest.id, _version(newest), body)
            )

    def _set_instance(self, step: SetInstance) -> AppInstance:
        body: Detail = {"status": step.status, "health": step.health, "status_detail": step.detail}
        if step.access is not None:
            body["access"] = step.access
        limits.check(f"instance {self.instance.id}", body)
        key = _key("instance", self.instance.id, _version(self.instance), body)
        try:
            self.instance = self._client.patch_instance(self.instance, body, key=key)
        except Conflict:
            newest = self._client.instance(self.instance.id)
            body["status_detail"] = self._merged(newest, step)
            key = _key("instance", newest.id, _version(newest), body)
            self.instance = self._client.patch_instance(newest, body, key=key)
        return self.instance

    def _merged(self, newest: AppInstance, step: SetInstance) -> Detail:
        """The newest status_detail with what this write changes; Outdated if the decision stood on something else."""
        known, now = self.instance.status_detail or {}, newest.status_detail or {}
        if newest.status != self.instance.status:
            # An operator stopped or deleted it meanwhile, or another runner brought it further.
            raise Outdated(f"the instance is {newest.status} now, and was {self.instance.status}")
        if now.get("lifecycle") != known.get("lifecycle"):
            raise Outdated("another runner went on with what is under way")
        gone = known.keys() - step.detail.keys()
        kept = {key: value for key, value in now.items() if key not in gone}
        return kept | {key: value for key, value in step.detail.items() if known.get(key) != value}

    def _log(self, step: Step | None = None, **ids: Any) -> log.Logger:
        subject = getattr(step, "operation", None) or getattr(step, "member", None) or getattr(step, "subject", None)
        if isinstance(subject, Operation):
            ids = {"operation_id": subject.id, "correlation_id": subject.correlation_id, **ids}
        elif isinstance(subject, Member):
            ids = {"member_id": subject.id, "operation_id": at_work(subject), **ids}
        return log.get(**ids)


def _version(thing: AppInstance | Member | Operation) -> object:
    """What tells a write to this state of a thing from the same words written to another state of it."""
    return thing.etag or uuid4()


def _key(*parts: object) -> str:
    """The same write gives the same key, whichever process sends it."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return "gpuaas-slurm-" + hashlib.sha256(text.encode()).hexdigest()[:40]
