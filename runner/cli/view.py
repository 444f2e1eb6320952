"""Output of commands: tables, progress while a play runs, and JSON."""

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Self

from pydantic import BaseModel
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from runner.cli.tables import MOST_COLUMNS, UNLIMITED, Section
from runner.cli.tables import Row as Row
from runner.cli.tables import plain as plain
from runner.intent import host_keys
from runner.model.instance_notes import OperationNote
from runner.model.names import host_name
from runner.model.plan import Step, operations_of, shown
from runner.model.platform import Allocation, AppInstance, Member, Operation
from runner.slurm import notes, waiting
from runner.slurm.app import SLURM
from runner.translate import MemberEvent

# Names and messages come from an API, so nothing in them is markup. Only tables are folded.
out = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
err = Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)


def show(sections: Iterable[Section], *, wide: bool = False) -> None:
    """Tables for a person: in a pipe or a log as on a terminal that is wide enough. A wide one is never folded."""
    width = min(MOST_COLUMNS, out.width) if out.is_terminal else MOST_COLUMNS
    for section in sections:
        out.print(section.shown(wide=wide, width=UNLIMITED if wide else width))


def redrawn(sections: Iterable[Section], console: Console, *, wide: bool = False) -> Group:
    """The same for a live display, which cannot show a line that is wider than its terminal."""
    width = console.width if wide else min(MOST_COLUMNS, console.width)
    return Group(*(section.shown(wide=wide, width=width) for section in sections))


def show_record(record: BaseModel, *lines: str, as_json: bool) -> None:
    """One record for a program, or lines about it for a person."""
    if as_json:
        print_json(record.model_dump(mode="json"))
        return
    for line in lines:
        out.print(line)


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def instance_row(instance: AppInstance) -> Row:
    stored = notes.instance(instance)
    return {
        "instance": instance.id,
        "name": instance.name,
        "status": instance.status,
        "health": instance.health,
        "workers": _counts(stored.workers),
        "cluster": SLURM.metrics.cluster(instance),
        "app": instance.app_version,
        **_versions(stored.versions or notes.Versions()),
        "why": "; ".join([*_under_way(stored.operation), *(one.message for one in stored.reasons or [])]) or None,
        "correlation": instance.correlation_id,
    }


def _under_way(note: OperationNote | None) -> list[str]:
    """The instance operation that is under way, with its phase."""
    return [f"{note.verb}: {note.phase or 'under way'}"] if note and note.is_under_way else []


def _versions(versions: notes.Versions) -> Row:
    """Versions of packages and of daemons: the installed version may not be the running one."""
    daemons = {"slurmdbd": versions.slurmdbd, "slurmctld": versions.slurmctld, "slurmd": ", ".join(versions.slurmd)}
    running = [f"{name} {version}" for name, version in daemons.items() if version]
    return {"package": versions.package, "running": "; ".join(running) or None}


def _counts(workers: Mapping[str, int] | None) -> str | None:
    return None if workers is None else ", ".join(f"{count} {status}" for status, count in workers.items())


def member_row(member: Member, operations: Sequence[Operation], now: datetime) -> Row:
    """`operations` are the open ones: they have the deadline of a drain."""
    stored = notes.of(member)
    error = stored.last_adapter_error
    return {
        "member": host_name(member),
        "id": member.id,
        "allocation": member.allocation_id,
        "host": stored.hostname,
        "status": member.status,
        "phase": stored.phase,
        "node": stored.node_state if isinstance(stored, notes.WorkerNotes) else None,
        "package": stored.package_version,
        "slurm": stored.slurm_version,
        "pinned": host_keys.shown(member),
        "waiting": waiting.of_member(member, operations, now),
        "error": f"{error.code}: {error.message}" if error else None,
    }


def operation_row(operation: Operation, waits: str | None) -> Row:
    error = operation.error or {}
    return {
        "operation": operation.id,
        "what": f"{operation.operation} {operation.component_key or ''}".strip(),
        "status": operation.status,
        "attempt": operation.attempt,
        "claimed_by": operation.claimed_by if operation.status == "running" else None,
        "created": operation.created_at,
        "waiting": waits,
        "error": f"{error.get('code')}: {error.get('message')}" if error else None,
        "correlation": operation.correlation_id,
    }


def allocation_row(allocation: Allocation, used: Mapping[Any, str]) -> Row:
    connection = allocation.connection or {}
    return {
        "allocation": allocation.id,
        "name": allocation.name or connection.get("hostname"),
        "status": allocation.status,
        "host": connection.get("host"),
        "sku": allocation.sku,
        "gpus": allocation.gpus,
        "serves": used.get(allocation.id),
    }


def plan_rows(instance: AppInstance, steps: Iterable[Step], *, as_json: bool) -> list[Row]:
    """JSON has the start of the instance's id; a wide table has whole ids."""
    if as_json:
        return [{"instance": str(instance.id)[:8], **shown(step)} for step in steps]
    return [
        {"instance": instance.id, **shown(step), "operation_ids": _ids(operations_of(step)) or None} for step in steps
    ]


def _ids(operations: Iterable[Operation]) -> str:
    return ", ".join(str(one.id) for one in operations)


class LiveTable:
    """A table that is redrawn in place until the end of its `with` block; None where there is no terminal."""

    def __init__(self, live: Live | None) -> None:
        self._live = live

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()


class Progress(LiveTable):
    """Member, phase and seconds while plays run: a live table on a terminal, else a line for each change."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._members: dict[str, tuple[str, float, str]] = {}
        terminal = out.is_terminal
        super().__init__(Live(console=out, get_renderable=self._table, refresh_per_second=4) if terminal else None)

    def show(self, name: str, event: MemberEvent) -> None:
        phase, since, note = self._members.get(name, ("", time.monotonic(), ""))
        if event.error:
            note = f"{event.error.code}: {event.error.message}"
        if event.phase and event.phase != phase:
            phase, since = event.phase, time.monotonic()
        elif not event.error:
            return
        self._members[name] = (phase, since, note)
        if not self._live:
            out.print(f"{time.monotonic() - self._start:6.1f} s  {name:<24} {phase:<12} {plain(note)}".rstrip())

    def _table(self) -> Table:
        table = Table(box=None, header_style="bold")
        for column in ("MEMBER", "PHASE", "SECONDS", ""):
            table.add_column(column)
        for name, (phase, since, note) in sorted(self._members.items()):
            table.add_row(name, plain(phase), f"{time.monotonic() - since:.1f}", plain(note))
        table.caption = f"{time.monotonic() - self._start:.0f} s"
        return table
