"""Translates play events into outcomes of members. Pure; reads only data that roles emit on purpose.

That is: what the member_report plugin returns on this side, `adapter_error` in a failed task's result, and the outcome
of each host (failed, unreachable, no host matched). Task names and stdout decide nothing. What comes from a host is
read by the app (`ReportReader`), for the host's own member only.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, Self, get_args
from uuid import UUID

from runner.intent import host_keys
from runner.model import host_data
from runner.model.app import ReportReader
from runner.model.plan import AdapterError, Detail, ErrorClass
from runner.model.world import Outcome

Event = Mapping[str, Any]  # as ansible-runner gives it
NoHostsMatched = Literal["no hosts matched"]
TASK_FAILED = "task_failed"
# Codes that only the runner may set. A host that returns one would choose how its member is handled.
OUR_CODES = frozenset({host_keys.MISMATCH, "host_unreachable", "play_timeout", "play_stalled", TASK_FAILED})
# Messages of a task that did not get its secret: of one with a hidden result, and of the lookup.
NO_SECRET_MESSAGES = ("its output is withheld because it handles a secret", "runtime secret not available")


@dataclass(frozen=True)
class RunResult:
    """The result of a run so far: an outcome for each member it reached, and the newest snapshot."""

    outcomes: Mapping[UUID, Outcome] = field(default_factory=dict)
    snapshot: Any = None
    no_hosts_matched: bool = False


@dataclass(frozen=True)
class MemberEvent:
    """One event about one member."""

    member_id: UUID
    phase: str | None = None
    detail: Detail = field(default_factory=dict)
    snapshot: Any = None
    error: AdapterError | None = None
    at: datetime | None = None  # by the clock of the machine that Ansible runs on
    dropped: tuple[str, ...] = ()  # keys of the report that were not accepted


@dataclass(frozen=True)
class PlayEvent:
    """The fields of an event that the runner uses. The result is a host's data: it may be anything."""

    kind: str
    run_id: object
    created: datetime | None
    host: str | None
    task: str | None
    action: str
    errors_are_ignored: bool
    message: object
    stderr: str
    is_hidden: bool
    report: Mapping[str, Any] | None
    error: Mapping[str, Any]
    task_id: str | None = None
    task_path: str | None = None  # file and line, as Ansible has read them on this machine

    @classmethod
    def read(cls, event: Event) -> Self:
        data = _object(event.get("event_data"))
        result = _object(data.get("res"))
        report = result.get("member_report")
        return cls(
            kind=str(event.get("event")),
            run_id=data.get("playbook_uuid"),
            created=_time(event.get("created")),
            host=_text(data.get("host")),
            task=_text(data.get("task")),
            action=str(data.get("task_action")),
            errors_are_ignored=bool(data.get("ignore_errors")),
            message=result.get("msg"),
            stderr=str(result.get("module_stderr") or result.get("stderr") or "").lstrip(),
            is_hidden="censored" in result,
            report=report if isinstance(report, dict) else None,
            error=_object(result.get("adapter_error")),
            task_id=_text(data.get("task_uuid")),
            task_path=_text(data.get("task_path")),
        )


def parse_event(raw: Event, members: Mapping[str, ReportReader]) -> MemberEvent | NoHostsMatched | None:
    """What one event means for a member; None for the many events that mean nothing. `members` is by inventory name."""
    event = PlayEvent.read(raw)
    if event.kind == "playbook_on_no_hosts_matched":
        return "no hosts matched"
    member = members.get(event.host or "")
    if member is None or event.kind not in ("runner_on_ok", "runner_on_failed", "runner_on_unreachable"):
        return None
    report = _report(event, member)
    if event.kind == "runner_on_ok":
        return report
    if event.kind == "runner_on_failed" and event.errors_are_ignored:
        return None
    error = _failed(event) if event.kind == "runner_on_failed" else _unreachable(event)
    return replace(report or MemberEvent(member.id, at=event.created), error=error)


def _report(event: PlayEvent, member: ReportReader) -> MemberEvent | None:
    """The member's report. The action is checked, because any module on any host may return the same keys."""
    if event.report is None or not member.accepts(event.action):
        return None
    read = member.read(event.report, event.created)
    return MemberEvent(member.id, read.phase, read.detail, read.snapshot, at=event.created, dropped=read.dropped)


def add_event(result: RunResult, event: MemberEvent | NoHostsMatched | None) -> RunResult:
    """The result with one more event. The first error of a member is kept."""
    if event is None:
        return result
    if event == "no hosts matched":
        return replace(result, no_hosts_matched=True)
    assert isinstance(event, MemberEvent)
    before = result.outcomes.get(event.member_id, Outcome())
    outcome = Outcome(event.phase or before.phase, {**before.detail, **event.detail}, before.error or event.error)
    outcomes = {**result.outcomes, event.member_id: outcome}
    # An app's snapshot may be empty: nothing was seen, which is not the same as no snapshot.
    return replace(result, outcomes=outcomes, snapshot=result.snapshot if event.snapshot is None else event.snapshot)


def translate(events: Iterable[Event], members: Mapping[str, ReportReader]) -> RunResult:
    """The result of a whole recorded run."""
    result = RunResult()
    for event in events:
        result = add_event(result, parse_event(event, members))
    return result


def name_refused_secret(result: RunResult, cause: AdapterError) -> RunResult:
    """Give members whose task failed for lack of a secret the error with which the secret was refused."""

    def explained(outcome: Outcome) -> Outcome:
        error = outcome.error
        if not error or error.code != TASK_FAILED or not any(one in error.message for one in NO_SECRET_MESSAGES):
            return outcome
        return replace(outcome, error=replace(cause, host=error.host, task=error.task))

    return replace(result, outcomes={member_id: explained(one) for member_id, one in result.outcomes.items()})


def _failed(event: PlayEvent) -> AdapterError:
    code = event.error.get("code")
    if isinstance(code, str) and host_data.CODE.fullmatch(code) and code not in OUR_CODES:
        klass: Any = event.error.get("class")
        return AdapterError(
            code,
            host_data.message(event.error.get("message") or event.message),
            klass if klass in get_args(ErrorClass) else "intervention",
            event.host,
            event.task,
            _uuid(event.error.get("instance")),
        )
    if _is_refused_by_sudo(event):
        message = (
            f"the login user may not become root: {host_data.message(event.message)}. Install"
            " deploy/sudoers.d/gpuaas-slurm on the host, with that user's name, then request it again"
        )
        return AdapterError("not_root", message, "intervention", event.host, event.task)
    problem = NO_SECRET_MESSAGES[0] if event.is_hidden else host_data.message(event.message)
    message = f"{event.task}: {problem}. Look at the host, then request it again"
    return AdapterError(TASK_FAILED, message, "intervention", event.host, event.task)


def _is_refused_by_sudo(event: PlayEvent) -> bool:
    """Ansible has no field for it: its own message where sudo asks for a password, else sudo's output."""
    return "sudo password" in str(event.message) or event.stderr.startswith(("sudo: ", "Sorry, user "))


def _unreachable(event: PlayEvent) -> AdapterError:
    if "Host key verification failed" in str(event.message):
        # Another machine answers, or the host was reinstalled: a retry cannot change that.
        return AdapterError(host_keys.MISMATCH, host_keys.KEY_CHANGED_MESSAGE, "intervention", event.host, event.task)
    problem = host_data.message(event.message)
    message = f"ssh to the host failed: {problem}. Check that it is up and that its sshd answers"
    return AdapterError("host_unreachable", message, "retryable", event.host, event.task)


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


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
