"""Output of commands: tables, progress while a play runs, and JSON."""

import json
import sys
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from pydantic import BaseModel
from rich.console import Console
from rich.live import Live
from rich.table import Table

from runner.intent import host_keys
from runner.model.instance_notes import OperationNote
from runner.model.names import host_name
from runner.model.plan import Step, shown
from runner.model.platform import Allocation, AppInstance, Member, Operation
from runner.slurm import notes
from runner.translate import MemberEvent

# In a pipe or a log each row is one line.
_WIDE = None if sys.stdout.isatty() else 400
# Names and messages come from an API, so nothing in them is markup.
out = Console(highlight=False, markup=False, emoji=False, width=_WIDE)
err = Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)

Row = Mapping[str, Any]


def show(rows: Iterable[Row], *, as_json: bool, empty: str) -> None:
    """Records as a table for a person, or as JSON for a program."""
    listed = list(rows)
    if as_json:
        print_json(listed)
    elif not listed:
        out.print(empty)
    else:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in listed[0]:
            table.add_column(name.upper(), overflow="fold")
        for row in listed:
            table.add_row(*(_cell(value) for value in row.values()))
        out.print(table)


def show_record(record: BaseModel, *lines: str, as_json: bool) -> None:
    """One record for a program, or lines about it for a person."""
    if as_json:
        print_json(record.model_dump(mode="json"))
        return
    for line in lines:
        out.print(line)


def show_operation(operation: Operation, *, as_json: bool) -> None:
    line = f"{operation.operation} {operation.id} is {operation.status}; correlation {operation.correlation_id}"
    show_record(operation, line, as_json=as_json)


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.strftime("%H:%M:%S")
    return plain(str(value))


def plain(text: str) -> str:
    """Control characters are replaced, because a terminal would interpret them."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


def instance_row(instance: AppInstance) -> Row:
    notes = instance.notes
    reasons = [str(reason.get("message")) for reason in notes.reasons or []]
    return {
        "instance": instance.id,
        "name": instance.name,
        "status": instance.status,
        "health": instance.health,
        "workers": _counts(notes.workers),
        "app": instance.app_version,
        **_versions(notes.versions or {}),
        "why": "; ".join([*_under_way(notes.operation), *reasons]) or None,
        "correlation": instance.correlation_id,
    }


def _under_way(note: OperationNote | None) -> list[str]:
    """The instance operation that is under way, with its phase."""
    return [f"{note.verb}: {note.phase or 'under way'}"] if note and note.is_under_way else []


def _versions(versions: Mapping[str, Any]) -> Row:
    """Versions of packages and of daemons: the installed version may not be the running one."""
    running = [f"{name} {versions[name]}" for name in ("slurmdbd", "slurmctld") if versions.get(name)]
    workers = versions.get("slurmd")
    running += [f"slurmd {', '.join(workers)}"] if isinstance(workers, list) and workers else []
    return {"package": versions.get("package"), "running": "; ".join(running) or None}


def _counts(workers: Mapping[str, int] | None) -> str | None:
    return None if workers is None else ", ".join(f"{count} {status}" for status, count in workers.items())


def member_row(member: Member) -> Row:
    stored = notes.of(member)
    error = stored.last_adapter_error
    return {
        "member": host_name(member),
        "id": member.id,
        "allocation": str(member.allocation_id)[:8],
        "host": stored.hostname,
        "status": member.status,
        "phase": stored.phase,
        "node": stored.node_state if isinstance(stored, notes.WorkerNotes) else None,
        "package": stored.package_version,
        "slurm": stored.slurm_version,
        "pinned": host_keys.shown(member),
        "error": f"{error.code}: {error.message}" if error else None,
    }


def operation_row(operation: Operation, instance: AppInstance) -> Row:
    error = operation.error or {}
    note = instance.notes.operation
    waiting = note.waiting or note.phase if note and note.is_under_way and note.belongs_to(operation.id) else None
    return {
        "operation": operation.id,
        "what": f"{operation.operation} {operation.component_key or ''}".strip(),
        "status": operation.status,
        "attempt": operation.attempt,
        "claimed_by": operation.claimed_by if operation.status == "running" else None,
        "created": operation.created_at,
        "waiting": waiting,
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


def plan_rows(instance: AppInstance, steps: Iterable[Step]) -> list[Row]:
    return [{"instance": str(instance.id)[:8], **shown(step)} for step in steps]


class Progress:
    """Member, phase and seconds while plays run: a live table on a terminal, else a line for each change."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._members: dict[str, tuple[str, float, str]] = {}
        self._live = Live(console=out, get_renderable=self._table, refresh_per_second=4) if out.is_terminal else None

    def __enter__(self) -> "Progress":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

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
