"""The cause of the work that this thread does, for every log line and every call to the platform.

While traces are on, `within` adds the span that the work for a cause belongs to.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

import structlog

from runner.model import trace
from runner.model.cause import Cause
from runner.model.platform import AppInstance

_ATTRIBUTE = "gpuaas_cause"
IDS = ("correlation_id", "operation_id", "trace_id", "span_id")
# The id of the span under which the work for a cause is done now.
Spans = Callable[[Cause], str]
_current: ContextVar[Cause | None] = ContextVar("cause", default=None)
_spans: ContextVar[Spans | None] = ContextVar("spans", default=None)


def current() -> Cause | None:
    return _current.get()


def correlation_id() -> str | None:
    found = _current.get()
    return found.correlation_id if found else None


def trace_id() -> str | None:
    """The trace of the work at hand; None if traces are off and the request came without one."""
    found = _current.get()
    return found.trace_id if found and (_spans.get() or found.given) else None


def span_id() -> str | None:
    """The span of the work at hand; None if traces are off."""
    found, spans = _current.get(), _spans.get()
    return spans(found) if found and spans else None


def given_traceparent() -> str | None:
    """What the sender of the request gave, to be passed on by who adds no span to it."""
    found = _current.get()
    given = found.given if found else None
    return trace.traceparent(given.trace_id, given.span_id, given.flags) if given and given.span_id else None


@contextlib.contextmanager
def bound(cause: Cause) -> Iterator[None]:
    """Do the work of the block for this cause. A thread that is started with a copy of the context keeps it."""
    token = _current.set(cause)
    try:
        with _ids_on_log_lines():
            yield
    except Exception as error:
        error.__dict__.setdefault(_ATTRIBUTE, cause)
        raise
    finally:
        _current.reset(token)


@contextlib.contextmanager
def within(spans: Spans) -> Iterator[None]:
    """Do the work of the block under these spans."""
    token = _spans.set(spans)
    try:
        with _ids_on_log_lines():
            yield
    finally:
        _spans.reset(token)


@contextlib.contextmanager
def for_instance(instance: AppInstance) -> Iterator[None]:
    """Do the work of the block on this instance."""
    with structlog.contextvars.bound_contextvars(
        org_id=str(instance.org_id),
        **({"project_id": str(instance.project_id)} if instance.project_id else {}),
        app_slug=instance.app_slug,
        app_instance_id=str(instance.id),
    ):
        yield


@contextlib.contextmanager
def bound_to(error: Exception) -> Iterator[None]:
    """Report an error for the cause of the work in which it came up."""
    cause = error.__dict__.get(_ATTRIBUTE)
    with bound(cause) if cause else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def _ids_on_log_lines() -> Iterator[None]:
    outer = structlog.contextvars.get_contextvars()
    found = _current.get()
    operation = str(found.operation_id) if found and found.operation_id else None
    ids = dict(zip(IDS, (correlation_id(), operation, trace_id(), span_id()), strict=True))
    structlog.contextvars.unbind_contextvars(*IDS)
    structlog.contextvars.bind_contextvars(**{name: value for name, value in ids.items() if value})
    try:
        yield
    finally:
        structlog.contextvars.unbind_contextvars(*IDS)
        structlog.contextvars.bind_contextvars(**{name: outer[name] for name in IDS if name in outer})
