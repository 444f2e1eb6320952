"""Makes spans of the work: request, tick and call. play_spans.py makes those of plays, hosts and tasks.

A span is made when it ends. Ids of parents are derived, so a span may be sent before its parent, and by another runner.
docs/usage/telemetry.md describes the traces, docs/decisions/0021-traces.md has the reasons.
"""

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime

from runner import context
from runner.model import cause as causes
from runner.model import trace
from runner.model.cause import Cause
from runner.model.plan import Finish, Play, Refuse, SetInstance, Step
from runner.model.platform import AppInstance, InstanceStatus, Operation, OperationStatus
from runner.model.trace import span_id_of
from runner.model.world import World
from runner.telemetry.labels import METHODS, one_of
from runner.telemetry.play_spans import PlaySpans
from runner.telemetry.span import Attributes, Known, Span, Value, Work, ids, work_of
from runner.telemetry.tracer import TracedCall, TracedPlay, TracedTick, Tracer

# Results in the words of OpenTelemetry's conventions for CICD.
ENDED: Mapping[str, str] = {
    OperationStatus.SUCCEEDED: "success",
    OperationStatus.FAILED: "failure",
    OperationStatus.CANCELLED: "cancellation",
}
DEPLOYED: Mapping[str, str] = {InstanceStatus.RUNNING: "success", InstanceStatus.FAILED: "failure"}
NOT_UP = (InstanceStatus.REQUESTED, InstanceStatus.DEPLOYING)


@dataclass
class _Tick:
    """One tick. It has a span in the trace of everything that it worked for."""

    id: str
    own: Cause
    began: int = field(default_factory=time.time_ns)
    plays: int = 0
    worked: dict[Work, tuple[Cause, int, int]] = field(default_factory=dict)
    # Most ticks only read and find nothing to do. Then their spans are not sent.
    _held_back: list[Span] | None = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def span_id(self, cause: Cause) -> str:
        return span_id_of("tick", *work_of(cause), self.id, self.began)

    def next_play(self) -> int:
        self.plays += 1
        return self.plays

    def add(self, cause: Cause, start: int, end: int) -> None:
        """The tick worked for this cause from start to end."""
        with self._lock:
            first, began, ended = self.worked.get(work_of(cause), (cause, start, end))
            self.worked[work_of(cause)] = (first, min(began, start), max(ended, end))

    def hold_back(self, cause: Cause, span: Span) -> bool:
        """Keep a span of reading, as long as there is no other. False: send it."""
        with self._lock:
            if self._held_back is None or work_of(cause) != work_of(self.own):
                return False
            self._held_back.append(span)
            return True

    def release(self) -> list[Span]:
        """The spans that were held back, to be sent now; from here on none is."""
        with self._lock:
            held, self._held_back = self._held_back or [], None
            for span in held:
                self.add(self.own, span.start, span.end)
            return held


_tick: ContextVar[_Tick | None] = ContextVar("traced_tick", default=None)


