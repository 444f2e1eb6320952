"""Records as tables: at most 100 columns with short ids, or wide with every column and whole ids."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from runner.model.plan import stamp

MOST_COLUMNS = 100
ID_CHARS = 8
# Wider than any row: a row of a wide table is one line.
UNLIMITED = 1_000_000
_CORRELATION = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Columns:
    """The columns of a row that fit into 100. Those of `last` share the last column, where long text wraps."""

    short: tuple[str, ...]
    last: tuple[str, ...]

    def shortened(self, row: Row) -> dict[str, str | None]:
        parts = [str(row[name]) for name in self.last if row[name] is not None]
        shown = {name: _short(name, row[name]) for name in self.short}
        return shown | {self.last[0] if len(self.last) == 1 else "detail": "; ".join(parts) or None}


INSTANCES = Columns(("instance", "name", "status", "health", "workers"), ("why",))
MEMBERS = Columns(("member", "host", "status", "phase", "node"), ("waiting", "error"))
OPERATIONS = Columns(("operation", "what", "status", "created", "correlation"), ("waiting", "error"))
ALLOCATIONS = Columns(("allocation", "name", "status", "host", "sku", "gpus"), ("serves",))
PLAN = Columns(("instance", "step", "subject", "operation"), ("why",))


@dataclass(frozen=True)
class Section:
    """Rows of one kind, and the sentence that is shown if there are none."""

    columns: Columns
    rows: Sequence[Row]
    empty: str

    def shown(self, *, wide: bool, width: int) -> "Trimmed | Text":
        if not self.rows:
            return Text(self.empty)
        if wide:
            return Trimmed(_table([{key: _whole(value) for key, value in row.items()} for row in self.rows]), width)
        rows = [self.columns.shortened(row) for row in self.rows]
        last = list(rows[0])[-1]
        if all(row[last] is None for row in rows):
            rows = [{key: value for key, value in row.items() if key != last} for row in rows]
        return Trimmed(_table(rows), width)


@dataclass(frozen=True)
class Trimmed:
    """A table of at most this width, without spaces at the end of its lines."""

    table: Table
    width: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in console.render_lines(self.table, options.update(width=self.width), pad=False):
            yield from _without_trailing_spaces(line)
            yield Segment.line()


def _table(rows: Sequence[Mapping[str, str | None]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in rows[0]:
        table.add_column(name.upper(), overflow="fold")
    for row in rows:
        table.add_row(*("-" if value is None else plain(value) for value in row.values()))
    return table


def _without_trailing_spaces(line: Iterable[Segment]) -> list[Segment]:
    kept = list(line)
    while kept and not kept[-1].text.rstrip(" "):
        kept.pop()
    if kept:
        kept[-1] = Segment(kept[-1].text.rstrip(" "), kept[-1].style)
    return kept


def _short(name: str, value: Any) -> str | None:
    if isinstance(value, UUID) or (name == "correlation" and _CORRELATION.fullmatch(str(value))):
        return str(value)[:ID_CHARS]
    if isinstance(value, datetime):
        return value.strftime("%H:%M:%S")
    return None if value is None else str(value)


def _whole(value: Any) -> str | None:
    return stamp(value) if isinstance(value, datetime) else None if value is None else str(value)


def plain(text: str) -> str:
    """Control characters are replaced, because a terminal would interpret them."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)
