"""gpuaas-slurm: the entry point, and the commands that run, plan and show instances."""

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any
from uuid import UUID

import typer

from runner.act import bundle
from runner.cli import (
    access,
    configure,
    contract,
    follow,
    gaps,
    instance_operations,
    live,
    member_operations,
    requests,
    trust,
    view,
)
from runner.cli.catalog import catalog
from runner.cli.commands import (
    CANNOT_RUN,
    EXPECTED,
    FAILED,
    OK,
    as_reader,
    as_service,
    exit_code,
    load,
    problems,
    require_one_scope,
)
from runner.cli.explain import explain
from runner.cli.options import (
    MEMBER_NAMES,
    AsServiceAccount,
    ByHandReason,
    Form,
    Json,
    OneOrAll,
    Output,
    Which,
    chosen_form,
    split_list,
)
from runner.cli.shared import shared
from runner.cli.smoke.command import smoke
from runner.cli.tables import INSTANCES, MEMBERS, OPERATIONS, PLAN, Section
from runner.loop import hardening, manual
from runner.loop import run as loop
from runner.loop.by_hand import hand
from runner.loop.dry_run import dry_run
from runner.loop.live_look import look
from runner.loop.process_lock import ProcessLock
from runner.loop.run import select_instances
from runner.loop.shared import Signals, Summary
from runner.model.errors import RequestError
from runner.model.platform import AppInstance, Member
from runner.observe.find import find_instance, find_member
from runner.observe.world import observe
from runner.platform.client import Client
from runner.settings import Settings
from runner.slurm.app import SLURM
from runner.slurm.charges import charges
from runner.telemetry.start import metering, tracing

