"""Play events to what they mean for members. Pure; reads only data that roles emit on purpose.

That is: what the member_report plugin returns on this side, `adapter_error` in a failed task's result, and the outcome
of each host (failed, unreachable, no host matched). Task names and stdout decide nothing. What comes from a host is
read by type and size (`runner/reported.py`), for the host's own member; only the controller's speaks of the cluster.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, get_args
from uuid import UUID

from runner import hostkeys, reported
from runner.inventory import CONTROLLER
from runner.plan import AdapterError, Detail, ErrorClass
from runner.slurm import Snapshot, read_snapshot
from runner.world import Outcome

Event = Mapping[str, Any]
TASK_FAILED = "task_failed"
# Codes that are this side's own to find out: a host that returns one must not be handled as if it were so.
OUR_CODES = frozenset({hostkeys.MISMATCH, "host_unreachable", "play_timeout", TASK_FAILED})
# How a task looks that could not have a secret: the first where it must not be told, the second in a lookup's words.
WANTING = ("its output is withheld because it handles a secret", "runtime secret not available")


@dataclass(frozen=True)
class Played:
    """A member of a run, as our own records have it. Reports are checked against this."""

    id: UUID
    component: str
    node_name: str | None = None
    taken: Mapping[str, UUID] = field(default_factory=dict)  # node names on record, and whose they are

    def may_be_called(self, name: object) -> bool:
        """A worker that has a name keeps it, and none gets the name of another member."""
        if self.node_name:
            return name == self.node_name
        return not isinstance(name, str) or self.taken.get(name, self.id) == self.id


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
    dropped: tuple[str, ...] = ()  # keys of the report that were not believed


def hear(event: Event, members: Mapping[str, Played]) -> Heard | Literal["nothing matched"] | None:
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


def _is_report(data: Mapping[str, Any], member: Played, result: Mapping[str, Any]) -> bool:
    """Whether the result is a report: our own plugin's, or a controller's in place of what it could not do.

    Any module on any host may return one that looks the same.
    """
    action = data.get("task_action")
    reports = action == "member_report" or (action == "slurm_nodes" and member.component == CONTROLLER)
    return reports and isinstance(result.get("member_report"), dict)


def _report(event: Event, member: Played, result: Mapping[str, Any]) -> Heard:
    at = _time(event.get("created"))
    if not _is_report(event["event_data"], member, result):
        return Heard(member.id, at=at)
    given = result["member_report"]
    detail, dropped = reported.read_detail(member.component, given.get("detail"))
    name = detail.get("worker_hostname")
    if name is not None and not member.may_be_called(name):
        del detail["worker_hostname"]
        dropped.append("worker_hostname")
    snapshot = given.get("snapshot")
    if snapshot is not None and member.component != CONTROLLER:
        snapshot = None
        dropped.append("snapshot")
    return Heard(member.id, _text(given.get("phase")), detail, snapshot, at=at, dropped=tuple(dropped))


def tell(story: Story, heard: Heard | Literal["nothing matched"] | None) -> Story:
    """The story with one more event in it. The first error of a member stands."""
    if heard is None:
        return story
    if heard == "nothing matched":
        return replace(story, nothing_matched=True)
    assert isinstance(heard, Heard)
    before = story.outcomes.get(heard.member_id, Outcome())
    outcome = Outcome(heard.phase or before.phase, {**before.detail, **heard.detail}, before.error or heard.error)
    snapshot = _snapshot(heard) or story.snapshot
    return replace(story, outcomes={**story.outcomes, heard.member_id: outcome}, snapshot=snapshot)


def _snapshot(heard: Heard) -> Snapshot | None:
    """A snapshot that cannot be read is none: this runs inside Ansible's run, which no answer of a host may end."""
    if heard.snapshot is None:
        return None
    try:
        snapshot = read_snapshot(reported.plain(heard.snapshot))
        return snapshot.timed(heard.at) if snapshot and heard.at else snapshot
    except (TypeError, ValueError, OverflowError):
        return None


def translate(events: Iterable[Event], members: Mapping[str, Played]) -> Story:
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
    if isinstance(given, dict) and _is_code(given.get("code")):
        klass: Any = given.get("class")
        return AdapterError(
            given["code"],
            reported.message(given.get("message") or result.get("msg")),
            klass if klass in get_args(ErrorClass) else "intervention",
            host,
            task,
            _uuid(given.get("instance")),
        )
    if _is_refused_by_sudo(result):
        message = (
            f"the login user may not become root: {reported.message(result.get('msg'))}. Install"
            " deploy/sudoers.d/gpuaas-slurm on the host, with that user's name, then ask again"
        )
        return AdapterError("not_root", message, "intervention", host, task)
    message = WANTING[0] if "censored" in result else reported.message(result.get("msg"))
    return AdapterError(TASK_FAILED, f"{task}: {message}. Look at the host, then ask again", "intervention", host, task)


def _is_code(value: object) -> bool:
    return isinstance(value, str) and bool(reported.CODE.fullmatch(value)) and value not in OUR_CODES


def _is_refused_by_sudo(result: Mapping[str, Any]) -> bool:
    """Ansible has no field for it: its own words where sudo asks for a password, else sudo's."""
    said = str(result.get("module_stderr") or result.get("stderr") or "").lstrip()
    return "sudo password" in str(result.get("msg")) or said.startswith(("sudo: ", "Sorry, user "))


def _unreachable(data: Mapping[str, Any], result: Mapping[str, Any]) -> AdapterError:
    message = (
        f"ssh to the host failed: {reported.message(result.get('msg'))}. Check that it is up and that its sshd answers"
    )
    if "Host key verification failed" in str(result.get("msg")):
        # Another machine answers, or the host was rebuilt: trying again cannot make that right.
        return AdapterError(
            hostkeys.MISMATCH, hostkeys.CHANGED_WORDS, "intervention", _text(data.get("host")), _text(data.get("task"))
        )
    return AdapterError("host_unreachable", message, "retryable", _text(data.get("host")), _text(data.get("task")))


def _text(value: object) -> str | None:
    return reported.printable(value, reported.TEXT_BYTES) if value is not None else None


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
