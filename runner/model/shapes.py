"""What we rely on in the notes we keep at the platform, by type.

We wrote them, but they come back from an API: somebody may have changed them, and an older or newer version of us may
have written them. A note of the wrong type counts as not there, so that nothing that reads it has to doubt it.
"""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

Detail = dict[str, Any]
Shape = Callable[[Any], bool]

TEXT_CHARS = 4000
YEARS = range(2000, 2200)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ADDRESS = re.compile(r"[1-9][0-9]{0,9}(_[0-9]{1,9}|_\[([0-9,:-]{1,60}(\.\.\.)?|\?)\]|\+[0-9]{1,4})?")


def read_time(value: object) -> datetime | None:
    """A time with its zone, in years in which one can add to it and take from it."""
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return time if time and time.tzinfo and time.year in YEARS else None


def _text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= TEXT_CHARS


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2**40


def _tries(value: Any) -> bool:
    """Few enough to double a pause so often."""
    return is_count(value) and value <= 20


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _id(value: Any) -> bool:
    return isinstance(value, str) and bool(_UUID.fullmatch(value))


def _jobs(value: Any) -> bool:
    """Addresses of jobs; releases before ledger format 2 wrote ids."""
    return isinstance(value, list) and all(
        is_count(one) or (isinstance(one, str) and bool(_ADDRESS.fullmatch(one))) for one in value
    )


def _time(value: Any) -> bool:
    return read_time(value) is not None


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(_text(one) for one in value)


def _object(value: Any) -> bool:
    return isinstance(value, dict)


def _error(value: Any) -> bool:
    return isinstance(value, dict) and all(one is None or _text(one) for one in value.values())


_ERROR: Mapping[str, Shape] = dict.fromkeys(("code", "message", "class", "host", "task", "at"), _text)
_LEAVE: Mapping[str, Shape] = {
    "operation_id": _id,
    "verb": _text,
    "since": _time,
    "verdict": _text,
    "did": _text,
    "unreachable_since": _time,
    "attempts": _tries,
    "error": _error,
}
_MEMBER: Mapping[str, Shape] = {
    "phase": _text,
    "operation_id": _id,
    "started_by": _id,
    "retried_by": _id,
    "worker_hostname": _text,
    "controller_hostname": _text,
    "drain_reason": _text,
    "claimed_by": _text,
    "lease_expires_at": _time,
    "next_attempt_at": _time,
    "attempt": _tries,
    "cpus": is_count,
    "memory_mb": is_count,
    "gpus": is_count,
    "jobs": _jobs,
    "jobs_naming_node": _jobs,
    "jobs_remaining": is_count,
    "registered_in_controller": _flag,
    "host_cleaned": _flag,
    "homes_left": _texts,
    "excused_by": _id,
    "process_control": _text,
}
_REPAIR: Mapping[str, Shape] = {
    "why": _text,
    "attempts": _tries,
    "last_at": _text,
    "next_at": _text,
    "outcome": _text,
}
_NOTES: Mapping[str, Mapping[str, Shape]] = {
    "last_adapter_error": _ERROR,
    "leave": _LEAVE,
    "repair": _REPAIR,
    "stopped": {"was": _text, "phase": _text},
    "rotation_left_out": {"operation_id": _id, "code": _text},
    "change": {"digest": _text, "attempt": is_count, "next_attempt_at": _time},
    "wish_refused": {"digest": _text, "code": _text, "message": _text},
}
_LIFECYCLE: Mapping[str, Shape] = {
    "operation_id": _id,
    "verb": _text,
    "verdict": _text,
    "attempts": _tries,
    "failure": _object,
    "excused": _texts,
    "left": _texts,
}


def of_member(detail: Detail) -> Detail:
    """`adapter_detail` as we may read it."""
    return _notes(_kept(detail, _MEMBER), _NOTES)


def of_instance(detail: Detail | None) -> Detail | None:
    """`status_detail` as we may read it."""
    return None if detail is None else _notes(detail, {"lifecycle": _LIFECYCLE})


def _kept(values: Detail, shapes: Mapping[str, Shape]) -> Detail:
    """Without what is there but not as it should be. Null is as good as absent, and stays."""
    return {key: value for key, value in values.items() if key not in shapes or value is None or shapes[key](value)}


def _notes(values: Detail, notes: Mapping[str, Mapping[str, Shape]]) -> Detail:
    """Notes within: none that is not an object, and in each only what has its type."""
    read = {key: value for key, value in values.items() if key not in notes or isinstance(value, dict | None)}
    return read | {key: _kept(read[key], shapes) for key, shapes in notes.items() if read.get(key)}
