"""Writes a plan's steps to the platform: only what changed, with deterministic keys, and never without the lease."""

import functools

from runner import context, log
from runner.model import cause, events, limits
from runner.model.app import App
from runner.model.errors import Conflict, Forbidden, NotFound, PlatformError, Rejected
from runner.model.instance_notes import StatusDetail
from runner.model.member_notes import MemberNotes
from runner.model.plan import (
    Announce,
    Claim,
    Detail,
    Finish,
    NewMember,
    NewOperation,
    Refuse,
    SetAttachment,
    SetInstance,
    SetMember,
    SkipPlay,
    Step,
    shown,
)
from runner.model.platform import (
    InstanceStatus,
    Member,
    MemberStatus,
    Operation,
    OperationStatus,
    PlatformRecord,
)
from runner.model.world import World
from runner.platform.client import Client
from runner.report.claims import Claims
from runner.report.keys import idempotency_key
from runner.report.leases import Outdated
from runner.report.play_log import WRITE_SECONDS, PlayLog
from runner.report.writes import RecordWriter, marked
from runner.settings import Settings
from runner.translate import MemberEvent


class Reporter:
    """The one writer of a tick for one instance."""

    def __init__(self, client: Client, settings: Settings, world: World, app: App) -> None:
        self._client = client
        self.writer = RecordWriter(client, settings, world, app)
        self.claims = Claims(self.writer, settings)
        self.plays = PlayLog(client, self.writer, lambda: self._impatient)
        self.failed_operations = 0

    @functools.cached_property
    def _impatient(self) -> Client:
        """For what is optional (progress, records of plays): a platform that is away must not hold a play back."""
        return self._client.clone(patience=0, timeout=WRITE_SECONDS)

    def start(self, step: Step) -> None:
        """Log the step, and check that we still hold the lease."""
        row = shown(step)
        code, logger = _error_code(step), _log(step)
        write = logger.warning if code else logger.info
        write(row["step"], subject=row["subject"], why=row["why"], **({"error_code": code} if code else {}))
        self.check_lease()

    @property
    def lease_is_lost(self) -> bool:
        return self.claims.renewal.is_lost

    def check_lease(self) -> None:
        """Raise LostLease if another runner may hold the claims of this tick."""
        self.claims.renewal.check()

    def apply(self, step: Step, world: World) -> World:
        """Carry out one write and return the world with its result in it."""
        with context.bound(cause.of_step(step, world)):
            self.start(step)
            with self.writer.lock:
                return world.after(step, self._write(step))

    def _write(self, step: Step) -> PlatformRecord | None:
        """The record as it was written, where there is one."""
        match step:
            case Refuse():
                self._refuse(step)
            case Claim(subject=Operation() as operation):
                return self.claims.claim_operation(operation)
            case Claim(subject=Member() as member):
                return self.claims.claim_member(member, step)
            case NewMember():
                return self.writer.create_member(step)
            case NewOperation():
                return self.writer.create_operation(step)
            case SetMember():
                detail = step.detail | (marked() if step.operation else {})
                return self.writer.write_member(step.member.id, step.status, detail, new_fence=step.new_fence)
            case SetInstance():
                return self.writer.set_instance(step)
            case SetAttachment():
                return self.writer.set_attachment(step)
            case Announce():
                self._announce(step)
            case Finish():
                self._finish(step)
            case SkipPlay():
                pass
            case _:
                raise AssertionError(f"not a write: {step}")
        return None

    def show_progress(self, event: MemberEvent) -> None:
        """Write a member's progress while its play runs. Errors wait until the play has ended and all is known."""
        member = self.writer.members[event.member_id]
        status = MemberStatus.RECONCILING if member.status == MemberStatus.REQUESTED else member.status
        if status not in (MemberStatus.RECONCILING, MemberStatus.DELETING) or event.error:
            return
        changes = event.detail | (MemberNotes(phase=event.phase).changes if event.phase else {})
        try:
            with self.writer.using(self._impatient):
                self.writer.write_member(member.id, status, changes)
        except (PlatformError, Outdated) as error:
            log.get(member_id=member.id).warning("progress not shown", problem=str(error), **log.error_code(error))

    def _announce(self, step: Announce) -> None:
        instance = self.writer.instance
        key = idempotency_key("event", instance.id, step.kind, step.cause)
        assumed = step.kind in events.ASSUMED
        client = self._impatient if assumed else self._client
        try:
            client.post_event(instance, step.kind, step.data, key=key)
        except PlatformError as refusal:
            if isinstance(refusal, Conflict) and refusal.code == "idempotency_conflict":
                log.get().info("event already posted with other data", event_type=step.kind)
                return
            # The report that follows is the truth, and must not wait for it. It is not planned again after that. A
            # platform that is away refuses the report too, and the next tick posts both.
            if not assumed and not isinstance(refusal, Rejected | NotFound | Forbidden):
                raise
            problem = {"error_code": refusal.code, "problem": refusal.message}
            log.get().warning("event refused by the platform", event_type=step.kind, **problem)

    def _refuse(self, step: Refuse) -> None:
        error = {"code": step.code, "message": limits.short(step.why)}
        result = self.plays.in_result(step.operation, _traced())
        self._end(
            step.operation, {"status": OperationStatus.FAILED, "error": error, **({"result": result} if result else {})}
        )

    def _finish(self, step: Finish) -> None:
        result = self.plays.in_result(step.operation, step.result | _traced())
        body: Detail = {"status": step.status, "result": result}
        if step.error:
            body["error"] = {**step.error, "message": limits.short(str(step.error.get("message")))}
        self._end(self.writer.claimed.get(step.operation.id, step.operation), body)

    def _end(self, operation: Operation, body: Detail) -> None:
        self.writer.patch_operation(operation, body)
        self.writer.claimed.pop(operation.id, None)
        self.failed_operations += body["status"] == OperationStatus.FAILED


def _traced() -> Detail:
    """For the result of an operation: the trace in which its spans are, if it has one."""
    found = context.trace_id()
    return {"trace_id": found} if found else {}


def _error_code(step: Step) -> str | None:
    """The code of the failure that the step reports."""
    match step:
        case Refuse(code=code):
            return code
        case Finish(error=dict(error)):
            return str(error.get("code"))
        case SetMember(status=MemberStatus.FAILED, detail=detail):
            return MemberNotes.read(detail).error_code
        case SetInstance(status=InstanceStatus.FAILED, detail=detail):
            return next((one.code for one in StatusDetail.read(detail).reasons or []), None)
    return None


def _log(step: Step) -> log.Logger:
    match step:
        case Claim(subject=Member() as member) | SetMember(member=member):
            return log.get(member_id=member.id)
    return log.get()
