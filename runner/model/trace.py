"""Ids of traces and spans, derived from what the work is for, and the W3C header that carries them. Pure.

Every runner that works for a request derives the same trace id, so all of them add to one trace.
"""

import hashlib
import re
from typing import Annotated, Final, NamedTuple

from pydantic import BeforeValidator

from runner.model.records import Fact

# Of version 00, the only one there is. A later one may mean something else by the same fields.
_HEADER: Final = re.compile(r"00-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})", re.ASCII)
_ID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
SAMPLED: Final = "01"
NOT_SAMPLED: Final = "00"


class TraceContext(NamedTuple):
    """A place in a trace: the trace, the span that is the parent there, if it is known, and the sender's flags."""

    trace_id: str
    span_id: str | None = None
    flags: str = SAMPLED


def read_traceparent(value: object) -> TraceContext | None:
    """The place that a `traceparent` names; None for anything but a valid one."""
    found = _HEADER.fullmatch(value) if isinstance(value, str) else None
    if found is None or not int(found["trace"], 16) or not int(found["span"], 16):
        return None
    return TraceContext(found["trace"], found["span"], found["flags"])


def traceparent(trace_id: str, span_id: str, flags: str = SAMPLED) -> str:
    return f"00-{trace_id}-{span_id}-{flags}"


def trace_id_of(correlation_id: str) -> str:
    """The trace of a request: the first 32 digits of the SHA-256 of `gpuaas/trace/` and its correlation id."""
    return _digest(f"gpuaas/trace/{correlation_id}", 32)


def span_id_of(*parts: object) -> str:
    return _digest("\n".join(["gpuaas/span", *map(str, parts)]), 16)


def _digest(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def _valid_or_absent(value: object) -> object:
    return value if read_traceparent(value) else None


def _trace_id(value: object) -> object:
    if value is not None and not (isinstance(value, str) and _ID.fullmatch(value)):
        raise ValueError("a trace id has 32 hexadecimal digits")
    return value


# Of a record of the platform: one that is not valid counts as absent, as the standard has it.
TraceParent = Annotated[str | None, BeforeValidator(_valid_or_absent)]
# Of a note: only shown.
TraceId = Fact[Annotated[str, BeforeValidator(_trace_id)]]
