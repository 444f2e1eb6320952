"""Writes down which plays run, on which hosts and when: in the results of their operations, or with the instance.

A play that changes hosts is written down before it begins, so that a killed runner leaves a trace; one that only looks
when it has ended. The records are for people, so a platform that does not take them stops no play.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from uuid import UUID

from runner import context, log
from runner.model import cause, play_history
from runner.model.errors import PlatformError
from runner.model.names import host_name
from runner.model.plan import Detail, Play, operations_of
from runner.model.platform import Member, Operation
from runner.model.work_notes import HostRun, PlayHistory, PlayRun
from runner.model.world import World
from runner.platform.client import Client
from runner.report.leases import LostLease, OperationEnded, Outdated
from runner.report.writes import RecordWriter
from runner.translate import MemberEvent, RunResult

# No write of the start of a play, or of its end, begins later than this. Many operations may share one play.
WRITE_SECONDS = 5.0


class RunningPlay:
    """One play: when events of each member came, and how it ended."""

    def __init__(self, began: datetime) -> None:
        self.began = began
        self.result: RunResult | None = None
        self._times: dict[UUID, tuple[datetime, datetime]] = {}

    def saw(self, event: MemberEvent, now: datetime) -> None:
        first, _ = self._times.get(event.member_id, (now, now))
        self._times[event.member_id] = (first, now)

    def ended(self, result: RunResult) -> RunResult:
        self.result = result
        return result

    def host(self, member: Member) -> HostRun:
        first, last = self._times.get(member.id, (None, None))
        found = self.result.outcomes.get(member.id) if self.result else None
        outcome = "no_report" if found is None else found.error.code if found.error else "ok"
        return HostRun(outcome=outcome, first_at=first, last_at=last)


class PlayLog:
    """The plays of one tick, put behind those of earlier ticks."""

    def __init__(self, client: Client, writer: RecordWriter, impatient: Callable[[], Client]) -> None:
        self._client = client
        self._writer = writer
        self._impatient = impatient  # a platform that is away must not stop a play
        self._unwritten: dict[UUID, list[PlayRun]] = {}  # by operation

    @contextlib.contextmanager
    def playing(self, step: Play, world: World) -> Iterator[RunningPlay]:
        """Outdated if an operation of the play is known to be cancelled: it does not begin then."""
        play = RunningPlay(self._client.now())
        self._check_none_ended(step)
        if step.fences:
            self._note(step, world, play, None)
        try:
            self._check_none_ended(step)
            yield play
        finally:
            self._note(step, world, play, self._client.now())

    def _check_none_ended(self, step: Play) -> None:
        """The platform may have said so to a write of this play, or to a renewal of its claims."""
        ended = [one.label for one in operations_of(step) if one.id in self._writer.ended]
        if ended:
            raise Outdated(f"cancelled: {', '.join(ended)}")

    def in_result(self, operation: Operation, result: Detail) -> Detail:
        """The result with which an operation ends, with all its plays."""
        return play_history.in_result(result, self._history(operation))

    def flush(self) -> None:
        """Write what could not be written before, at the end of the tick."""
        for operation_id in self._in_time(list(self._unwritten)):
            with contextlib.suppress(LostLease):
                self._write(operation_id)

    def _note(self, step: Play, world: World, play: RunningPlay, ended: datetime | None) -> None:
        """The start of the play, or its end, for each operation that it is for."""
        for operation in operations_of(step):
            self._unwritten.setdefault(operation.id, []).append(self._run(step, world, play, ended, operation))
        for operation_id in self._in_time([one.id for one in operations_of(step)]):
            self._write(operation_id)
        if not operations_of(step):
            writer = self._writer
            earlier = writer.own_plays or writer.instance.notes.plays
            run = self._run(step, world, play, ended, None)
            writer.own_plays = play_history.fitted(play_history.with_run(earlier, run), play_history.OWN_BYTES)
            if step.fences:  # a look is written with the report that follows it
                self._write(None)

    def _run(
        self, step: Play, world: World, play: RunningPlay, ended: datetime | None, operation: Operation | None
    ) -> PlayRun:
        """The play as this operation sees it: with its own members, and with those that no operation names."""
        mine = [one for one in step.members if _asker(step, one) in (None, operation and operation.id)]
        hosts = {host_name(one): play.host(one) for one in mine}
        claimed = self._writer.claimed.get(operation.id, operation) if operation else None
        return PlayRun(
            playbook=step.playbook,
            started_at=play.began,
            ended_at=ended,
            result=play_history.result_of(hosts) if ended else None,
            attempt=claimed.attempt if claimed else 0,
            rule=step.rule or None,
            why=step.why,
            correlation_id=None if operation else cause.of_world(world).correlation_id,
            hosts=hosts,
            hosts_count=len(hosts),
        )

    def _history(self, operation: Operation) -> PlayHistory:
        history = play_history.of_result(self._writer.claimed.get(operation.id, operation).result)
        return functools.reduce(play_history.with_run, self._unwritten.get(operation.id, []), history)

    def _in_time(self, operation_ids: Sequence[UUID]) -> Iterator[UUID]:
        """Those for which there is time; what the others have unwritten goes with their next write."""
        until = time.monotonic() + WRITE_SECONDS
        for number, one in enumerate(operation_ids):
            if time.monotonic() >= until:
                left = len(operation_ids) - number
                log.get().warning("play not written down", problem=f"the platform is too slow; operations left: {left}")
                return
            yield one

    def _write(self, operation_id: UUID | None) -> None:
        writer = self._writer
        with writer.lock, writer.using(self._impatient()):
            try:
                if operation_id is None:
                    writer.write_own_plays()
                    return
                operation = writer.claimed.get(operation_id)
                if operation:
                    with context.bound(cause.of_operation(operation)):
                        body = {"result": play_history.in_result(operation.result or {}, self._history(operation))}
                        writer.claimed[operation_id] = writer.patch_operation(operation, body)
                self._unwritten.pop(operation_id, None)
            except (PlatformError, Outdated, OperationEnded) as problem:
                log.get().warning("play not written down", problem=str(problem))


def _asker(step: Play, member: Member) -> UUID | None:
    """The operation that names this member; one that no operation names serves them all."""
    found = step.operations.get(member.id)
    return found.id if found else None
