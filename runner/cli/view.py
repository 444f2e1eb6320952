"""What a person sees: tables, progress while a play runs, and the same as JSON."""

import json
import sys
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from runner.intent import host_keys
from runner.model.names import host_name
from runner.model.plan import Step, shown
from runner.model.platform import Allocation, AppInstance, Member, Operation
from runner.translate import MemberEvent

# In a pipe or a log nothing is folded: a line is a row.
_WIDE = None if sys.stdout.isatty() else 400
# Names and messages come from an API: a bracket in one is a bracket.
out = Console(highlight=False, markup=False, emoji=False, width=_WIDE)
err = Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)

Row = Mapping[str, Any]


def show(rows: Iterable[Row], *, as_json: bool, empty: str) -> None:
    """A list of things, for a person or for a program."""
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


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.strftime("%H:%M:%S")
    return plain(str(value))


def plain(text: str) -> str:
    """What a terminal would obey is shown as a question mark."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


def instance_row(instance: AppInstance) -> Row:
    said = instance.status_detail or {}
    reasons = [str(reason.get("message")) for reason in said.get("reasons") or [] if isinstance(reason, dict)]
    return {
        "instance": instance.id,
        "name": instance.name,
        "status": instance.status,
        "health": instance.health,
        "workers": _counts(said.get("workers")),
        "app": instance.app_version,
        **_versions(said.get("versions")),
        "why": "; ".join([*_under_way(said.get("lifecycle")), *reasons]) or None,
        "correlation": instance.correlation_id,
    }


def _under_way(lifecycle: Any) -> list[str]:
    """An operation on the whole instance, and how far it is."""
    if not isinstance(lifecycle, dict) or lifecycle.get("verdict"):
        return []
    return [f"{lifecycle.get('verb')}: {lifecycle.get('phase') or 'under way'}"]


def _versions(known: Any) -> Row:
    """Packages and daemons apart: what is installed need not be what runs."""
    said = known if isinstance(known, dict) else {}
    running = [f"{name} {said[name]}" for name in ("slurmdbd", "slurmctld") if said.get(name)]
    workers = said.get("slurmd")
    running += [f"slurmd {', '.join(map(str, workers))}"] if isinstance(workers, list) and workers else []
    return {"package": said.get("package"), "running": "; ".join(running) or None}


def _counts(workers: Any) -> str | None:
    return ", ".join(f"{count} {status}" for status, count in workers.items()) if isinstance(workers, dict) else None


def member_row(member: Member) -> Row:
    known = member.adapter_detail
    error = known.get("last_adapter_error") or {}
    return {
        "member": host_name(member),
        "id": member.id,
        "allocation": str(member.allocation_id)[:8],
        "host": known.get("controller_hostname") or known.get("worker_hostname"),
        "status": member.status,
        "phase": known.get("phase"),
        "node": known.get("node_state"),
        "package": known.get("package_version"),
        "slurm": known.get("slurm_version"),
        "pinned": host_keys.shown(member),
        "error": f"{error.get('code')}: {error.get('message')}" if error else None,
    }


def operation_row(operation: Operation, instance: AppInstance) -> Row:
    error = operation.error or {}
    note = (instance.status_detail or {}).get("lifecycle") or {}
    under_way = note.get("operation_id") == str(operation.id) and note.get("verdict") is None
    return {
        "operation": operation.id,
        "what": f"{operation.operation} {operation.component_key or ''}".strip(),
        "status": operation.status,
        "attempt": operation.attempt,
        "claimed_by": operation.claimed_by if operation.status == "running" else None,
        "created": operation.created_at,
        "waiting": note.get("waiting") or note.get("phase") if under_way else None,
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
    """Member, phase and seconds while plays run: a live table on a terminal, a line a change elsewhere."""

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

    def hear(self, name: str, heard: MemberEvent) -> None:
        phase, since, note = self._members.get(name, ("", time.monotonic(), ""))
        if heard.error:
            note = f"{heard.error.code}: {heard.error.message}"
        if heard.phase and heard.phase != phase:
            phase, since = heard.phase, time.monotonic()
        elif not heard.error:
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