class SpanTracer(Tracer):
    is_on = True

    def __init__(
        self,
        send: Callable[[Span], None],
        names: Known,
        runner_id: str,
        peers: Mapping[str, tuple[str | None, int | None]],
    ) -> None:
        """`peers` has the host and port of each peer that is called, by its name."""
        self._send = send
        self._names = names
        self._runner_id = runner_id
        self._peers = peers

    # -- ticks -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def ticking(self, instance: AppInstance, tick_id: str, /) -> Iterator[TracedTick]:
        tick, ended = _Tick(tick_id, causes.of_tick(instance, tick_id)), TracedTick()
        token = _tick.set(tick)
        try:
            with context.within(tick.span_id):
                yield ended
        finally:
            _tick.reset(token)
            for span in tick.release() if ended.failed else []:
                self._send(span)
            self._end_tick(tick, instance, "failed" if ended.failed else None)

    def _end_tick(self, tick: _Tick, instance: AppInstance, error: str | None) -> None:
        own = work_of(tick.own)
        before = ((own.trace_id, tick.span_id(tick.own)),) if own in tick.worked else ()
        for work, (cause, start, end) in tick.worked.items():
            shown = {**ids(cause), "gpuaas.app_instance_id": str(instance.id), "cicd.worker.id": self._runner_id}
            links = before if work != own else ()
            place = (work.trace_id, tick.span_id(cause), work.root_span_id)
            self._send(Span("tick", *place, start, end, shown, error, links=links))

    # -- plays -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def playing(self, step: Play, world: World, /) -> Iterator[TracedPlay]:
        tick = _tick.get()
        if tick is None:
            yield TracedPlay()
            return
        self._release(tick)
        start = time.time_ns()
        spans = PlaySpans(step, world, self._names, self._runner_id, tick.id, tick.next_play(), self._send)
        try:
            with context.within(lambda cause: spans.span_id(cause) or tick.span_id(cause)):
                yield spans
        finally:
            end = time.time_ns()
            for cause in spans.causes:
                tick.add(cause, start, end)
            spans.end(start, end, tick.span_id)

    # -- calls -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def calling(self, peer: str, method: str, route: str, /) -> Iterator[TracedCall]:
        cause, parent, own = context.current(), context.span_id(), secrets.token_hex(8)
        if cause is None or parent is None:  # outside of a tick, and in no trace
            yield TracedCall(trace.traceparent(secrets.token_hex(16), own, trace.NOT_SAMPLED))
            return
        start, call = time.time_ns(), TracedCall(trace.traceparent(cause.trace_id, own))
        try:
            yield call
        finally:
            verb = one_of(method, METHODS)
            host, port = self._peers.get(peer, (None, None))
            shown = {
                "http.request.method": verb,
                "http.route": route,
                "http.response.status_code": call.status,
                "server.address": host,
                "server.port": port,
                "peer.service": peer,
            }
            error = "no_answer" if call.status is None else str(call.status) if call.status >= 400 else None
            place = (cause.trace_id, own, parent)
            span = Span(f"{verb} {route}", *place, start, time.time_ns(), shown, error, is_call=True)
            self._called(cause, span, only_reads=verb == "GET" or "/auth/" in route)

    def _called(self, cause: Cause, span: Span, *, only_reads: bool) -> None:
        if tick := _tick.get():
            if only_reads and not span.error and tick.hold_back(cause, span):
                return
            self._release(tick)
            tick.add(cause, span.start, span.end)
        self._send(span)

    def _release(self, tick: _Tick) -> None:
        for span in tick.release():
            self._send(span)

    # -- requests --------------------------------------------------------------------------------------------

    def wrote(self, step: Step, before: AppInstance, now: datetime) -> None:
        match step:
            case Finish(operation=operation, status=status):
                self._operation_ended(operation, status, (step.error or {}).get("code"), before, now)
            case Refuse(operation=operation, code=code):
                self._operation_ended(operation, OperationStatus.FAILED, code, before, now)
            case SetInstance(status=status) if before.status in NOT_UP and status in DEPLOYED:
                if before.notes.lifecycle is None:  # otherwise an operation brings it up
                    shown: Attributes = {
                        "cicd.pipeline.run.id": str(before.id),
                        "gpuaas.app_instance_id": str(before.id),
                    }
                    cause = causes.of_instance(before)
                    self._ended(cause, "deploy", DEPLOYED[status], None, shown, before.created_at, now)

    def _operation_ended(
        self, operation: Operation, status: str, code: object, before: AppInstance, now: datetime
    ) -> None:
        shown: dict[str, Value | None] = {
            "cicd.pipeline.run.id": str(operation.id),
            "gpuaas.attempt": operation.attempt,
            "gpuaas.app_instance_id": str(before.id),
        }
        verb, result = one_of(operation.operation, self._names.verbs), one_of(status, ENDED)
        error = one_of(code, self._names.error_codes) if code else None
        cause = causes.of_operation(operation)
        # What the deploy seeded is in its trace, and so under its span.
        deploy = causes.of_instance(before)
        above = deploy.root_span_id if deploy.trace_id == cause.trace_id else None
        self._ended(cause, verb, ENDED.get(result, "error"), error, shown, operation.created_at, now, above)

    def _ended(
        self,
        cause: Cause,
        verb: str,
        result: str,
        error: str | None,
        shown: Attributes,
        created: datetime | None,
        now: datetime,
        above: str | None = None,
    ) -> None:
        """The span of a request as a whole: below its sender's, if that is known, or the one `above`.

        Its age is by the platform's clock, its end by that of this machine.
        """
        work, end = work_of(cause), time.time_ns()
        aware = created if created is None or created.tzinfo else created.replace(tzinfo=UTC)
        age = max(0.0, (now - aware).total_seconds()) if aware else 0.0
        assert work.root_span_id is not None
        parent = cause.given.span_id if cause.given else above
        shown = {**ids(cause), **shown, "cicd.pipeline.name": verb, "cicd.pipeline.result": result}
        failed = error or (result if result == "failure" else None)
        place = (work.trace_id, work.root_span_id, parent)
        self._send(Span(verb, *place, end - int(age * 1e9), end, shown, failed))
