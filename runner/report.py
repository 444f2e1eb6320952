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

from runner import detail, limits, log
from runner.leases import LostLease, OperationEnded, renewing
from runner.ownership import at_work, check_still_ours, holds
from runner.plan import (
    AdapterError,
    Announce,
    Claim,
    Detail,
    Finish,
    ForgetSecrets,
    Forgo,
    NewMember,
    Refuse,
    Resolve,
    SetInstance,
    SetMember,
    Step,
    shown,
    stamp,
)
from runner.platform.client import Client
from runner.platform.errors import Conflict, PlatformError
from runner.platform.models import AppInstance, Member, MemberStatus, Operation, OperationStatus
from runner.settings import Settings
from runner.translate import Heard
from runner.vault import SecretsError, Vault
from runner.world import World


class Reporter:
    """The one writer of a tick for one instance. Holds the newest copy of each object it has written."""

    def __init__(self, client: Client, settings: Settings, world: World) -> None:
        self._client = client
        self._settings = settings
        self.instance: AppInstance = world.instance
        self.members: dict[UUID, Member] = {member.id: member for member in world.members}
        self.claimed: dict[UUID, Operation] = {}
        self.failed_operations = 0
        self._lock = threading.RLock()

    @functools.cached_property
    def _hasty(self) -> Client:
        """For what is nice to show: a platform that is away must not stop a play."""
        return self._client.clone(patience=0)

    def renew_copies(self, world: World) -> None:
        """Take over what was just read, so that the next write is based on it."""
        self.instance = world.instance
        self.members = {member.id: member for member in world.members}
        self.claimed = {
            one.id: one
            for one in (*world.operations, *world.instance_operations)
            if one.id in self.claimed and one.claimed_by == self._settings.runner_id
        }

    def apply(self, step: Step, world: World) -> World:
        """Carry out one write and return the world with its result in it."""
        row = shown(step)
        self._log(step).info(row["step"], subject=row["subject"], why=row["why"])
        with self._lock:
            match step:
                case Refuse():
                    return self._refuse(step, world)
                case Claim(subject=Operation() as operation):
                    return world.with_operation(self._claim_operation(operation))
                case Claim(subject=Member() as member):
                    return self._claim_member(member, step.status, world)
                case NewMember():
                    return self._new_member(step, world)
                case SetMember():
                    member = self._write_member(step.member.id, step.status, step.detail)
                    world = world.with_member(member)
                    return world.judged(member) if step.judges else world
                case SetInstance():
                    return self._set_instance(step, world)
                case Announce():
                    self._announce(step)
                    return world
                case ForgetSecrets():
                    return self._forget_secrets(world)
                case Resolve():
                    return world.later(packages=self._client.resolve_packages(self.instance))
                case Forgo():
                    return world.without_play(step)
                case Finish():
                    return self._finish(step, world)
        raise AssertionError(f"not a write: {step}")

    def hear(self, heard: Heard) -> None:
        """Show a member's progress while its play runs. A platform that is away for a moment does not stop the play."""
        member = self.members[heard.member_id]
        status = MemberStatus.RECONCILING if member.status == MemberStatus.REQUESTED else member.status
        if status not in (MemberStatus.RECONCILING, MemberStatus.DELETING) or heard.error:
            return  # an error is judged when the play is over, with everything known
        changes = {**heard.detail, **({"phase": heard.phase} if heard.phase else {})}
        try:
            with self._lock, self._asking(self._hasty):
                self._write_member(member.id, status, changes)
        except PlatformError as error:
            self._log(member_id=member.id).warning("progress not shown", problem=error.message)

    # -- leases ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def leases_kept(self) -> Iterator[threading.Event]:
        """Renew in the background; the event it yields is set when a lease was lost."""
        with (
            self._client.clone(patience=0) as client,
            renewing(lambda: self._renew(client), self._settings.lease_seconds) as lost,
        ):
            yield lost

    def release(self) -> None:
        """Hand back what was claimed and is not finished, so that the next tick need not wait for the lease."""
        free: Detail = {"claimed_by": None, "lease_expires_at": None}
        for operation in list(self.claimed.values()):
            self._try_release(self._patch_operation, operation, {"lease_expires_at": stamp(self._client.now())})
        for member in list(self.members.values()):
            if self._holds(member):
                self._try_release(self._write_member, member.id, member.status, free)

    def _try_release(self, write: Callable[..., object], *arguments: object) -> None:
        try:
            write(*arguments)
        except (PlatformError, LostLease) as error:
            self._log().warning("not handed back; the lease will run out", problem=str(error))

    def _holds(self, member: Member) -> bool:
        return holds(self._settings.runner_id, member)

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

    def _renew(self, client: Client) -> None:
        with self._lock, self._asking(client):
            for operation in list(self.claimed.values()):
                try:
                    renewed = self._patch_operation(operation, {"lease_expires_at": self._until()})
                    self.claimed[operation.id] = renewed
                except OperationEnded as ended:
                    # A person called this one off; the others of the same play are not to suffer for it.
                    self._log(operation_id=operation.id).warning("not renewed", problem=str(ended))
            for member in list(self.members.values()):
                if self._holds(member):
                    self._write_member(member.id, member.status, {"lease_expires_at": self._until()})

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
        try:
            claimed = self._patch_operation(operation, body)
        except Conflict as conflict:
            raise LostLease(f"{operation.operation} {operation.id} was claimed by somebody else first") from conflict
        self.claimed[operation.id] = claimed
        return claimed

    def _claim_member(self, member: Member, status: str, world: World) -> World:
        changes = {"claimed_by": self._settings.runner_id, "lease_expires_at": self._until()}
        body = {"status": status, "adapter_detail": {**detail.filled(member), **changes}}
        if member.etag is None:
            known, member = member, self._client.member(self.instance.id, member.id)
            if member.adapter_detail.get("claimed_by") != known.adapter_detail.get("claimed_by"):
                raise LostLease(f"{member.component_key} {member.id} was claimed by somebody else first")
        try:
            claimed = self._patch_member(member, body)
        except Conflict as conflict:
            raise LostLease(f"{member.component_key} {member.id} was claimed by somebody else first") from conflict
        self.members[member.id] = claimed
        return world.with_member(claimed)

    # -- single writes ---------------------------------------------------------------------------------------

    def _announce(self, step: Announce) -> None:
        key = _key("event", self.instance.id, step.kind, step.cause)
        try:
            self._client.post_event(self.instance, step.kind, step.data, key=key)
        except Conflict as conflict:
            if conflict.code != "idempotency_conflict":
                raise
            self._log().info("already announced, in other words", event_type=step.kind)

    def _refuse(self, step: Refuse, world: World) -> World:
        error = {"code": step.code, "message": limits.short(step.why)}
        body = {"status": OperationStatus.FAILED, "error": error}
        self._patch_operation(step.operation, body)
        self.claimed.pop(step.operation.id, None)
        self.failed_operations += 1
        return world.without_operation(step.operation)

    def _finish(self, step: Finish, world: World) -> World:
        body: Detail = {"status": step.status, "result": step.result}
        if step.error:
            body["error"] = {**step.error, "message": limits.short(str(step.error.get("message")))}
        self._patch_operation(self.claimed.get(step.operation.id, step.operation), body)
        self.claimed.pop(step.operation.id, None)
        self.failed_operations += step.status == OperationStatus.FAILED
        return world.without_operation(step.operation)

    def _forget_secrets(self, world: World) -> World:
        try:
            Vault(self._settings).forget(self.instance.id)
        except SecretsError as error:
            self._log().warning("secrets not forgotten", problem=error.message)
            return world.later(not_forgotten=AdapterError(error.code, error.message, "retryable"))
        return world.later(forgotten=True)

    def _new_member(self, step: NewMember, world: World) -> World:
        body = {
            "component_key": step.component_key,
            "allocation_id": str(step.allocation_id),
            "adapter_detail": detail.blank(step.component_key, step.operation.id),
        }
        key = _key("member", step.operation.id, step.allocation_id)
        correlation = step.operation.correlation_id
        member = self._client.create_member(self.instance.id, body, key=key, correlation_id=correlation)
        self.members[member.id] = member
        return world.with_member(member)

    def _write_member(self, member_id: UUID, status: str, changes: Detail) -> Member:
        member = self.members[member_id]
        said = {**detail.filled(member), **changes}
        if member.status == status and member.adapter_detail == said:
            return member
        body: Detail = {"adapter_detail": said}
        if member.status != status:
            body["status"] = status
        try:
            written = self._patch_member(member, body)
        except Conflict:
            # Somebody wrote in between. Ours to overwrite only while the lease is ours.
            newest = self._client.member(self.instance.id, member_id)
            # Who carries out an operation on the instance holds all its members.
            if not any(operation.of_instance for operation in self.claimed.values()):
                check_still_ours(
                    self._client, self._settings.runner_id, self.instance.id, newest, list(self.members.values())
                )
            written = self._patch_member(newest, body)
        self.members[member_id] = written
        return written

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

    def _set_instance(self, step: SetInstance, world: World) -> World:
        body: Detail = {"status": step.status, "health": step.health, "status_detail": step.detail}
        if step.access is not None:
            body["access"] = step.access
        limits.check(f"instance {self.instance.id}", body)
        key = _key("instance", self.instance.id, _version(self.instance), body)
        try:
            self.instance = self._client.patch_instance(self.instance, body, key=key)
        except Conflict:
            newest = self._client.instance(self.instance.id)
            if newest.status != self.instance.status:
                raise  # an operator stopped or deleted it meanwhile: read again, then decide
            key = _key("instance", newest.id, _version(newest), body)
            self.instance = self._client.patch_instance(newest, body, key=key)
        return world.later(instance=self.instance)

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
