"""Sends spans to a collector: OTLP over HTTP, by the OpenTelemetry SDK, in batches, on a thread of its own.

A collector that is absent, slow or refuses costs the spans, one warning and a bounded wait at the end. The SDK is
loaded with the first span: a run that finds nothing to do does not load it. Its own log is not shown, because it may
quote what was sent: headers, which may hold a token, and addresses.
"""

import logging
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from runner import log
from runner.telemetry.span import MOST, Span, Value

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExportResult

# A killed run loses what happened in this time. OTEL_BSP_SCHEDULE_DELAY is another one.
DELAY_MILLISECONDS = 1_000
FLUSH_SECONDS = 2.0


class Sender:
    """Takes spans from any thread, and never raises."""

    def __init__(self, url: str, headers: str, resource: dict[str, Value]) -> None:
        self._url = url
        self._headers = headers
        self._resource = resource
        self._lock = threading.Lock()
        self._pipeline: _Pipeline | None = None
        self._taken = 0
        self._unfit = 0
        self._is_broken = False

    def send(self, span: Span) -> None:
        if self._is_broken:
            return
        try:
            with self._lock:
                self._pipeline = self._pipeline or _Pipeline(self._url, self._headers, self._resource)
        except Exception as error:
            self._is_broken = True
            _warn(type(error).__name__)
            return
        try:
            self._pipeline.put(span)
        except Exception as error:
            with self._lock:
                is_first, self._unfit = not self._unfit, self._unfit + 1
            if is_first:
                log.get().warning("a span could not be made; others are sent", problem=type(error).__name__)
            return
        with self._lock:
            self._taken += 1

    def close(self) -> None:
        """Wait for what is still to be sent, for a bounded time; not at all if the last attempt failed."""
        if self._pipeline is None:
            return
        self._pipeline.close(FLUSH_SECONDS)
        lost = self._taken - self._pipeline.exported
        if lost > 0:
            self._pipeline.warn(spans=lost)
        self._pipeline.has_warned = True  # what is still under way says nothing any more


class _Pipeline:
    """The parts of the SDK that are used, and what became of the spans."""

    def __init__(self, url: str, headers: str, resource: dict[str, Value]) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
        from opentelemetry.util.re import parse_env_headers
        from requests import PreparedRequest, Response, Session
        from requests.adapters import HTTPAdapter

        _silence()
        self.exported = 0
        self.has_warned = False
        self.problem: str | None = None  # of the last attempt
        self._resource = Resource.create(resource)
        pipeline = self

        class Noting(HTTPAdapter):
            """Notes why an attempt failed; the exporter only says that it did, and tries again first."""

            def send(self, request: PreparedRequest, *arguments: Any, **options: Any) -> Response:
                pipeline.problem = None
                try:
                    answer = super().send(request, *arguments, **options)
                except Exception as error:
                    pipeline.problem = type(error).__name__
                    raise
                pipeline.problem = f"HTTP {answer.status_code}" if answer.status_code >= 400 else None
                return answer

        class Exporter(SpanExporter):
            def __init__(self) -> None:
                session = Session()
                for scheme in ("http://", "https://"):
                    session.mount(scheme, Noting())
                given = parse_env_headers(headers, liberal=True)
                self._otlp = OTLPSpanExporter(url, headers=given, session=session)

            def export(self, spans: "Sequence[ReadableSpan]") -> "SpanExportResult":
                try:
                    result = self._otlp.export(spans)
                except Exception as error:
                    result, pipeline.problem = SpanExportResult.FAILURE, type(error).__name__
                pipeline.tried(len(spans), succeeded=result is SpanExportResult.SUCCESS)
                return result

            def shutdown(self) -> None:
                self._otlp.shutdown()  # type: ignore[no-untyped-call]

        self._exporter: SpanExporter = Exporter()
        delay = None if os.environ.get("OTEL_BSP_SCHEDULE_DELAY") else DELAY_MILLISECONDS
        self._processor: BatchSpanProcessor = BatchSpanProcessor(self._exporter, schedule_delay_millis=delay)

    def tried(self, count: int, *, succeeded: bool) -> None:
        """A batch was sent, or given up. Called on the thread that sends."""
        if succeeded:
            self.exported += count
        else:
            self.warn()

    def warn(self, **more: Any) -> None:
        """The one line about it. The problem is a class or a status: the text of an error may quote a header."""
        if not self.has_warned:
            self.has_warned = True
            _warn(self.problem or "no answer in time", **more)

    def put(self, span: Span) -> None:
        self._processor.on_end(self._readable(span))

    def close(self, seconds: float) -> None:
        def end() -> None:
            if self.problem:
                self._exporter.shutdown()  # ends its pause before another attempt
            self._processor.shutdown()  # type: ignore[no-untyped-call]

        # The SDK waits longer, and has no setting for it.
        ending = threading.Thread(target=end, daemon=True)
        ending.start()
        ending.join(seconds)

    def _readable(self, span: Span) -> "ReadableSpan":
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

        def place(trace_id: str, span_id: str) -> SpanContext:
            return SpanContext(int(trace_id, 16), int(span_id, 16), False, TraceFlags(TraceFlags.SAMPLED))

        return ReadableSpan(
            span.name,
            place(span.trace_id, span.span_id),
            place(span.trace_id, span.parent_id) if span.parent_id else None,
            self._resource,
            span.shown,
            links=[Link(place(*link)) for link in span.links],
            kind=SpanKind.CLIENT if span.is_call else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR if span.error else StatusCode.UNSET),
            start_time=_time(span.start),
            end_time=_time(max(span.start, span.end)),
            instrumentation_scope=_scope(),
        )


def _time(nanoseconds: int) -> int:
    """One that OTLP can hold: one that it cannot would cost the whole batch."""
    return min(max(nanoseconds, 0), MOST)


def _scope() -> Any:
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    return InstrumentationScope("gpuaas")


def _silence() -> None:
    logger = logging.getLogger("opentelemetry")
    logger.propagate = False
    logger.handlers[:] = [logging.NullHandler()]


def _warn(problem: str, **more: Any) -> None:
    log.get().warning("the collector does not take spans; the work goes on without them", problem=problem, **more)
