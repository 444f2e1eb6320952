"""gpuaas-slurm smoke: one cluster from the deploy to the decommission on a platform, with evidence of each step."""

import secrets
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from runner import log
from runner.act import bundle
from runner.cli import view
from runner.cli.commands import FAILED, INTERRUPTED, OK, load
from runner.cli.options import Allocations, Json, split_list
from runner.cli.smoke.run import Run
from runner.cli.smoke.ticks import Ticks
from runner.cli.smoke.walk import DEPLOY, Walk
from runner.cli.tables import Columns, Section
from runner.loop.process_lock import ProcessLock
from runner.model.errors import PlatformError, RequestError
from runner.model.gaps import Gaps
from runner.model.plan import stamp
from runner.model.platform import Allocation
from runner.model.scope import ProjectScope
from runner.observe.find import find_allocation
from runner.platform.client import Client
from runner.platform.evidence import log_gap
from runner.settings import Settings
from runner.slurm.smoke import CHAPTERS, steps
from runner.smoke import audit
from runner.smoke.plan import RUN_ID, Planned, planned
from runner.smoke.report import Outcome, Report, Result, as_junit, as_markdown, plan_rows, rows
from runner.smoke.report import as_json as report_json

PLAN = Columns(("chapter", "step"), ("what", "left_out"))
RESULTS = Columns(("step", "outcome", "seconds", "correlation"), ("detail",))
GAPS = Columns(("call", "basis", "kind"), ("expected", "came"))
NAMES = ", ".join(one.name if one.default else f"{one.name} (only if chosen)" for one in CHAPTERS if not one.always)


