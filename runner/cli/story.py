"""The story of a correlation id in time order, from the records of one instance: what `explain` tells. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from runner.cli.request_state import Records
from runner.model import claims, play_history
from runner.model.events import of_status
from runner.model.host_data import plain, printable
from runner.model.names import host_name
from runner.model.plan import Detail
from runner.model.platform import OPEN, AppInstance, InstanceStatus, Member, Operation, OperationStatus
from runner.model.records import NotedError
from runner.model.times import read_time
from runner.model.work_notes import HandNote, HostRun, PlayRun
from runner.slurm import notes

SHORTEST = 6
REQUESTED = of_status(InstanceStatus.REQUESTED)
TEXT_BYTES, PARAMETERS_BYTES = 600, 300
HOSTS = "hosts"
KILLED = "it has no end on record: it is under way, or it was killed"
# Of entries at the same second. A play stays behind its reason.
ORDER = {"asked": 0, "by hand": 1, "decided": 2, "play": 2, "member": 3, "error": 4, "event": 5, "log": 6, "ended": 7}


@dataclass(frozen=True)
class Entry:
    """One line of the story. `more` has the data behind the text."""

    at: datetime | None
    kind: str
    text: str
    more: Detail | None = None

    @property
    def place(self) -> tuple[bool, int, int, float]:
        """In time order, to the second, since most records have no more; what has no time comes last."""
        at = self.at.timestamp() if self.at else 0
        return self.at is None, int(at), ORDER[self.kind], at

    def shown(self) -> Detail:
        at = self.at.isoformat().replace("+00:00", "Z") if self.at else None
        return {"at": at, "kind": self.kind, "text": self.text, **(self.more or {})}


@dataclass(frozen=True)
class Found:
    """What one instance has about a correlation id."""

    records: Records
    asked: Sequence[Operation]
    members: Sequence[Member]
    events: Sequence[Detail]
    plays: Sequence[PlayRun]  # that no operation asked for
    by_hand: Sequence[HandNote]
    whole: bool  # the id is the instance's own: of its deploy, or of its deletion

    @property
    def instance(self) -> AppInstance:
        return self.records.instance

    @property
    def correlation_ids(self) -> list[str]:
        own = {self.instance.correlation_id} if self.whole else set()
        carried = [one.correlation_id for one in self.asked]
        carried += [one.correlation_id for one in self.by_hand]
        carried += [one.correlation_id for one in self.plays if one.correlation_id]
        return sorted({*carried, *own})


def matches(correlation_id: object, asked: str) -> bool:
    text = str(correlation_id)
    return text == asked or (len(asked) >= SHORTEST and text.startswith(asked))


def find(records: Records, events: Sequence[Detail], correlation: str) -> Found | None:
    """What the records of one instance have about an id, or the start of one; None if they have nothing."""
    instance = records.instance
    asked = [one for one in records.operations if matches(one.correlation_id, correlation)]
    whole = matches(instance.correlation_id, correlation)
    plays = [one for one in instance.notes.plays.plays if matches(one.correlation_id, correlation)]
    by_hand = [one for one in instance.notes.hand_notes.notes if matches(one.correlation_id, correlation)]
    own = [one for one in events if matches(one.get("correlation_id"), correlation)]
    # A platform may give the operations that a deploy seeds the deploy's own id: then this is about the whole instance.
    members = [one for one in records.members if whole or _is_about(one, asked, by_hand, plays, correlation)]
    if not (asked or whole or plays or by_hand or own or members):
        return None
    return Found(records, asked, members, own, plays, by_hand, whole)


def _is_about(
    member: Member, asked: Sequence[Operation], by_hand: Sequence[HandNote], plays: Sequence[PlayRun], correlation: str
) -> bool:
    """Whether the work made the member, names it, drains or removes it, or was the last work done on it."""
    if any(matches(one, correlation) for one in (member.correlation_id, member.notes.correlation_id)):
        return True
    hosts = {name for one in plays for name in one.hosts} | {name for one in by_hand for name in one.hosts}
    return host_name(member) in hosts or any(claims.is_about(operation, member) for operation in asked)


def entries(found: Found) -> list[Entry]:
    """The whole story, in time order."""
    entries = [
        *(entry for one in found.asked for entry in _of_operation(one, found)),
        *(entry for one in found.by_hand for entry in _of_hand(one)),
        *(entry for one in found.plays for entry in _of_play(one)),
        *(_of_event(one) for one in found.events),
        *(entry for one in found.members for entry in _of_member(one, found)),
    ]
    if found.whole and not any(one.get("type") == REQUESTED for one in found.events):
        entries.append(Entry(found.instance.created_at, "asked", f"deploy of {found.instance.app_slug}"))
    return sorted(entries, key=lambda one: one.place)


def _of_operation(one: Operation, found: Found) -> Iterator[Entry]:
    by = one.requested_by or {}
    who = f"{by.get('actor_type') or 'unknown'}/{by.get('id') or 'unknown'}"
    subject = "the instance" if one.of_instance else _subject(one, found)
    named = ", ".join(f"{key}={value}" for key, value in plain(one.parameters).items())
    given = f" with {printable(named, PARAMETERS_BYTES)}" if named else ""
    yield Entry(one.created_at, "asked", f"{one.operation} of {subject} by {who}{given}", {"operation": str(one.id)})
    history = play_history.of_result(one.result)
    for run in history.plays:
        yield from _of_play(run)
    if history.more_plays:
        yield Entry(None, "play", f"and {history.more_plays} more plays, left out to fit the record")
    if one.of_instance and (note := notes.instance(found.instance).operation) and note.belongs_to(one.id):
        waits = f": {note.waiting}" if note.waiting else ""
        yield Entry(note.started_at, "member", f"{note.verb} of the instance began; last phase {note.phase}{waits}")
    if one.status not in OPEN:
        yield Entry(one.updated_at, "ended", end_of(one), {"operation": str(one.id)})


def _subject(one: Operation, found: Found) -> str:
    names = [host_name(member) for member in found.members if claims.is_about(one, member)]
    count = len(one.member_ids) + len(one.allocation_ids)
    listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return listed or f"{count} {one.component_key}"


def end_of(one: Operation) -> str:
    if one.status == OperationStatus.FAILED and one.error:
        return f"failed: {_error(one.error)}"
    return str(one.status)


def _error(error: Detail) -> str:
    return f"{error.get('code')}: {printable(error.get('message'), TEXT_BYTES)}"


def _of_play(run: PlayRun) -> Iterator[Entry]:
    rule = f" (rule: {run.rule})" if run.rule else ""
    yield Entry(run.started_at, "decided", f"{run.why or 'no reason is on record'}{rule}")
    lasted = run.ended_at - run.started_at if run.ended_at else None
    came = f"{run.result}, {int(lasted.total_seconds())} s" if lasted is not None else KILLED
    often = f", {run.runs} times in a row" if run.runs > 1 else ""
    attempt = f", claim {run.attempt}" if run.attempt else ""
    hosts = [f"{name}: {host.outcome}{_seen(host)}" for name, host in run.hosts.items()]
    hosts += [f"and {left} more"] if (left := run.hosts_count - len(run.hosts)) > 0 else []
    text = f"{run.playbook}.yml on {_count(run.hosts_count, 'host')}{attempt}{often}: {came}"
    yield Entry(run.started_at, "play", text, {"play": run.stored(), HOSTS: hosts})


def _seen(host: HostRun) -> str:
    return f", events from {_clock(host.first_at)} to {_clock(host.last_at)}" if host.first_at else ""


def _of_hand(note: HandNote) -> Iterator[Entry]:
    on = ", ".join(note.hosts) + (
        f" and {note.hosts_count - len(note.hosts)} more" if note.hosts_count > len(note.hosts) else ""
    )
    reading = " (read only)" if note.read_only else ""
    text = f"{note.verb}{reading} by {note.who}, because {note.why}; on {on or 'no member'}: {note.command}"
    yield Entry(note.started_at, "by hand", text, {"note": note.stored()})
    if note.ended_at:
        yield Entry(note.ended_at, "ended", end_of_hand(note))


def end_of_hand(note: HandNote) -> str:
    if note.ended_at is None:
        return KILLED
    code = f"exit code {note.exit_code}" if note.exit_code is not None else "it did not run to its end"
    return f"{code}: {note.problem}" if note.problem else code


def _of_event(event: Detail) -> Entry:
    actor, data = event.get("actor"), event.get("data")
    by = f" by {actor.get('actor_type')}/{actor.get('id')}" if isinstance(actor, dict) else ""
    error = {key: data[key] for key in ("code", "message") if key in data} if isinstance(data, dict) else {}
    text = printable(f"{event.get('type')}{by}{f': {error}' if error else ''}", TEXT_BYTES)
    asked = event.get("type") == REQUESTED
    return Entry(read_time(event.get("created_at")), "asked" if asked else "event", text)


def _of_member(member: Member, found: Found) -> Iterator[Entry]:
    """What the member's record has about this work: how it left, and an error of its time."""
    name, stored = host_name(member), notes.of(member)
    leave = stored.leave
    if leave and any(leave.operation_id == one.id for one in found.asked):
        did = f"; at the deadline: {leave.at_deadline}" if leave.at_deadline else ""
        yield Entry(leave.started_at, "member", f"{name}: {leave.verb} began; result {leave.result or 'none yet'}{did}")
        if leave.error:
            yield _of_error(name, leave.error)
    error = stored.last_adapter_error
    began = min((one.created_at for one in found.asked if one.created_at), default=None)
    if error and error.at and (found.whole or (began and error.at >= began)):
        yield _of_error(name, error)


