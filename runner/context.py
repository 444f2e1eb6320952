"""The cause of the work that this thread does, for every log line and every call to the platform."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import structlog

from runner.model.cause import Cause
from runner.model.platform import AppInstance

_ATTRIBUTE = "gpuaas_cause"
IDS = ("correlation_id", "operation_id")
_current: ContextVar[Cause | None] = ContextVar("cause", default=None)


def correlation_id() -> str | None:
    cause = _current.get()
    return cause.correlation_id if cause else None


@contextlib.contextmanager
def bound(cause: Cause) -> Iterator[None]:
    """Do the work of the block for this cause. A thread that is started with a copy of the context keeps it."""
    token = _current.set(cause)
    outer = structlog.contextvars.get_contextvars()
    structlog.contextvars.bind_contextvars(correlation_id=cause.correlation_id, operation_id=str(cause.operation_id))
    if cause.operation_id is None:
        structlog.contextvars.unbind_contextvars("operation_id")
    try:
        yield
    except Exception as error:
        error.__dict__.setdefault(_ATTRIBUTE, cause)
        raise
    finally:
        _current.reset(token)
        structlog.contextvars.unbind_contextvars(*IDS)
        structlog.contextvars.bind_contextvars(**{name: outer[name] for name in IDS if name in outer})


@contextlib.contextmanager
def for_instance(instance: AppInstance) -> Iterator[None]:
    """Do the work of the block on this instance."""
    with structlog.contextvars.bound_contextvars(
        org_id=str(instance.org_id),
        project_id=str(instance.project_id),
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
