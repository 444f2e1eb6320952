"""Play events to what they mean for members. Pure; reads only data that roles emit on purpose.

That is: what the member_report plugin returns on this side, `adapter_error` in a failed task's result, and the outcome
of each host (failed, unreachable, no host matched). Task names and stdout decide nothing. What comes from a host is
read by the app (`ReportReader`), for the host's own member only.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, get_args
from uuid import UUID

from runner.intent import host_keys
from runner.model import host_data
from runner.model.app import ReportReader
from runner.model.plan import AdapterError, Detail, ErrorClass
from runner.model.world import Outcome

Event = Mapping[str, Any]
TASK_FAILED = "task_failed"
# Codes that are this side's own to find out: a host that returns one must not be handled as if it were so.
OUR_CODES = frozenset({host_keys.MISMATCH, "host_unreachable", "play_timeout", "play_stalled", TASK_FAILED})
# How a task looks that could not have a secret: the first where it must not be told, the second in a lookup's words.
WANTING = ("its output is withheld because it handles a secret", "runtime secret not available")


@dataclass(frozen=True)
class RunResult:
    """What a run has told so far: an outcome for each member it reached, and the newest snapshot."""

    outcomes: Mapping[UUID, Outcome] = field(default_factory=dict)
    snapshot: Any = None
    nothing_matched: bool = False


@dataclass(frozen=True)
class MemberEvent:
    """One event that says something of one member."""

    member_id: UUID
    phase: str | None = None
    detail: Detail = field(default_factory=dict)
    snapshot: Any = None
    error: AdapterError | None = None
    at: datetime | None = None  # by the clock of the machine that Ansible runs on
    dropped: tuple[str, ...] = ()  # keys of the report that were not believed


def parse_event(event: Event, members: Mapping[str, ReportReader]) -> MemberEvent | Literal["nothing matched"] | None:
    """The meaning of one event; None for the many that have none. `members` is by inventory name."""
    kind = event.get("event")
    data = event.get("event_data") or {}
    if kind == "playbook_on_no_hosts_matched":
        return "nothing matched"
    member = members.get(str(data.get("host")))
    if member is None or kind not in ("runner_on_ok", "runner_on_failed", "runner_on_unreachable"):
        return None
    result = data.get("res")
    result = result if isinstance(result, dict) else {}
    heard = _report(event, member, result)
    if kind == "runner_on_unreachable":
        return replace(heard, error=_unreachable(data, result))
    if kind == "runner_on_failed":
        return None if data.get("ignore_errors") else replace(heard, error=_failed(data, result))
    return heard if _is_report(data, member, result) else None


def _is_report(data: Mapping[str, Any], member: ReportReader, result: Mapping[str, Any]) -> bool:
    """Whether the result is a report. Any module on any host may return one that looks the same."""
    return member.accepts(str(data.get("task_action"))) and isinstance(result.get("member_report"), dict)


def _report(event: Event, member: ReportReader, result: Mapping[str, Any]) -> MemberEvent:
    at = _time(event.get("created"))
    if not _is_report(event["event_data"], member, result):
        return MemberEvent(member.id, at=at)
    read = member.read(result["member_report"], at)
    return MemberEvent(member.id, read.phase, read.detail, read.snapshot, at=at, dropped=read.dropped)


def add_event(story: RunResult, heard: MemberEvent | Literal["nothing matched"] | None) -> RunResult:
    """The story with one more event in it. The first error of a member stands."""
    if heard is None:
        return story
    if heard == "nothing matched":
        return replace(story, nothing_matched=True)
    assert isinstance(heard, MemberEvent)
    before = story.outcomes.get(heard.member_id, Outcome())
    outcome = Outcome(heard.phase or before.phase, {**before.detail, **heard.detail}, before.error or heard.error)
    outcomes = {**story.outcomes, heard.member_id: outcome}
    return replace(story, outcomes=outcomes, snapshot=heard.snapshot or story.snapshot)


def translate(events: Iterable[Event], members: Mapping[str, ReportReader]) -> RunResult:
    """A whole recorded run at once."""
    story = RunResult()
    for event in events:
        story = add_event(story, parse_event(event, members))
    return story


def without_secret(story: RunResult, why: AdapterError) -> RunResult:
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
    if isinstance(given, dict) and _is_code(given.get("code")):
        klass: Any = given.get("class")
        return AdapterError(
            given["code"],
            host_data.message(given.get("message") or result.get("msg")),
            klass if klass in get_args(ErrorClass) else "intervention",
            host,
            task,
            _uuid(given.get("instance")),
        )
    if _is_refused_by_sudo(result):
        message = (
            f"the login user may not become root: {host_data.message(result.get('msg'))}. Install"
            " deploy/sudoers.d/gpuaas-slurm on the host, with that user's name, then ask again"
        )
        return AdapterError("not_root", message, "intervention", host, task)
    message = WANTING[0] if "censored" in result else host_data.message(result.get("msg"))
    return AdapterError(TASK_FAILED, f"{task}: {message}. Look at the host, then ask again", "intervention", host, task)


def _is_code(value: object) -> bool:
    return isinstance(value, str) and bool(host_data.CODE.fullmatch(value)) and value not in OUR_CODES


def _is_refused_by_sudo(result: Mapping[str, Any]) -> bool:
    """Ansible has no field for it: its own words where sudo asks for a password, else sudo's."""
    said = str(result.get("module_stderr") or result.get("stderr") or "").lstrip()
    return "sudo password" in str(result.get("msg")) or said.startswith(("sudo: ", "Sorry, user "))


def _unreachable(data: Mapping[str, Any], result: Mapping[str, Any]) -> AdapterError:
    message = (
        f"ssh to the host failed: {host_data.message(result.get('msg'))}. Check that it is up and that its sshd answers"
    )
    if "Host key verification failed" in str(result.get("msg")):
        # Another machine answers, or the host was rebuilt: trying again cannot make that right.
        return AdapterError(
            host_keys.MISMATCH,
            host_keys.CHANGED_WORDS,
            "intervention",
            _text(data.get("host")),
            _text(data.get("task")),
        )
    return AdapterError("host_unreachable", message, "retryable", _text(data.get("host")), _text(data.get("task")))


def _text(value: object) -> str | None:
    return host_data.printable(value, host_data.TEXT_BYTES) if value is not None else None


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
