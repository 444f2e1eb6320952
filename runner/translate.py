"""Play events to what they mean for members. Pure; reads only data that roles emit on purpose.

That is: `member_report` and `adapter_error` in a task's result, and the outcome of each host (failed, unreachable,
no host matched). Task names and stdout decide nothing.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, get_args
from uuid import UUID

from runner import hostkeys
from runner.plan import AdapterError, Detail, ErrorClass
from runner.slurm import Snapshot, read_snapshot
from runner.world import Outcome

Event = Mapping[str, Any]
MESSAGE_LIMIT = 1000
DETAIL_CHARS = 8000
TASK_FAILED = "task_failed"
# How a task looks that could not have a secret: the first where it must not be told, the second in a lookup's words.
WANTING = ("its output is withheld because it handles a secret", "runtime secret not available")


@dataclass(frozen=True)
class Story:
    """What a run has told so far: an outcome for each member it reached, and the newest snapshot."""

    outcomes: Mapping[UUID, Outcome] = field(default_factory=dict)
    snapshot: Snapshot | None = None
    nothing_matched: bool = False


@dataclass(frozen=True)
class Heard:
    """One event that says something of one member."""

    member_id: UUID
    phase: str | None = None
    detail: Detail = field(default_factory=dict)
    snapshot: Any = None
    error: AdapterError | None = None
    at: datetime | None = None  # by the clock of the machine that Ansible runs on


def hear(event: Event, members: Mapping[str, UUID]) -> Heard | Literal["nothing matched"] | None:
    """The meaning of one event; None for the many that have none. `members` is by inventory name."""
    kind = event.get("event")
    data = event.get("event_data") or {}
    if kind == "playbook_on_no_hosts_matched":
        return "nothing matched"
    member_id = members.get(str(data.get("host")))
    if member_id is None or kind not in ("runner_on_ok", "runner_on_failed", "runner_on_unreachable"):
        return None
    result = data.get("res")
    result = result if isinstance(result, dict) else {}
    said = result.get("member_report")
    said = said if isinstance(said, dict) else {}
    heard = Heard(
        member_id,
        _text(said.get("phase")),
        _object(said.get("detail")),
        said.get("snapshot"),
        at=_time(event.get("created")),
    )
    if kind == "runner_on_unreachable":
        return replace(heard, error=_unreachable(data, result))
    if kind == "runner_on_failed":
        return None if data.get("ignore_errors") else replace(heard, error=_failed(data, result))
    return heard if said else None


def tell(story: Story, heard: Heard | Literal["nothing matched"] | None) -> Story:
    """The story with one more event in it. The first error of a member stands."""
    if heard is None:
        return story
    if heard == "nothing matched":
        return replace(story, nothing_matched=True)
    assert isinstance(heard, Heard)
    before = story.outcomes.get(heard.member_id, Outcome())
    outcome = Outcome(heard.phase or before.phase, {**before.detail, **heard.detail}, before.error or heard.error)
    snapshot = read_snapshot(heard.snapshot) if heard.snapshot is not None else None
    if snapshot and heard.at:
        snapshot = snapshot.timed(heard.at)
    return replace(story, outcomes={**story.outcomes, heard.member_id: outcome}, snapshot=snapshot or story.snapshot)


def translate(events: Iterable[Event], members: Mapping[str, UUID]) -> Story:
    """A whole recorded run at once."""
    story = Story()
    for event in events:
        story = tell(story, hear(event, members))
    return story


def without_secret(story: Story, why: AdapterError) -> Story:
    """The story of a play to which a secret was refused: a task that failed for want of it says so, with the reason."""
    return replace(
        story,
        outcomes={
            member_id: replace(known, error=replace(why, host=known.error.host, task=known.error.task))
            if known.error and known.error.code == TASK_FAILED and any(word in known.error.message for word in WANTING)
            else known
            for member_id, known in story.outcomes.items()
        },
    )


def _failed(data: Mapping[str, Any], result: Mapping[str, Any]) -> AdapterError:
    host, task = _text(data.get("host")), _text(data.get("task"))
    given = result.get("adapter_error")
    if isinstance(given, dict) and given.get("code"):
        klass: Any = given.get("class")
        return AdapterError(
            str(given["code"])[:64],
            _short(given.get("message") or result.get("msg")),
            klass if klass in get_args(ErrorClass) else "intervention",
            host,
            task,
            _uuid(given.get("instance")),
        )
    if _is_refused_by_sudo(result):
        message = (
            f"the login user may not become root: {_short(result.get('msg'))}. Install deploy/sudoers.d/gpuaas-slurm on"
            " the host, with that user's name, then ask again"
        )
        return AdapterError("not_root", message, "intervention", host, task)
    message = WANTING[0] if "censored" in result else _short(result.get("msg"))
    return AdapterError(TASK_FAILED, f"{task}: {message}. Look at the host, then ask again", "intervention", host, task)


def _is_refused_by_sudo(result: Mapping[str, Any]) -> bool:
    """Ansible has no field for it: its own words where sudo asks for a password, else sudo's."""
    said = str(result.get("module_stderr") or result.get("stderr") or "").lstrip()
    return "sudo password" in str(result.get("msg")) or said.startswith(("sudo: ", "Sorry, user "))


def _unreachable(data: Mapping[str, Any], result: Mapping[str, Any]) -> AdapterError:
    message = f"ssh to the host failed: {_short(result.get('msg'))}. Check that it is up and that its sshd answers"
    if "Host key verification failed" in str(result.get("msg")):
        # Another machine answers, or the host was rebuilt: trying again cannot make that right.
        return AdapterError(
            hostkeys.MISMATCH, hostkeys.CHANGED_WORDS, "intervention", _text(data.get("host")), _text(data.get("task"))
        )
    return AdapterError("host_unreachable", message, "retryable", _text(data.get("host")), _text(data.get("task")))


def _short(value: object) -> str:
    text = " ".join(str(value or "no message").split())
    return text if len(text) <= MESSAGE_LIMIT else text[:MESSAGE_LIMIT] + "..."


def _text(value: object) -> str | None:
    return _short(value) if value is not None else None


def _uuid(value: object) -> UUID | None:
    try:
        return UUID(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _time(value: object) -> datetime | None:
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return time if time and time.tzinfo else None


def _object(value: object) -> Detail:
    """What a host tells of itself, as far as it can be kept: one that goes on and on must not fill its record."""
    if not isinstance(value, dict):
        return {}
    # By which keys it is known is not for the host to say.
    told = {str(key): item for key, item in value.items() if key not in (hostkeys.PINNED, hostkeys.CHANGED)}
    return told if len(json.dumps(told, default=str)) <= DETAIL_CHARS else {}