def _of_error(name: str, error: NotedError) -> Entry:
    where = f" (task: {error.task})" if error.task else ""
    text = f"{name}: {error.code}: {printable(error.message, TEXT_BYTES)}{where}"
    return Entry(error.at, "error", text, {"code": error.code})


def ending(found: Found) -> str:
    """How it ended, in one sentence."""
    if found.asked and not found.whole:
        waits = [found.records.operation_row(one)["waiting"] for one in found.asked if one.status in OPEN]
        under_way = [f"{one.operation} is {one.status}" for one in found.asked if one.status in OPEN]
        if under_way:
            return "; ".join([*under_way, *(str(one) for one in waits if one)])
        return "; ".join(f"{one.operation}: {end_of(one)}" for one in found.asked)
    if found.by_hand:
        return "; ".join(end_of_hand(one) for one in found.by_hand)
    if found.whole:
        return f"the instance is {found.instance.status}, {found.instance.health}"
    last = found.plays[-1] if found.plays else None
    return f"{last.playbook}: {last.result or KILLED}" if last else "its records show no end"


def codes(found: Found) -> list[str]:
    """Codes of what went wrong, the one that says most first: that of a member says more than `partly_failed`."""
    failed = [one for one in found.asked if one.status == OperationStatus.FAILED]
    of_asked = [str((one.error or {}).get("code")) for one in failed]
    of_members = (
        [one.notes.error_code for one in found.members if one.notes.error_code] if failed or found.whole else []
    )
    reasons = [one.code for one in notes.instance(found.instance).reasons or []] if found.whole else []
    ran = [host.outcome for run in found.plays[-1:] for host in run.hosts.values() if host.failed]
    codes = [*of_asked, *of_members, *reasons, *ran]
    return sorted(dict.fromkeys(codes), key=lambda code: code in ("partly_failed", "worker_failed"))


def without_error(found: Found) -> str:
    """The next step where nothing is known to have gone wrong."""
    if any(one.status in OPEN for one in found.asked):
        return "follow it: gpuaas-slurm status --watch; what the next tick does: gpuaas-slurm plan"
    if any(one.ended_at is None for one in found.by_hand):
        return "see whether that command still runs; if not, look at its hosts: gpuaas-slurm status"
    if found.whole and found.instance.status in (InstanceStatus.REQUESTED, InstanceStatus.DEPLOYING):
        return "follow it: gpuaas-slurm status --watch"
    return "nothing to do"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _clock(at: datetime | None) -> str:
    return at.strftime("%H:%M:%S") if at else "?"


def merged(*parts: Iterable[Entry]) -> list[Entry]:
    return sorted((one for part in parts for one in part), key=lambda one: one.place)


def runtime_of(member: Member, names: Sequence[str]) -> dict[str, Any]:
    seen = notes.of(member).stored_fields(names)
    return {key: seen[key] for key in names if key in seen}
