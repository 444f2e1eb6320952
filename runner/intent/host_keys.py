"""By which ssh keys a member's host is known: those its allocation gives, else those pinned at first sight. Pure.

Two notes in a member's `adapter_detail` are about that:

- `host_keys_pinned` {keys, at, address}: what the host showed before anything was run on it. Unlike other notes, one of
  the wrong form does not count as absent: spoiling it would be a way to have another machine trusted.
- `host_key_changed` {expected, at}: the host did not show the key with this fingerprint. As long as that is the key it
  is known by, nothing is run on it.
"""

import base64
import hashlib
import re
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runner.intent.errors import IntentError
from runner.model.platform import Allocation, Member, MemberStatus

PINNED, CHANGED = "host_keys_pinned", "host_key_changed"
MISMATCH, CONTRADICTED = "host_key_mismatch", "host_key_contradicted"
MISSING, NOTE_INVALID = "host_key_missing", "host_key_note_invalid"
CODES = frozenset({MISMATCH, CONTRADICTED, MISSING, NOTE_INVALID})
# Another machine answers than the one we know, as far as anybody can tell: there is nothing on it for us to clean.
ANOTHER = frozenset({MISMATCH, CONTRADICTED})

# Strongest first: one key is enough, and ssh is told to accept no other kind.
TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa")
_BODY = re.compile(r"[A-Za-z0-9+/]{40,2000}={0,2}")

CHANGED_WORDS = (
    "the host does not show the ssh key on record: another machine answers, or it was reinstalled. Nothing is run"
    " on it until a person acts. If no person gave it a new key, treat it as a break-in. A worker: op remove or op"
    " replace, then op add if it is wanted again. Otherwise correct the allocation's host_keys, or say gpuaas-slurm"
    " trust with the new key"
)

Keys = dict[str, str]  # by type


class _Pin(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    keys: list[str] = Field(min_length=1, max_length=len(TYPES))
    at: str = Field(max_length=64)
    address: str = Field(max_length=253)


def read_keys(lines: Iterable[object]) -> Keys | None:
    """Public keys, strictly: None if one of them is none. Of two of a type the first counts."""
    found: Keys = {}
    for line in lines:
        parts = line.split() if isinstance(line, str) else []
        if len(parts) < 2 or parts[0] not in TYPES or not _BODY.fullmatch(parts[1]) or len(parts[1]) % 4:
            return None
        found.setdefault(parts[0], parts[1])
    return found


def fingerprint(body: str) -> str:
    """As ssh-keygen -l shows it, for people to compare."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(base64.b64decode(body)).digest()).decode().rstrip("=")


def key_of(allocation: Allocation, member: Member) -> tuple[str, str]:
    """The one key, type and body, that the member's host must show; IntentError if there is none or it did not."""
    given, pinned = _given(allocation), _pinned(member)
    if given and pinned and any(given.get(kind, body) != body for kind, body in pinned.items()):
        raise IntentError(
            CONTRADICTED,
            f"allocation {allocation.id} has host_keys that differ from those pinned before. Either the host was"
            " reinstalled, or another machine has had this member's secrets. Find out which; then op remove or replace"
            " the worker, or run gpuaas-slurm trust with the correct key",
        )
    known = given or pinned
    if not known:
        raise IntentError(MISSING, _missing(allocation, member))
    best = next(kind for kind in TYPES if kind in known)
    changed = member.adapter_detail.get(CHANGED)
    if changed is not None and (not isinstance(changed, dict) or changed.get("expected") == fingerprint(known[best])):
        raise IntentError(MISMATCH, CHANGED_WORDS)
    return best, known[best]


def is_first_sight(allocation: Allocation, member: Member) -> bool:
    """Whether the keys of its host may be taken as they are shown: nobody gave any, and nothing was run on it yet."""
    pinned = member.adapter_detail.get(PINNED) is not None
    return not (allocation.connection or {}).get("host_keys") and not pinned and is_new(member)


def is_new(member: Member) -> bool:
    """Whether nothing was ever run on its host. What was lost is not pinned again: losing it would be a way to."""
    known = member.adapter_detail
    begun = known.get("phase") not in (None, "requested") or known.get("host_touched") or known.get("stopped")
    return member.status in (MemberStatus.REQUESTED, MemberStatus.RECONCILING) and not begun


def pin(lines: Iterable[str], address: str, at: str) -> dict[str, Any]:
    """The note to keep."""
    return {PINNED: {"keys": list(lines), "at": at, "address": address}}


def changed(key_body: str, at: str) -> dict[str, Any]:
    return {CHANGED: {"expected": fingerprint(key_body), "at": at}}


def shown(member: Member) -> str | None:
    """The pinned key's fingerprint, for people; None if none is pinned."""
    note = member.adapter_detail.get(PINNED)
    if note is None:
        return None
    try:
        keys = _pinned(member) or {}
    except IntentError:
        return "unreadable note"
    return fingerprint(keys[next(kind for kind in TYPES if kind in keys)])


def _given(allocation: Allocation) -> Keys | None:
    lines = (allocation.connection or {}).get("host_keys")
    if not lines:
        return None
    found = read_keys(lines) if isinstance(lines, list) else None
    if found is None:
        raise IntentError(
            "connection_invalid",
            f"allocation {allocation.id}: host_keys has an entry that is not an ssh public key."
            " Correct the allocation's connection",
        )
    return found


def _pinned(member: Member) -> Keys | None:
    note = member.adapter_detail.get(PINNED)
    if note is None:
        return None
    try:
        found = read_keys(_Pin.model_validate(note).keys)
    except ValidationError:
        found = None
    if found is None:
        raise IntentError(
            NOTE_INVALID,
            f"the note {PINNED} cannot be read, so the host cannot be identified, and is not pinned again."
            " Find out who changed it; then run gpuaas-slurm trust with the host's key",
        )
    return found


def _missing(allocation: Allocation, member: Member) -> str:
    if is_new(member):
        return (
            f"allocation {allocation.id} gives no host_keys, and none are pinned for this member yet: the runner does"
            " that before it first works on it. Let gpuaas-slurm run do so, then try again"
        )
    return (
        f"allocation {allocation.id} gives no host_keys, and none are on record though its host was worked on: it"
        " cannot be identified. Have the platform publish its keys, or run gpuaas-slurm trust with one"
    )
