"""The test suite in parts: run a tier, a kind of part or single parts; what ./dev test calls."""

import os
import resource
import signal
import sys
import time
from typing import Annotated

import typer

from tests.suite.parts import TIERS, UnknownPartError, all_parts, choose, forgotten_files
from tests.suite.pool import Pool
from tests.suite.results import LAST_RUN, Result, Run, Store, standing, table
from tests.suite.tree import tree_hash

HELP = """Run tests. WHAT is a tier (fast, test, full), a kind (lint, unit, contract, molecule, e2e) or words that
parts have in their names; without it, the tier test. `list` shows the parts."""
INCOMPLETE = 3


def main(
    what: Annotated[list[str] | None, typer.Argument(help="A tier, a kind, or words of parts' names.")] = None,
    times: Annotated[bool, typer.Option("--times", help="Print the table of the last run; run nothing.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Run parts of `full` that passed at this tree too.")] = False,
    minutes: Annotated[float | None, typer.Option(help="Begin no new part after so many minutes.")] = None,
    streams: Annotated[int, typer.Option(help="Parts at a time.", envvar="STREAMS")] = 4,
) -> None:
    words = what or ["test"]
    if times:
        _show_last_run()
    elif words == ["list"]:
        _list()
    else:
        sys.exit(_run(words, again=again, minutes=minutes, streams=streams))


def _run(words: list[str], *, again: bool, minutes: float | None, streams: int) -> int:
    began, setup_cpu = float(os.environ.get("DEV_STARTED") or time.time()), _children_cpu()
    setup_seconds = time.time() - began
    if forgotten := forgotten_files():
        _tell(f"error: no part runs {', '.join(forgotten)}: name them in tests/suite/parts.py")
        return 2
    try:
        parts = choose(words)
    except UnknownPartError as error:
        _tell(f"error: {error}")
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    store, tree = Store(), tree_hash()
    # Only `full` goes on where it stopped: the others must show that they pass now.
    known = {p.name: r for p in parts if words == ["full"] and not again and (r := store.passed(p.slug, tree))}
    reused = [Result(**{**vars(one), "status": "reused"}) for one in known.values()]
    todo = [part for part in parts if part.name not in known]
    needed = {f"image {kind}" for part in todo for kind in part.images}
    todo = [part for part in todo if part.kind != "image" or part.name in needed]
    _tell(f"{len(todo)} parts, {streams} at a time" + (f"; {len(reused)} passed before at this tree" * bool(reused)))
    pool = Pool(store, tree, streams, _tell, minutes and minutes * 60)
    try:
        pool.run(todo)
    except KeyboardInterrupt:
        _tell("interrupted")
        return 130
    run = Run(" ".join(words), tree, time.time() - began, setup_seconds, setup_cpu, [*reused, *pool.results])
    run.save()
    return _close(run, [part.name for part in pool.left], store)


def _close(run: Run, left: list[str], store: Store) -> int:
    _tell(f"\n{table(run)}")
    if "full" in run.what.split():
        latest = [(part.name, store.latest(part.slug)) for part in all_parts()]
        _tell(f"\n{standing(latest, run.tree)}")
    bad = [one for one in run.results if not one.ok]
    for one in bad:
        _tell(f"failed: {one.part}; again: ./dev test '{one.part}'")
    for name in left:
        _tell(f"not run: {name}")
    if any(not one.tree for one in run.results):
        _tell("the files changed while tests ran; what ended after that is not kept for this tree")
    counts = [sum(getattr(one, name) for one in run.results) for name in ("passed", "failed", "skipped")]
    if any(counts):
        _tell("{} passed, {} failed, {} skipped".format(*counts))
    minutes = f"{run.seconds / 60:.1f} minutes"
    if bad:
        _tell(f"./dev test {run.what}: {len(bad)} of {len(run.results)} parts failed, {minutes}")
        return 1
    if left:
        _tell(f"./dev test {run.what}: {len(left)} parts are left; run it again, {minutes}")
        return INCOMPLETE
    _tell(f"./dev test {run.what}: all {len(run.results)} parts passed, {minutes}")
    return 0


def _show_last_run() -> None:
    if not LAST_RUN.exists():
        _tell("error: there is no run yet; run: ./dev test")
        sys.exit(2)
    _tell(table(Run.load()))


def _list() -> None:
    for part in all_parts():
        tiers = [tier for tier in TIERS if part.in_tier(tier)]
        _tell(f"{part.name:45}  {', '.join(tiers)}")


def _children_cpu() -> float:
    """What the setup used: this process was the shell that ran it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main.__doc__ = HELP
    typer.run(main)
