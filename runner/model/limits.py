"""Size limits of the records kept at the platform. Pure.

The platform refuses an object of the app's own (adapter_detail, status_detail, result) above 16 KiB, and a refused
record stays refused at every tick. An instance may have 65,533 members, so a record holds a count and a sample where it
could hold one entry per member. What decides about a single member stands in that member's own record.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from runner.model.errors import PlatformError
from runner.model.instance_notes import Reason

RECORD_BYTES = 16 * 1024
# Of status_detail; the rest is for the note of an instance operation, the versions and the counts.
REASONS_BYTES = 8 * 1024
REASONS_SHOWN = 20
SAMPLE = 20
MORE = "more"
ERROR_CHARS = 2000

Detail = dict[str, Any]


class RecordTooLarge(PlatformError):
    """A record would not fit, so it is not sent: the platform would refuse it at every tick."""


def size(value: object) -> int:
    """Bytes as the platform counts them: compact JSON in UTF-8."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str)
    return len(text.encode(errors="replace"))


def check(what: str, body: Mapping[str, object]) -> None:
    """Raise RecordTooLarge if an object in the body of a write is over the limit."""
    for name, value in body.items():
        if isinstance(value, dict) and (measured := size(value)) > RECORD_BYTES:
            largest = max(value, key=lambda key: size(value[key]))
            raise RecordTooLarge(
                f"record_too_large: {name} of {what} is {measured} bytes, the limit is {RECORD_BYTES}; the largest part"
                f" is {largest!r} with {size(value[largest])}. It was not written. Report this as a defect of"
                " gpuaas-slurm",
                code="record_too_large",
            )


def sampled(name: str, found: Mapping[str, Any]) -> Detail:
    """The first entries by name, and how many there are."""
    return {name: {key: found[key] for key in sorted(found)[:SAMPLE]}, f"{name}_count": len(found)}


def named(names: Sequence[str], between: str = ", ") -> str:
    """Names for a sentence: the first of them, and how many more."""
    more = f" and {len(names) - SAMPLE} more" if len(names) > SAMPLE else ""
    return between.join(names[:SAMPLE]) + more


def short(message: str) -> str:
    """A message that fits into the error of an operation."""
    return message if len(message) <= ERROR_CHARS else message[: ERROR_CHARS - 3] + "..."


def fit_reasons(reasons: Sequence[Reason]) -> list[Reason]:
    """The first reasons, as many as fit; the last entry counts the others, also those that were left out before."""
    before = 0
    if reasons and reasons[-1].code == MORE:
        counted = re.fullmatch(r"and (\d{1,9}) more", reasons[-1].message)
        before, reasons = int(counted[1]) if counted else 1, reasons[:-1]
    kept: list[Reason] = []
    used = 0
    for reason in reasons[:REASONS_SHOWN]:
        used += size(reason.stored()) + 1
        if used > REASONS_BYTES:
            break
        kept.append(reason)
    left = len(reasons) - len(kept) + before
    return [*kept, Reason(code=MORE, message=f"and {left} more", health="healthy")] if left else kept
