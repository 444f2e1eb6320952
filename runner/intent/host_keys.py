"""The ssh keys that identify a member's host: those of its allocation, else those pinned at first contact. Pure.

Two notes in a member's `adapter_detail` are about that:

- `host_keys_pinned` {keys, at, address}: what the host showed before anything was run on it. Unlike other notes, one of
  the wrong form does not count as absent: a damaged note must not make the runner trust another machine.
- `host_key_changed` {expected, at}: the host did not show the key with this fingerprint. As long as that key
  identifies it, nothing is run on it.

If a newer runner wrote one of them, nothing is run on the host either, and the code is that of every newer note.
"""

import base64
import hashlib
import re
from collections.abc import Iterable
from typing import Any

from runner.intent.errors import IntentError
from runner.model.member_notes import ChangedKey, MemberNotes, PinnedKeys
from runner.model.platform import UNFINISHED, Allocation, Member
from runner.model.records import NoteProblem, RecordError

PINNED, CHANGED = "host_keys_pinned", "host_key_changed"
MISMATCH, CONTRADICTED = "host_key_mismatch", "host_key_contradicted"
MISSING, NOTE_INVALID = "host_key_missing", "host_key_note_invalid"
CODES = frozenset({MISMATCH, CONTRADICTED, MISSING, NOTE_INVALID})
# Another machine answers than the one on record, so there is nothing of ours to clean on it.
ANOTHER = frozenset({MISMATCH, CONTRADICTED})

# Strongest first: one key is enough, and ssh accepts no other kind.
TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa")
_BODY = re.compile(r"[A-Za-z0-9+/]{40,2000}={0,2}")

KEY_CHANGED_MESSAGE = (
    "the host does not show the ssh key on record: another machine answers, or it was reinstalled. Nothing is run"
    " on it until a person acts. If no person gave it a new key, treat it as a break-in. A member that an operation"
    " added: op remove or op replace, then op add if it is wanted again. Otherwise correct the allocation's host_keys,"
    " or run gpuaas-slurm trust with the new key"
)

Keys = dict[str, str]  # by type


def read_keys(lines: Iterable[object]) -> Keys | None:
    """Public keys, read strictly: None if one entry is not a public key. Of two of a type the first counts."""
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
    _require_known_format(member)
    published, pinned = _published(allocation), _pinned(member)
    if published and pinned and any(published.get(kind, body) != body for kind, body in pinned.items()):
        raise IntentError(
            CONTRADICTED,
            f"allocation {allocation.id} has host_keys that differ from those pinned before. Either the host was"
            " reinstalled, or another machine has had this member's secrets. Find out which; then op remove or replace"
            " the member if an operation added it, or run gpuaas-slurm trust with the correct key",
        )
    keys = published or pinned
    if not keys:
        raise IntentError(MISSING, _missing(allocation, member))
    best = next(kind for kind in TYPES if kind in keys)
    if _was_contradicted(member, keys[best]):
        raise IntentError(MISMATCH, KEY_CHANGED_MESSAGE)
    return best, keys[best]


def is_first_sight(allocation: Allocation, member: Member) -> bool:
    """Whether the keys that its host shows may be pinned: the platform has none, and nothing was run on it yet."""
    pinned = is_pinned(member)
    return not (allocation.connection or {}).get("host_keys") and not pinned and is_new(member)


def is_new(member: Member) -> bool:
    """Whether nothing was ever run on its host. Keys whose note was lost are not pinned again, so that deleting
    the note does not make the runner trust another machine."""
    notes = member.notes
    begun = notes.phase not in (None, "requested") or notes.host_touched or notes.stopped or notes.problems
    return member.status in UNFINISHED and not begun


def pin(lines: Iterable[str], address: str, at: str) -> dict[str, Any]:
    """The note to keep."""
    return MemberNotes(host_keys_pinned=PinnedKeys(keys=list(lines), at=at, address=address)).changes


def changed(key_body: str, at: str) -> dict[str, Any]:
    return MemberNotes(host_key_changed=ChangedKey(expected=fingerprint(key_body), at=at)).changes


def shown(member: Member) -> str | None:
    """The pinned key's fingerprint, for people; None if none is pinned."""
    try:
        keys = _pinned(member)
    except IntentError:
        return "unreadable note"
    return fingerprint(keys[next(kind for kind in TYPES if kind in keys)]) if keys else None


def _published(allocation: Allocation) -> Keys | None:
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


def newer_note(member: Member) -> NoteProblem | None:
    """What is wrong with a note about its keys that a newer runner wrote."""
    return next((one for one in member.notes.problems if one.name in (PINNED, CHANGED)), None)


def _require_known_format(member: Member) -> None:
    problem = newer_note(member)
    if problem:
        raise IntentError(problem.code, f"adapter_detail.{problem.message}. Nothing is run on the host by this one")


def _pinned(member: Member) -> Keys | None:
    try:
        pinned = member.notes.pinned_keys
        if pinned is None:
            return None
        found = read_keys(pinned.keys)
    except RecordError:
        found = None
    if found is None:
        raise IntentError(
            NOTE_INVALID,
            f"the note {PINNED} cannot be read, so the host cannot be identified, and is not pinned again."
            " Find out who changed it; then run gpuaas-slurm trust with the host's key",
        )
    return found


def is_pinned(member: Member) -> bool:
    """Whether keys were pinned, readable or not."""
    return member.notes.host_keys_pinned is not None


def _was_contradicted(member: Member, key_body: str) -> bool:
    """Whether the host did not show this key. A note that cannot be read counts as such."""
    try:
        changed = member.notes.changed_key
    except RecordError:
        return True
    return changed is not None and changed.expected == fingerprint(key_body)


def _missing(allocation: Allocation, member: Member) -> str:
    if is_new(member):
        return (
            f"allocation {allocation.id} gives no host_keys, and none are pinned for this member yet."
            " gpuaas-slurm run pins them before its first play on the host: run it, then try again"
        )
    return (
        f"allocation {allocation.id} gives no host_keys, and none are on record though its host was worked on: it"
        " cannot be identified. Have the platform publish its keys, or run gpuaas-slurm trust with one"
    )