def smoke(
    allocations: Allocations = "",
    chapter: Annotated[
        list[str] | None,
        typer.Option(help=f"Only this chapter, beside those that are always done; repeatable: {NAMES}."),
    ] = None,
    same_node: Annotated[
        bool, typer.Option("--same-node", help="The controller's host is a worker too, as with one allocation.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the steps; request nothing.")] = False,
    run_id: Annotated[
        str | None,
        typer.Option(help="The run to continue after a kill, or the id of a new one."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the cluster running at the end.")] = False,
    clean_up: Annotated[bool, typer.Option("--clean-up", help="Only take down what --run-id has left.")] = False,
    only_runner: Annotated[
        bool,
        typer.Option("--only-runner", help="Without ETags too, do the work here: no other runner is at work."),
    ] = False,
    leave_to_runner: Annotated[
        bool, typer.Option("--leave-to-runner", help="Do no work on hosts here: test the runner that is deployed.")
    ] = False,
    step_timeout: Annotated[float, typer.Option(min=1, help="Seconds until a step counts as failed.")] = 1800,
    as_json: Json = False,
    junit: Annotated[Path | None, typer.Option(help="Also write the report to this file, as JUnit XML.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Also write the report to this file, as Markdown.")] = None,
    audit_export: Annotated[
        Path | None,
        typer.Option("--audit", help="An audit export (JSON lines), read at the end: has it every request of the run?"),
    ] = None,
) -> None:
    """Try the platform and this runner on free allocations: a cluster from the deploy to its decommission.

    It makes an instance of its own, called smoke-RUN, does the work of a runner for it, and takes it down at the end,
    after a failure and after Ctrl-C too. Nothing else in the project is changed.

    Exit code 0: every step passed or was left out; 1: a step failed; 2: could not run; 130: interrupted.
    """
    loaded = _quiet(load())
    _check(loaded, chapter or [], run_id, clean_up, [junit, markdown])
    run = run_id or secrets.token_hex(4)
    gaps = Gaps(log_gap)
    with (
        Client(loaded, person=True, gaps=gaps) as operator,
        Client(loaded, gaps=gaps) as runner,
        ProcessLock(loaded) as lock,
    ):
        chosen = [] if clean_up else _chosen(operator, allocations)
        plan = planned(steps(max(len(chosen), 1), same_node=same_node), chapter or [], len(chosen), keep=keep)
        if clean_up:
            plan = tuple(Planned(one.step) for one in plan if one.step.last)
        if dry_run:
            _show_plan(plan, as_json)
            raise typer.Exit(OK)
        shared = Run(run, operator, runner, loaded, [one.id for one in chosen], gaps)
        ticks = Ticks(runner, loaded, lock, _say, only_runner=only_runner, none=leave_to_runner)
        walk = Walk(shared, plan, ticks, view.err, step_timeout=step_timeout, app_version=bundle.version())
        resumed = walk.resume()
        if clean_up and not resumed:
            raise RequestError(f"no instance of this project was made by run {run}")
        began = stamp(operator.now())
        _say(f"smoke run {run} {'continues' if resumed else 'begins'}; if it is killed: --run-id {run} continues it")
        ticks.listen()
        try:
            results = walk.go()
        except BaseException:
            _say(f"the run ended early. {walk.left_behind or 'It has left nothing behind.'}")
            raise
        results.append(_ticked(ticks))
        if not clean_up:
            results.append(_audited(walk, audit_export))
        report = Report(
            run,
            str(loaded.base_url),
            str(shared.found.id) if shared.found else None,
            bundle.version(),
            began,
            stamp(operator.now()),
            results,
            [asdict(one) for one in gaps],
            walk.left_behind,
            walk.interrupted,
        )
    _show(report, as_json=as_json, junit=junit, markdown=markdown)
    raise typer.Exit(INTERRUPTED if report.interrupted else OK if report.passed else FAILED)


def _quiet(loaded: Settings) -> Settings:
    """A person watches the steps: only warnings of the log are shown, unless a level is set."""
    if "log_level" not in loaded.model_fields_set:
        loaded = loaded.model_copy(update={"log_level": "warning"})
        log.configure(loaded)
    return loaded


def _check(loaded: Settings, chapters: list[str], run_id: str | None, clean_up: bool, files: list[Path | None]) -> None:
    if not isinstance(loaded.scope, ProjectScope):
        raise RequestError("smoke works in a project: set GPUAAS_PROJECT_ID, and neither a tenant nor a shared runtime")
    if unknown := sorted(set(chapters) - {one.name for one in CHAPTERS}):
        raise RequestError(f"no chapter is called {', '.join(unknown)}. Choose from: {NAMES}")
    if run_id is not None and not RUN_ID.fullmatch(run_id):
        raise RequestError(f"{run_id!r} is not a run id: 4 to 31 small letters, digits and hyphens")
    if clean_up and run_id is None:
        raise RequestError("--clean-up needs --run-id: the run whose instance is taken down")
    for path in files:
        if path and not path.absolute().parent.is_dir():
            raise RequestError(f"{path}: there is no such directory for the report")


def _chosen(operator: Client, text: str) -> list[Allocation]:
    named = split_list(text)
    if not named:
        raise RequestError("name at least one free allocation: --allocations A,B,... (gpuaas-slurm get allocations)")
    listed = operator.allocations()
    found = [find_allocation(listed, one) for one in named]
    if len({one.id for one in found}) < len(found):
        raise RequestError("--allocations names one allocation twice")
    return found


def _say(text: str) -> None:
    view.err.print(view.plain(text))


def _show_plan(plan: tuple[Planned, ...], as_json: bool) -> None:
    made = plan_rows(plan)
    if as_json:
        view.print_json(made)
    else:
        view.show([Section(PLAN, made, "no steps")])


def _ticked(ticks: Ticks) -> Result:
    """Whether the runner itself had problems: its next tick may have brought the step to its end all the same."""
    step = ("ticks", "runner", "the ticks of this run had no problem")
    if ticks.problems:
        return Result(*step, Outcome.FAILED, "; ".join(ticks.problems), "tick_problem")
    if ticks.left_to_others:
        return Result(*step, Outcome.SKIPPED, f"the deployed runner did the work: {ticks.left_to_others}")
    return Result(*step, Outcome.PASSED)


def _audited(walk: Walk, export: Path | None) -> Result:
    """The last step: whether the audit export has what the run requested."""

    def result(outcome: Outcome, detail: str, code: str | None = None) -> Result:
        return Result("audit", "audit", "the audit has every request of this run", outcome, detail, code)

    if export is None:
        return result(Outcome.SKIPPED, "no export was given by --audit; the same command with --run-id checks it later")
    try:
        lines, odd = audit.read(export.read_text())
        wanted = walk.run.mutations(DEPLOY)
    except (OSError, ValueError, PlatformError) as error:
        return result(Outcome.FAILED, f"{export}: {error}", "audit_unreadable")
    problems = audit.missing(lines, wanted)
    if problems:
        return result(Outcome.FAILED, "; ".join(problems), "audit_incomplete")
    return result(Outcome.PASSED, f"{len(wanted)} requests are in {len(lines)} lines; {odd} lines are not JSON objects")


def _show(report: Report, *, as_json: bool, junit: Path | None, markdown: Path | None) -> None:
    for path, text in ((junit, as_junit), (markdown, as_markdown)):
        if path:
            path.write_text(text(report))
    if as_json:
        view.print_json(report_json(report))
        return
    view.show(
        [Section(RESULTS, rows(report), "no steps"), Section(GAPS, report.gaps, "no gaps in the contract were met")]
    )
    view.out.print(report.sentence)
    if report.left_behind:
        view.out.print(view.plain(f"left behind: {report.left_behind}"))
