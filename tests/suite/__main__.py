"""./dev test: runs the parts of a tier, of a kind, or single parts of the test suite."""

import os
import resource
import signal
import sys
import time
from dataclasses import replace
from typing import Annotated

import typer

from tests.suite.parts import TIERS, UnknownPartError, all_parts, choose, forgotten_files
from tests.suite.pool import Pool
from tests.suite.results import Result, Run, Store, last_results, skips_by_reason, table
from tests.suite.tree import tree_hash

HELP = """Run tests. WHAT is a tier (fast, test, full), a kind (lint, unit, python3.13, contract, molecule,
e2e, kill-points) or words of a part's name, in quotes; the default is the tier test. `list` prints the names of all
parts.

Exit codes: 0 all passed, 1 a part failed, 2 wrong use, 3 parts are left because of --minutes, 130 interrupted."""
FAILED, WRONG_USE, PARTS_LEFT, INTERRUPTED = 1, 2, 3, 130


def main(
    what: Annotated[list[str] | None, typer.Argument(help="A tier, a kind, or words of a part's name.")] = None,
    times: Annotated[bool, typer.Option("--times", help="Print the table of the last run (of WHAT).")] = False,
    again: Annotated[bool, typer.Option("--again", help="With full: also run parts that passed at this tree.")] = False,
    minutes: Annotated[float | None, typer.Option(min=1, help="Start no new part after this time.")] = None,
    streams: Annotated[int, typer.Option(min=1, help="How many parts run at a time.", envvar="STREAMS")] = 3,
) -> None:
    if times:
        sys.exit(_show_last_run(" ".join(what or [])))
    elif what and what[0] == "list":
        _list()
    else:
        sys.exit(_run(what or ["test"], again=again, minutes=minutes, streams=streams))


def _run(names: list[str], *, again: bool, minutes: float | None, streams: int) -> int:
    began, setup_cpu = float(os.environ.get("DEV_STARTED") or time.time()), _children_cpu()
    setup_seconds = time.time() - began
    try:
        parts = choose(names)
    except UnknownPartError as error:
        _print(f"error: {error}")
        return WRONG_USE
    if forgotten := forgotten_files():
        _print(f"error: {', '.join(forgotten)} belongs to no part: add it to END_TO_END in tests/suite/parts.py")
        return WRONG_USE
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    store, tree = Store(), tree_hash()
    # Only `full` continues where it stopped: the other tiers must show that they pass now.
    passed = {} if again or names != ["full"] else {p.name: r for p in parts if (r := store.passed(p.slug, tree))}
    todo = [part for part in parts if part.kind != "image" and part.name not in passed]
    needed = {f"image {kind}" for part in todo for kind in part.images}
    todo = [*(part for part in parts if part.name in needed), *todo]
    reused = [replace(passed[part.name], status="reused") for part in parts if part not in todo and part.name in passed]
    _print(f"{len(todo)} parts, {streams} at a time" + (f"; {len(reused)} passed before at this tree" * bool(reused)))
    pool = Pool(store, tree, streams, _print, minutes and minutes * 60)
    pool.run(todo)
    run = Run(" ".join(names), tree, time.time() - began, setup_seconds, setup_cpu, [*reused, *pool.results])
    run.save()
    _close(run, store)
    if pool.interrupted:
        _print("interrupted; results of parts that ended are kept")
        return INTERRUPTED
    if any(one.status == "failed" for one in run.results):
        return FAILED
    return 0 if run.ok else PARTS_LEFT


def _close(run: Run, store: Store) -> None:
    _print(f"\n{table(run)}")
    if run.what == "full":
        latest = [(part.name, store.latest(part.slug)) for part in all_parts()]
        _print(f"\nThe last result of each part, at any tree:\n{last_results(latest, run.tree)}")
    for one in run.results:
        if one.status == "failed":
            _print(f"failed: {one.part}{_because(one)}; output: .cache/parts/; again: ./dev test '{one.part}'")
        elif one.status == "not run":
            _print(f"not run: {one.part}{_because(one)}")
    if not run.tree:
        _print("there is no git here, so no result is kept for a later run of full")
    elif any(not one.tree for one in run.results):
        _print("files changed during the run; results of parts that ended later are not kept for a later run of full")
    counts = [sum(getattr(one, name) for one in run.results) for name in ("passed", "failed", "skipped")]
    for line in skips_by_reason(run.results):
        _print(f"skipped: {line}")
    if any(counts):
        _print("{} passed, {} failed, {} skipped".format(*counts))
    good = sum(one.ok for one in run.results)
    _print(f"./dev test {run.what}: {good} of {len(run.results)} parts passed, {run.seconds / 60:.1f} minutes")


def _because(one: Result) -> str:
    return f" ({one.reason})" if one.reason else ""


def _show_last_run(what: str) -> int:
    run = Run.last(what)
    if run is None:
        _print(f"error: there is no run of {what or 'any part'} yet; start one with: ./dev test {what}".rstrip())
        return WRONG_USE
    _print(f"ended at {run.ended_at}, {'all passed' if run.ok else 'not all passed'}\n\n{table(run)}")
    return 0


def _list() -> None:
    for part in all_parts():
        tiers = [tier for tier in TIERS if part.in_tier(tier)]
        _print(f"{part.name:45}  {', '.join(tiers)}")


def _children_cpu() -> float:
    """CPU time of the setup: ./dev becomes this process by exec, so the setup's processes are its children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main.__doc__ = HELP
    app = typer.Typer(add_completion=False)
    app.command()(main)
    app(prog_name="./dev test")
