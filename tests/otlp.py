"""A collector for tests: receives OTLP over HTTP on loopback, and reads the real protobuf."""

import contextlib
import http.server
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

PATH = "/v1/traces"


@dataclass(frozen=True)
class Received:
    """One span, as it was received."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    attributes: dict[str, Any]
    failed: bool
    links: list[tuple[str, str]]

    @property
    def kind(self) -> str:
        """What it is of: a call, a task, a host, a play, a tick, or else a request."""
        if "http.route" in self.attributes:
            return "call"
        if "gpuaas.status" in self.attributes:
            return "task"
        found = self.name.partition(" ")[0]
        return found if found in ("host", "play", "tick") else "request"


@dataclass
class Collector:
    """`status` is what it answers; `raw` all that it was sent."""

    status: int = 200
    port: int = 0
    raw: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    spans: list[Received] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def read_request(self, body: bytes) -> None:
        self.raw.append(body)
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(_attributes(group.resource.attributes))
            self.spans += [_read(span) for scope in group.scope_spans for span in scope.spans]

    def of(self, kind: str, trace_id: str | None = None) -> list[Received]:
        return [one for one in list(self.spans) if one.kind == kind and trace_id in (None, one.trace_id)]

    def above(self, span: Received) -> list[str]:
        """The kinds of the spans above it, up to the first that was not received."""
        by_place = {(one.trace_id, one.span_id): one for one in list(self.spans)}
        found: list[str] = []
        parent = by_place.get((span.trace_id, span.parent_id))
        while parent is not None:
            found.append(parent.kind)
            parent = by_place.get((parent.trace_id, parent.parent_id))
        return found


@contextlib.contextmanager
def collecting(status: int = 200) -> Iterator[Collector]:
    collector = Collector(status)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.paths.append(self.path)
            collector.headers.append({name.lower(): value for name, value in self.headers.items()})
            if collector.status == 200:
                collector.read_request(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(collector.status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        collector.port = server.server_port
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield collector
        finally:
            server.shutdown()


@contextlib.contextmanager
def never_answering() -> Iterator[str]:
    """An address that accepts connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def _read(span: Any) -> Received:
    return Received(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _attributes(span.attributes),
        span.status.code == span.status.STATUS_CODE_ERROR,
        [(one.trace_id.hex(), one.span_id.hex()) for one in span.links],
    )


def _attributes(given: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in given}


def _value(value: AnyValue) -> Any:
    return getattr(value, value.WhichOneof("value") or "string_value")
