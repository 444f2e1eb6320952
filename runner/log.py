"""Structured logs: JSON lines, or text on a terminal, with the same ids on every line.

contract/log-line.schema.json has the fields. The platform states their names, except `event`, which has the message.
"""

import contextlib
import logging
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from types import TracebackType
from typing import Any

import structlog

from runner.settings import Settings

Logger = structlog.typing.FilteringBoundLogger
SERVICE = "gpuaas-slurm"
# The error code of a line that nothing in this program wrote: an unexpected exception, or a library's own line.
UNEXPECTED = "unexpected_error"
# core42:aicloud:{region}:{org}:{project}:{service/kind}:{id}; the kinds are those of the API's paths.
RESOURCE = "core42:aicloud:{region}:{org_id}:{project_id}:" + SERVICE + "/{kind}:{id}"
KINDS = {"member_id": "members", "app_instance_id": "app-instances"}
# A region comes from a record of the platform: a name that would not fit between colons is not used.
REGION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
# The regions of the instance at hand, by the id of a member or of the instance itself.
_regions: ContextVar[dict[str, str] | None] = ContextVar("regions", default=None)


def configure(settings: Settings) -> None:
    """Write log lines to stderr, so that stdout has only the output of the command."""
    text = settings.log_format == "text" or (settings.log_format == "auto" and sys.stderr.isatty())
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    _configure(text=text, level=level)
    structlog.contextvars.bind_contextvars(**settings.scope.ids, app_slug=settings.app_slug)


def configure_json() -> None:
    """JSON lines, where there are no settings because they are wrong."""
    _configure(text=False, level=logging.INFO)


def _configure(*, text: bool, level: int) -> None:
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), sort_keys=False)
        if text
        else structlog.processors.JSONRenderer(default=str)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _with_error_code,
            structlog.processors.format_exc_info,
            _short_on_terminal if text else _whole,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


def get(**ids: Any) -> Logger:
    logger: Logger = structlog.get_logger().bind(**{k: str(v) for k, v in ids.items() if v is not None})
    return logger


def error_code(error: BaseException, otherwise: str | None = None) -> dict[str, str]:
    """The field of a line about the error: its own code, if it has one."""
    code = getattr(error, "code", otherwise)
    return {"error_code": code} if isinstance(code, str) else {}


# -- what is on each line ------------------------------------------------------------------------------------


@contextlib.contextmanager
def with_regions() -> Iterator[None]:
    """Lines of the block name their resource, once `know_regions` was called."""
    token = _regions.set({})
    try:
        yield
    finally:
        _regions.reset(token)


def know_regions(found: Mapping[str, str | None]) -> None:
    """Where the instance at hand and its members are, by id, as far as the platform says so."""
    regions = _regions.get()
    if regions is not None:
        regions.update({one: region for one, region in found.items() if region and REGION.fullmatch(region)})


def _resource_name(event: structlog.typing.EventDict) -> str | None:
    """The name of what the line is about, if every part of it is known."""
    for field, kind in KINDS.items():
        if field in event:
            found = str(event[field])
            region = (_regions.get() or {}).get(found)
            parts = {"region": region, **{name: event.get(name) for name in ("org_id", "project_id")}}
            return RESOURCE.format(**parts, kind=kind, id=found) if all(parts.values()) else None
    return None


def _with_error_code(_logger: Any, level: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """An error always has a code. An unexpected exception has none of its own."""
    if level in ("error", "exception", "critical"):
        event.setdefault("error_code", UNEXPECTED)
    return event


def _whole(_logger: Any, _name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    event["service"] = SERVICE
    if name := _resource_name(event):
        event["resource_name"] = name
    return event


def _short_on_terminal(_logger: Any, _name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """A person knows the org and project they work in, and reads the first eight characters of an id."""
    for constant in ("org_id", "project_id", "app_slug", "trace_id", "span_id"):
        event.pop(constant, None)
    for key in ("correlation_id", "app_instance_id", "member_id", "operation_id"):
        if key in event:
            event[key] = str(event[key])[:8]
    return event


# -- what others would write to stderr -----------------------------------------------------------------------


class _AsLogLine(logging.Handler):
    """Writes the lines of libraries as ours."""

    def emit(self, record: logging.LogRecord) -> None:
        level = "error" if record.levelno >= logging.ERROR else "warning"
        try:
            write = getattr(get(logger=record.name), level)
            write(record.getMessage(), exc_info=record.exc_info)
        except Exception:
            self.handleError(record)


def capture() -> None:
    """Write warnings, uncaught exceptions and what libraries log as our log lines.

    Of libraries only warnings and errors, whatever our own level is: their other lines may quote a request.
    """
    root = logging.getLogger()
    root.handlers = [_AsLogLine()]
    root.setLevel(logging.WARNING)
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    threading.excepthook = lambda found: _uncaught(found.exc_type, found.exc_value, found.exc_traceback)
    sys.unraisablehook = lambda found: _uncaught(found.exc_type, found.exc_value, found.exc_traceback)


def _uncaught(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt | SystemExit):
        return
    get().error("uncaught exception", exc_info=(kind, error or kind(), trace))
