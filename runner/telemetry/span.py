"""A span as data, and what it may show. Nothing that a host, the platform or a person wrote is sent as it came."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from runner.model.cause import Cause
from runner.model.host_data import printable

# Every attribute that a span may have. No argument, no result and no message of a call or a task is among them.
ALLOWED = frozenset(
    {
        *("cicd.pipeline.name", "cicd.pipeline.run.id", "cicd.pipeline.result", "cicd.worker.id"),
        *("cicd.pipeline.task.name", "cicd.pipeline.task.run.id", "cicd.pipeline.task.run.result"),
        *("http.request.method", "http.route", "http.response.status_code", "server.address", "server.port"),
        *("error.type", "peer.service"),
        *("gpuaas.correlation_id", "gpuaas.app_instance_id", "gpuaas.operation_id", "gpuaas.attempt"),
        *("gpuaas.host", "gpuaas.member_id", "gpuaas.members", "gpuaas.fence"),
        *("gpuaas.role", "gpuaas.task.path", "gpuaas.status"),
    }
)
TEXT_BYTES = 200
MOST = 2**63 - 1  # of a number
Value = str | int
Attributes = Mapping[str, Value | None]


class Work(NamedTuple):
    """What a span is for: the trace, and in it the span of the request as a whole. Routine work has none."""

    trace_id: str
    root_span_id: str | None


def work_of(cause: Cause) -> Work:
    return Work(cause.trace_id, cause.root_span_id)


class Known(NamedTuple):
    """The names of the app and of its bundle, which are shown; any other is `other`."""

    verbs: Collection[str]
    playbooks: Collection[str]
    error_codes: Collection[str]
    bundle: Path


@dataclass(frozen=True)
class Span:
    """One span that has ended. Times are in nanoseconds since 1970, by the clock of this machine."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str | None
    start: int
    end: int
    attributes: Attributes = field(default_factory=dict)
    error: str | None = None
    is_call: bool = False
    links: tuple[tuple[str, str], ...] = ()

    @property
    def shown(self) -> dict[str, Value]:
        """The attributes that may be sent, each of a bounded size."""
        given = {**self.attributes, "error.type": self.error}
        return {
            name: printable(value, TEXT_BYTES) if isinstance(value, str) else value
            for name, value in given.items()
            if name in ALLOWED and value is not None and not (isinstance(value, int) and abs(value) > MOST)
        }


def ids(cause: Cause) -> dict[str, Value | None]:
    """The ids of the request, on every span that is made for it as a whole."""
    operation = str(cause.operation_id) if cause.operation_id else None
    return {"gpuaas.correlation_id": cause.correlation_id, "gpuaas.operation_id": operation}
