"""Claims of one tick: taken before work begins, renewed while it lasts, and released at its end."""

from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import UUID

from runner import context, log
from runner.model import cause
from runner.model.claims import held
from runner.model.errors import Conflict, PlatformError
from runner.model.member_notes import MemberNotes
from runner.model.plan import Claim, Detail, stamp
from runner.model.platform import Member, Operation, OperationStatus
from runner.report.leases import LostLease, OperationEnded, Outdated, Renewal
from runner.report.writes import RecordWriter
from runner.settings import Settings


class Claims:
    def __init__(self, writer: RecordWriter, settings: Settings) -> None:
        self._writer = writer
        self._runner_id = settings.runner_id
        self._lease = timedelta(seconds=settings.lease_seconds)
        self.renewal = Renewal(self._renew, settings.lease_seconds)

    def claim_operation(self, operation: Operation) -> Operation:
        writer = self._writer
        lost = f"{operation.operation} {operation.id} was claimed by another runner first"
        if operation.etag is None:  # a list may come without the ETags that a single read has
            listed, operation = operation, writer.client.operation_again(writer.instance.id, operation)
            if (operation.status, operation.claimed_by) != (listed.status, listed.claimed_by):
                raise LostLease(lost)
        self.renewal.start()
        try:
            lease = {"claimed_by": self._runner_id, "lease_expires_at": stamp(self._expiry())}
            claimed = writer.patch_operation(operation, {"status": OperationStatus.RUNNING, **lease})
        except Conflict as conflict:
            raise LostLease(lost) from conflict
        writer.claimed[operation.id] = claimed
        return claimed

    def claim_member(self, member: Member, step: Claim) -> Member:
        self.renewal.start()
        lease = held(self._runner_id, self._expiry()) if step.hold else {}
        return self._writer.write_member(member.id, step.status, lease, new_fence=True)

    def release(self) -> None:
        """Release claims on unfinished work, so that the next tick does not wait for the lease to expire."""
        self.renewal.stop()
        expired = {"lease_expires_at": stamp(self._writer.client.now())}
        for operation in list(self._writer.claimed.values()):
            with context.bound(cause.of_operation(operation)):
                self._try_release(self._writer.patch_operation, operation, expired)
        free = held(None, None)
        for member in list(self._writer.members.values()):
            if self._writer.holds(member):
                with context.bound(cause.of_marked(member, self._writer.instance)):
                    self._try_release(self._writer.write_member, member.id, member.status, free)

    def _try_release(self, write: Callable[..., object], *arguments: object) -> None:
        try:
            write(*arguments)
        except (PlatformError, LostLease, Outdated) as error:
            log.get().warning("claim not released; its lease will expire", problem=str(error), **log.error_code(error))

    def _expiry(self) -> datetime:
        return self._writer.client.now() + self._lease

    def _renew(self) -> None:
        """Renew the leases of operations and of members. The tick can write between two of them."""
        writer = self._writer
        with writer.client.clone(patience=0) as client:
            for operation_id in list(writer.claimed):
                with writer.using(client):
                    self._renew_operation(operation_id)
            for member_id in list(writer.members):
                with writer.using(client):
                    member = writer.members.get(member_id)
                    if member and writer.holds(member):
                        renewed = MemberNotes(lease_expires_at=self._expiry()).changes
                        with context.bound(cause.of_marked(member, writer.instance)):
                            self._renew_member(member, renewed)

    def _renew_member(self, member: Member, renewed: Detail) -> None:
        try:
            self._writer.write_member(member.id, member.status, renewed)
        except Outdated as change:
            # Another client changed this member's status. The tick decides again; the other claims go on.
            log.get(member_id=member.id).warning("lease not renewed", problem=str(change))

    def _renew_operation(self, operation_id: UUID) -> None:
        operation = self._writer.claimed.get(operation_id)
        if operation is None:
            return  # it has ended meanwhile
        with context.bound(cause.of_operation(operation)):
            try:
                renewed = self._writer.patch_operation(operation, {"lease_expires_at": stamp(self._expiry())})
                self._writer.claimed[operation_id] = renewed
            except OperationEnded as ended:
                # A person cancelled this operation; the others of the same play go on.
                log.get().warning("lease not renewed", problem=str(ended))
