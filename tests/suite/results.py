"""Results of parts, kept in .cache by the tree they ran at, and the table at the end of a run."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tests.suite.parts import ROOT

CACHE = ROOT / ".cache"
RUNS = CACHE / "runs"


@dataclass(frozen=True)
class Result:
    """The result of one part. `cpu` is that of its processes and of its hosts."""

    part: str
    tree: str
    status: str  # passed, failed, not run, or reused: passed before at this tree
    wall: float
    cpu: float = 0.0
    hosts: int = 0
    clusters: int = 0
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    skips: dict[str, str] = field(default_factory=dict)  # why, by test
    ended_at: str = ""
    reason: str = ""  # why it failed or did not run, if the output does not show it

    @property
    def ok(self) -> bool:
        return self.status in ("passed", "reused")


class Store:
    """Results by part and tree, one file each, because parts may end at the same time."""

    def __init__(self, directory: Path = CACHE / "parts") -> None:
        self.directory = directory

    def folder(self, slug: str) -> Path:
        path = self.directory / slug
        path.mkdir(parents=True, exist_ok=True)
        return path

    def save(self, slug: str, result: Result) -> None:
        if result.tree:
            _write(self.folder(slug) / f"{result.tree}.json", asdict(result))

    def passed(self, slug: str, tree: str) -> Result | None:
        """The result of this part at this tree, if it passed."""
        found = self._load(self.directory / slug / f"{tree}.json") if tree else None
        return found if found and found.ok else None

    def latest(self, slug: str) -> Result | None:
        """The newest result, at any tree."""
        found = [one for path in (self.directory / slug).glob("*.json") if (one := self._load(path))]
        return max(found, key=lambda one: one.ended_at, default=None)

    @staticmethod
    def _load(path: Path) -> Result | None:
        try:
            return Result(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return None  # not written, or written by another version: the part runs again


@dataclass(frozen=True)
class Run:
    """One `./dev test`: its results, its time, and the part of that time that the setup took."""

    what: str
    tree: str
    seconds: float
    setup_seconds: float
    setup_cpu: float
    results: Sequence[Result]

    ended_at: str = ""

    @property
    def ok(self) -> bool:
        return all(one.ok for one in self.results)

    def save(self, directory: Path = RUNS) -> None:
        """One file for each selection, so that a short run does not overwrite the table of a long one."""
        name = re.sub(r"[^a-z0-9]+", "-", self.what.lower())[:60]
        _write(directory / f"{name}.json", {**asdict(self), "ended_at": now()})

    @classmethod
    def last(cls, what: str = "", directory: Path = RUNS) -> "Run | None":
        """The newest run, or the newest of one selection."""
        found = [cls._load(path) for path in directory.glob("*.json")]
        return max((one for one in found if what in ("", one.what)), key=lambda one: one.ended_at, default=None)

    @classmethod
    def _load(cls, path: Path) -> "Run":
        stored = json.loads(path.read_text())
        return cls(**{**stored, "results": [Result(**one) for one in stored["results"]]})


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(content, indent=1) + "\n")
    new.replace(path)


def table(run: Run) -> str:
    """Slowest part first, the whole run last."""
    rows: list[tuple[str, ...]] = [("part", "result", "wall s", "CPU s", "hosts", "clusters", "tests", "tree")]
    rows += [_row(one) for one in sorted(run.results, key=lambda one: -one.wall)]
    if run.setup_seconds:
        rows.append(("setup", "", f"{run.setup_seconds:.0f}", f"{run.setup_cpu:.0f}", "", "", "", ""))
    ran = [one for one in run.results if one.status != "reused"]
    total = (
        sum(one.cpu for one in ran) + run.setup_cpu,
        *(sum(getattr(one, name) for one in ran) for name in ("hosts", "clusters", "passed")),
    )
    rows.append((f"./dev test {run.what}", "", f"{run.seconds:.0f}", *(f"{one:.0f}" for one in total), run.tree[:8]))
    return _columns(rows)


def _row(one: Result) -> tuple[str, ...]:
    numbers = (one.hosts, one.clusters, one.passed + one.failed)
    return (
        one.part,
        one.status,
        f"{one.wall:.0f}",
        f"{one.cpu:.0f}",
        *(str(number or "") for number in numbers),
        one.tree[:8] or "unknown",
    )


def skips_by_reason(results: Iterable[Result]) -> list[str]:
    """A line for each reason, with the part and the tests that were skipped for it."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in results:
        for test, reason in one.skips.items():
            found.setdefault((one.part, reason), []).append(test)
    return [f"{part}: {reason}: {', '.join(sorted(tests))}" for (part, reason), tests in sorted(found.items())]


def last_results(results: Iterable[tuple[str, Result | None]], tree: str) -> str:
    """The last result of each part with its tree, for work that takes several runs."""
    rows: list[tuple[str, ...]] = [("part", "result", "wall s", "tree", "ended at")]
    for name, one in results:
        if one is None:
            rows.append((name, "not run", "", "", ""))
            continue
        status = one.status if one.tree == tree else f"{one.status}, at another tree"
        rows.append((name, status, f"{one.wall:.0f}", one.tree[:8], one.ended_at))
    return _columns(rows)


def _columns(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = zip(row, widths, strict=True)
        lines.append("  ".join(c.rjust(width) if c.isdecimal() else c.ljust(width) for c, width in cells).rstrip())
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])
