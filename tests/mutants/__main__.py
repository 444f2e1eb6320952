"""`./dev mutants [TARGET ...]`: change the code in one place at a time, and see that a test fails each time."""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.mutants.changes import Change, change_file
from tests.mutants.plugin import KILLED, UNREACHED
from tests.mutants.targets import TARGETS, Target
from tests.repository import ROOT, present_files

EXPLAINED = ROOT / "tests" / "mutants.toml"
Key = tuple[str, str, str, str]


@dataclass
class Result:
    """One file's changes, and what became of them."""

    verdicts: dict[str, tuple[Change, str]] = field(default_factory=dict)

    def survivors(self) -> list[tuple[Change, str]]:
        return [(change, verdict) for change, verdict in self.verdicts.values() if verdict != KILLED]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev mutants", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"any of {', '.join(TARGETS)}; else all of them")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="changes tested at a time")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.targets) - set(TARGETS)):
        parser.error(f"no target is called {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    # So that the copy and the tests in it go away as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results: dict[str, Result] = {}
    for name in options.targets or TARGETS:
        say(f"== {name}: {', '.join(TARGETS[name].files)}")
        results |= run_target(TARGETS[name], options.workers)
    return report(results, explanations(EXPLAINED))


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def run_target(target: Target, workers: int) -> dict[str, Result]:
    """In a copy of the tree, which goes away afterwards."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        copy = Path(directory) / "tree"
        copy_tree(ROOT, copy)
        changes = [change for file in target.files for change in change_file(copy, file)]
        verdicts = run_tests(copy, target, changes, workers)
    results = {file: Result() for file in target.files}
    for change, verdict in zip(changes, verdicts, strict=True):
        results[change.file].verdicts[change.name] = (change, verdict)
    return results


def copy_tree(source: Path, target: Path) -> None:
    """What git tracks or would track, with symbolic links as they are."""
    for name in present_files(root=source):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / name, target / name, follow_symlinks=False)


def run_tests(copy: Path, target: Target, changes: list[Change], workers: int) -> list[str]:
    given, results = copy / "changes.json", copy / "results.json"
    described = [{**asdict(one), "reached_as": one.reached_as[1]} for one in changes]
    given.write_text(json.dumps(described))
    variables = {
        "PYTHONPATH": str(copy),
        "MUTANTS_CHANGES": str(given),
        "MUTANTS_RESULTS": str(results),
        "MUTANTS_WORKERS": str(workers),
    }
    tests = [f"tests/unit/test_{name}.py" for name in target.tests]
    options = ["-q", "-p", "no:cacheprovider", "-p", "tests.mutants.plugin"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests], cwd=copy, env=os.environ | variables, check=False
    )
    if not results.exists():
        sys.exit(f"the tests could not be run on the changed files (exit code {ended.returncode})")
    verdicts: list[str] = json.loads(results.read_text())
    return verdicts


def explanations(path: Path) -> dict[Key, str]:
    entries = tomllib.loads(path.read_text()).get("mutant", []) if path.exists() else []
    return {(one["file"], one["function"], one["before"], one["after"]): one["why"] for one in entries}


def report(results: dict[str, Result], explained: dict[Key, str]) -> int:
    """A table, what is wrong below it, and the exit code."""
    wrong: list[str] = []
    rows = [("file", "mutants", "killed", "survived", "explained")]
    for file, result in results.items():
        left = {change.key: verdict for change, verdict in result.survivors()}
        equivalent = [key for key in left if key in explained]
        count = len(result.verdicts)
        killed = count - len(result.survivors())
        rows.append((file, str(count), str(killed), str(count - killed), str(len(equivalent))))
        for change, verdict in result.survivors():
            if change.key not in explained:
                note = f" ({verdict})" if verdict == UNREACHED else ""
                wrong.append(f"survives{note}: {file}::{change.function}\n  - {change.before}\n  + {change.after}")
        for key in explained:
            if key[0] == file and key not in left:
                wrong.append(f"explained, but killed or gone: {file}::{key[1]}\n  - {key[2]}\n  + {key[3]}")
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for line in wrong:
        say(line)
    if wrong:
        say(f"{len(wrong)} to do: write a test that fails with the change, or explain it in tests/mutants.toml")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