app = typer.Typer(
    epilog="Settings come from the environment or from the file named by GPUAAS_CONFIG: see docs/usage/settings.md.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(member_operations.deploy)
app.command()(access.access)
app.command("explain")(explain)
app.command()(trust.trust)
app.command()(contract.contract)
app.command()(gaps.gaps)
app.command()(smoke)
app.add_typer(member_operations.get, name="get")
instance_operations.add_to(member_operations.op)
configure.add_to(app, member_operations.op)
app.add_typer(member_operations.op, name="op")
app.add_typer(shared, name="shared")
app.add_typer(catalog, name="app")


def _show_version(asked: bool) -> None:
    if asked:
        view.out.print(f"gpuaas-slurm {bundle.version()}")
        raise typer.Exit(OK)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Turn GPUaaS allocations into Slurm clusters, as the platform's records request."""


def main() -> None:
    """Entry point: every expected error is a sentence on stderr and an exit code, never a traceback."""
    hardening.protect_memory()
    with contextlib.suppress(ImportError):  # the sandbox is an extra that a production installation does not have
        from sandbox.cli import app as sandbox

        app.add_typer(sandbox, name="sandbox")
    try:
        app()
    except tuple(EXPECTED) as error:
        for problem in problems(error):
            view.err.print(f"error: {view.plain(problem)}")
        sys.exit(exit_code(error))


@app.command()
def run(
    instance: OneOrAll = None,
    watch: Annotated[bool, typer.Option("--watch", help="Do not end when the work is done; a signal ends it.")] = False,
    progress: Annotated[bool, typer.Option("--progress", help="Show members and phases while plays run.")] = False,
    as_json: Json = False,
) -> None:
    """Carry out what is requested, for every instance of the project side by side, and report what is observed.

    Ends when the work is done. As long as one instance is being worked on, the others are observed again.

    Exit code 0: nothing failed; 1: an operation failed; 2: could not run; 3: the platform sends no ETags and another
    runner holds the lock on this machine.
    """
    with as_service() as only_lines:
        total = _run(instance, watch=watch, progress=progress)
    if as_json:
        view.print_json(vars(total))
    for problem in [] if watch or only_lines else total.problems:  # the log has them
        view.err.print(f"error: {view.plain(problem)}")
    raise typer.Exit(CANNOT_RUN if total.problems and not watch else FAILED if total.failed_operations else OK)


def _run(instance: str | None, *, watch: bool, progress: bool) -> Summary:
    loaded = load()
    require_one_scope(loaded)
    signals = Signals()
    signals.install()
    with (
        metering(loaded, SLURM.metrics, stays=watch) as meter,
        tracing(loaded, SLURM.metrics, bundle.bundle_dir(), bundle.error_codes) as tracer,
        Client(loaded, meter=meter, tracer=tracer) as client,
        ProcessLock(loaded) as process_lock,
    ):
        only = find_instance(client, loaded, instance).id if instance else None
        with view.Progress() if progress else contextlib.nullcontext() as shown:
            return loop.run(
                client,
                loaded,
                SLURM,
                only=only,
                forever=watch,
                signals=signals,
                on_progress=shown.show if shown else None,
                process_lock=process_lock,
            )


@app.command()
def plan(
    instance: OneOrAll = None,
    live_look: Annotated[bool, typer.Option("--live", help="Look at the controllers first, read-only.")] = False,
    as_json: Json = False,
    output: Output = Form.TABLE,
) -> None:
    """What the next tick would do up to its first play, and why. Touches no host, unless --live is given."""
    form = chosen_form(output, as_json)
    loaded = load()
    require_one_scope(loaded)
    rows: list[view.Row] = []
    with Client(loaded) as client:
        only = find_instance(client, loaded, instance).id if instance else None
        for one in select_instances(client, loaded, only):
            world = observe(client, one, loaded, SLURM, everything=live_look)
            if live_look:
                world = world.later(snapshot=look(client, loaded, SLURM, world))
            rows += view.plan_rows(one, dry_run(world, SLURM), as_json=form is Form.JSON)
            if one.is_shared:
                for charge in charges(one, world.members or client.members(one.id)):
                    view.err.print(charge.sentence)
    if form is Form.JSON:
        view.print_json(rows)
    else:
        view.show([Section(PLAN, rows, "nothing to do: every instance is as requested")], wide=form is Form.WIDE)


@app.command()
def status(
    instance: OneOrAll = None,
    as_json: Json = False,
    output: Output = Form.TABLE,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again when it changes, until Ctrl-C.")] = False,
) -> None:
    """Instances with their members and open operations, as the platform shows them."""
    form = chosen_form(output, as_json)
    if watch and form is Form.JSON:
        raise RequestError("--watch shows tables: pass it without JSON")
    with as_reader() as (client, loaded):
        only = find_instance(client, loaded, instance).id if instance else None
        if form is Form.JSON:
            view.print_json([_everything(client, one) for one in select_instances(client, loaded, only)])
        elif watch:
            live.watch(lambda: _status(client, loaded, only), wide=form is Form.WIDE)
        else:
            view.show(_status(client, loaded, only), wide=form is Form.WIDE)


def _status(client: Client, loaded: Settings, only: UUID | None) -> list[Section]:
    shown: list[Section] = []
    for one in select_instances(client, loaded, only):
        operations = requests.operations(client, one, status="accepted,running")
        records = follow.read_records(client, loaded, one, operations)
        shown += [
            Section(INSTANCES, [view.instance_row(one)], ""),
            Section(MEMBERS, [records.member_row(member) for member in records.members], "  no members"),
            Section(OPERATIONS, [records.operation_row(each) for each in operations], "no open operations"),
            Section(INSTANCES, [], ""),
        ]
    none = "no instance of this app in the project: make one with gpuaas-slurm deploy"
    return shown or [Section(INSTANCES, [], none)]


def _everything(client: Client, one: AppInstance) -> dict[str, Any]:
    return {
        **one.model_dump(mode="json"),
        "members": [member.model_dump(mode="json") for member in client.members(one.id)],
        "operations": [operation.model_dump(mode="json") for operation in requests.operations(client, one)],
    }


@app.command("exec", context_settings={"ignore_unknown_options": True, "allow_extra_args": False})
def exec_with_access(
    command: Annotated[list[str], typer.Argument(help="What to run, after --, for example ansible-playbook ...")],
    reason: ByHandReason,
    instance: Which = None,
    members: Annotated[str, typer.Option(help=f"Claim only these members, comma separated: {MEMBER_NAMES}.")] = "",
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Claim nothing: for a command that changes no host.")
    ] = False,
    as_service_account: AsServiceAccount = False,
) -> None:
    """Run a command with this instance's ssh key in a private agent and its secrets available to plays.

    Your token (GPUAAS_OPERATOR_TOKEN) puts it on record first, with the reason; `explain` shows the record by the
    correlation id that is printed.

    The instance's members are claimed while the command runs, so that no runner changes them. Package policy is queried
    first, and its answer holds for plays. The command's environment is yours without its secrets, except
    GPUAAS_CLIENT_SECRET, which the inventory needs. Exit code: the command's; 3: another runner holds a member, or the
    lock that a platform without ETags needs, and nothing was run, or the claim was lost and the command was ended.
    """
    environment = manual.inherited(os.environ)
    loaded = load()
    names = split_list(members)

    def pick(alive: Sequence[Member]) -> Sequence[Member]:
        return [find_member(alive, name, SLURM) for name in names] if names else alive

    with (
        ProcessLock(loaded) as process_lock,
        hand(loaded, reason, view.err.print, as_service_account=as_service_account) as person,
    ):
        one = find_instance(person.client, loaded, instance)
        process_lock.require_for(person.client, one)
        with Client(loaded) as client:
            code = manual.execute(client, loaded, SLURM, one, person, command, environment, pick, read_only=read_only)
    raise typer.Exit(code)
