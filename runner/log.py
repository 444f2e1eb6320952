"""Structured logs: JSON lines, or text on a terminal, with the same ids on every line."""

import logging
import sys
from typing import Any

import structlog

from runner.settings import Settings

Logger = structlog.typing.FilteringBoundLogger


def configure(settings: Settings) -> None:
    """Write log lines to stderr, so that stdout has only the output of the command."""
    text = settings.log_format == "text" or (settings.log_format == "auto" and sys.stderr.isatty())
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
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
            structlog.processors.format_exc_info,
            _short_on_terminal if text else _unchanged,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(project_id=str(settings.project_id), app_slug=settings.app_slug)


def get(**ids: Any) -> Logger:
    logger: Logger = structlog.get_logger().bind(**{k: str(v) for k, v in ids.items() if v is not None})
    return logger


def _unchanged(_logger: Any, _name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return event


def _short_on_terminal(_logger: Any, _name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """A person knows the org and project they work in, and reads the first eight characters of an id."""
    for constant in ("org_id", "project_id", "app_slug"):
        event.pop(constant, None)
    for key in ("correlation_id", "app_instance_id", "member_id", "operation_id"):
        if key in event:
            event[key] = str(event[key])[:8]
    return event
