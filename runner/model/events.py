"""Types of events on an instance's timeline: those that the platform states, and those that we assume. Pure.

The platform has not stated that it takes the assumed types, so each is off unless a setting turns it on:
docs/decisions/0023-events.md.
"""

PREFIX = "apps.instance."
RUNNING = PREFIX + "running"
CHANGED = PREFIX + "changed"
UPGRADED = PREFIX + "upgraded"
HEALED = PREFIX + "healed"
OPERATION_FAILED = PREFIX + "operation_failed"

STATED = frozenset(PREFIX + name for name in ("requested", "running", "failed", "deleting", "deleted"))
ASSUMED = frozenset((PREFIX + "stopped", CHANGED, UPGRADED, HEALED, OPERATION_FAILED))

ALL, NONE = "all", "none"


def of_status(status: str) -> str:
    return PREFIX + status


def is_announced(kind: str, assumed: frozenset[str]) -> bool:
    """Whether an event of the type is posted; `assumed` has the assumed types that are on."""
    return kind in STATED or kind in assumed


def read_assumed(text: str) -> frozenset[str]:
    """The assumed types of a setting: `none`, `all`, or types separated by commas. ValueError for any other."""
    if text in (ALL, NONE):
        return ASSUMED if text == ALL else frozenset()
    found = frozenset(one.strip() for one in text.split(",") if one.strip())
    unknown = sorted(found - ASSUMED)
    if unknown or not found:
        raise ValueError(f"must be {NONE}, {ALL} or some of {', '.join(sorted(ASSUMED))}, separated by commas")
    return found
