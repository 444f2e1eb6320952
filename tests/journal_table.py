"""Compares journals with the table in docs/usage/journal.md, which explains harmless lines."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from tests.platform_process import ROOT

TABLE = ROOT / "docs" / "usage" / "journal.md"
UNITS = ("munge", "slurmctld", "slurmdbd", "slurmd")
# syslog's err, and everything worse.
ERR = 3
SUSPICIOUS = re.compile(r"error|fatal|pmix|segfault|denied|fail", re.IGNORECASE)
# munged has its own log, with a level before each message.
MUNGED = re.compile(r"\S+ \S+ \S+ (Emergency|Alert|Critical|Error): +(?P<message>.*)")


@dataclass(frozen=True)
class Explained:
    when: str
    series: tuple[str, ...]
    units: tuple[str, ...]
    pattern: re.Pattern[str]
    why: str
    remedy: str


@dataclass(frozen=True)
class Line:
    """A message of a daemon, without the daemon's name in front."""

    unit: str
    priority: int
    message: str

    @property
    def is_suspicious(self) -> bool:
        return self.priority <= ERR or bool(SUSPICIOUS.search(self.message))


def read_table(text: str) -> list[Explained]:
    rows = [re.split(r"(?<!\\)\|", line.strip())[1:-1] for line in text.splitlines() if line.startswith("|")]
    found = []
    for cells in rows[2:]:
        when, series, units, pattern, why, remedy = (cell.strip().replace(r"\|", "|") for cell in cells)
        quoted = re.fullmatch(r"`(.+)`", pattern)
        assert quoted, f"not a pattern: {pattern}"
        compiled = re.compile(quoted[1])
        found.append(Explained(when, _split(series), _split(units), compiled, why, remedy))
    return found


def read_journal(text: str) -> list[Line]:
    """Lines of `journalctl --output=json`. A line that cannot be read raises; it is not skipped."""
    lines = []
    for raw in text.splitlines():
        entry = json.loads(raw)
        raw_message = entry.get("MESSAGE") or ""
        message = bytes(raw_message).decode(errors="replace") if isinstance(raw_message, list) else str(raw_message)
        # Messages of systemd about a unit have the unit in another field.
        unit = str(entry.get("UNIT") or entry.get("_SYSTEMD_UNIT") or "").removesuffix(".service")
        plain = re.sub(rf"^{re.escape(unit)}(\.service|-[\w.-]+)?: ", "", message.strip())
        lines.append(Line(unit, int(entry.get("PRIORITY", 6)), plain))
    return lines


def read_munged(text: str) -> list[Line]:
    return [Line("munge", ERR, found["message"]) for line in text.splitlines() if (found := MUNGED.match(line))]


def unexplained(lines: Iterable[Line], table: Iterable[Explained], series: str, *whens: str) -> list[Line]:
    rows = [row for row in table if series in row.series and row.when in whens]
    return [
        line
        for line in lines
        if line.is_suspicious
        and not any(line.unit in row.units and row.pattern.fullmatch(line.message) for row in rows)
    ]


def _split(cell: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in cell.split(","))
