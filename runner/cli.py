"""gpuaas-slurm: typer commands, and no logic of their own."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from runner import log, operator, secrets, settings, view
from runner.foresee import foresee
from runner.platform.client import Client
from runner.platform.errors import PlatformError
from runner.platform.models import AppInstance
from runner.settings import Settings, SettingsError
from runner.tick import Signals, Summary, choose, run_tick
from runner.world import observe

OK, FAILED, CANNOT = 0, 1, 2

app = typer.Typer(
    help="Turns GPUaaS allocations into a Slurm cluster, because a record in the platform asks for it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
get = typer.Typer(help="Read what the platform knows, as tables or with --json.", no_args_is_help=True)
op = typer.Typer(help="Ask for a member operation; the runner carries it out.", no_args_is_help=True)
app.add_typer(get, name="get")
app.add_typer(op, name="op")

Json = Annotated[bool, typer.Option("--json", help="Answer with JSON on stdout.")]
Which = Annotated[str | None, typer.Option("--instance", "-i", help="Id, its start, or a name; default: the only one.")]
Target = Annotated[str, typer.Argument(help="The instance: id, start of an id, or name.")]
Members = Annotated[str, typer.Option(help="Members, comma separated: id, start of an id, or node name.")]
Allocations = Annotated[str, typer.Option(help="Allocations, comma separated: id, start of an id, or name.")]
Parameter = Annotated[list[str] | None, typer.Option("--parameter", "-p", help="KEY=VALUE, as often as needed.")]


def main() -> None:
    """Entry point: every expected error is a sentence on stderr and an exit code, never a traceback."""
    with contextlib.suppress(ImportError):  # the sandbox is an extra: a production install has none
        from sandbox.cli import app as sandbox

        app.add_typer(sandbox, name="sandbox")
    try:
        app()
    except SettingsError as error:
        for problem in error.problems:
            view.err.print(f"error: {problem}")
        sys.exit(CANNOT)
    except (PlatformError, operator.AskedWrong, secrets.SecretsError, FileNotFoundError) as error:
        view.err.print(f"error: {error}")
        sys.exit(CANNOT)


def _load() -> Settings:
    loaded = settings.load()
    settings.forget_secrets()
    log.configure(loaded)
    return loaded


@contextlib.contextmanager
def _person() -> Iterator[tuple[Client, Settings]]:
    loaded = _load()
    with Client(loaded, person=True) as client:
        yield client, loaded


@contextlib.contextmanager
def _reader() -> Iterator[tuple[Client, Settings]]:
    """For commands that only read: as the person if there is a token, else as the service account."""
    loaded = _load()
    with Client(loaded, person=loaded.operator_token is not None) as client:
        yield client, loaded


# -- the runner ----------------------------------------------------------------------------------------------


@app.command()
def run(
    instance: Which = None,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until a signal ends it.")] = False,
    progress: Annotated[bool, typer.Option("--progress", help="Show members and phases while plays run.")] = False,
    as_json: Json = False,
) -> None:
    """One tick over this project's instances. Exit code 0: nothing failed; 1: an operation failed; 2: could not run."""
    loaded = _load()
    signals = _handle_signals()
    total = Summary()
    with Client(loaded) as client:
        only = operator.find_instance(client, loaded, instance).id if instance else None
        with view.Progress() if progress else contextlib.nullcontext() as shown:
            while True:
                try:
                    summary = run_tick(client, loaded, only=only, signals=signals, watch=shown.hear if shown else None)
                except PlatformError as error:
                    if not watch:
                        raise
                    summary = Summary(problems=[str(error)])
                    log.get().error("tick could not start", problem=str(error))
                total.add(summary)
                if not watch or signals.stop.wait(loaded.watch_seconds):
                    break
    if as_json:
        view.print_json(vars(total))
    for problem in [] if watch else total.problems:
        view.err.print(f"error: {problem}")
    raise typer.Exit(CANNOT if total.problems and not watch else FAILED if total.failed_operations else OK)


def _handle_signals() -> Signals:
    """The first signal lets the current step finish; the second one stops the play."""
    signals = Signals()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if signals.stop.is_set():
            signals.abort.set()
        signals.stop.set()
        # Logging inside a handler could meet its own lock; a thread of its own cannot.
        name = signal.Signals(number).name
        threading.Thread(target=lambda: log.get().warning("ending after this step", signal=name), daemon=True).start()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    return signals


@app.command()
def plan(instance: Which = None, as_json: Json = False) -> None:
    """What the next tick would do, and why. Reads the platform only; touches no host."""
    loaded = _load()
    rows: list[view.Row] = []
    with Client(loaded) as client:
        only = operator.find_instance(client, loaded, instance).id if instance else None
        for one in choose(client, loaded, only):
            rows += view.plan_rows(one, foresee(observe(client, one, loaded)))
    view.show(rows, as_json=as_json, empty="nothing to do: every instance is as it was asked to be")


@app.command()
def status(instance: Which = None, as_json: Json = False) -> None:
    """Instances with their members and open operations, as the platform shows them."""
    with _reader() as (client, loaded):
        only = operator.find_instance(client, loaded, instance).id if instance else None
        found = choose(client, loaded, only)
        if as_json:
            view.print_json([_everything(client, one) for one in found])
            return
        if not found:
            view.out.print("no instance of this app in the project: make one with gpuaas-slurm deploy")
        for one in found:
            view.show([view.instance_row(one)], as_json=False, empty="")
            view.show((view.member_row(m) for m in client.members(one.id)), as_json=False, empty="  no members")
            operations = client.member_operations(one.id, status="accepted,running")
            view.show((view.operation_row(o) for o in operations), as_json=False, empty="no open operations")
            view.out.print()


def _everything(client: Client, one: AppInstance) -> dict[str, Any]:
    return {
        **one.model_dump(mode="json"),
        "members": [member.model_dump(mode="json") for member in client.members(one.id)],
        "operations": [operation.model_dump(mode="json") for operation in client.member_operations(one.id)],
    }


@app.command("exec", context_settings={"ignore_unknown_options": True, "allow_extra_args": False})
def exec_with_access(
    command: Annotated[list[str], typer.Argument(help="What to run, after --, for example ansible-playbook ...")],
    instance: Which = None,
) -> None:
    """Run a command with this instance's ssh key in a private agent and its secrets within reach of plays."""
    # The person's own command gets the person's own settings whole: the inventory plugin asks the platform with them.
    inherited = dict(os.environ)
    loaded = _load()
    with Client(loaded) as client:
        one = operator.find_instance(client, loaded, instance)
        with secrets.access(client, loaded, one) as environment:
            try:
                code = subprocess.run(command, env={**inherited, **environment}, check=False).returncode
            except OSError as error:
                _stop(f"{command[0]}: {error.strerror}")
    raise typer.Exit(code)


def _stop(message: str) -> NoReturn:
    view.err.print(f"error: {message}")
    raise typer.Exit(CANNOT)


# -- the operator --------------------------------------------------------------------------------------------


@app.command()
def deploy(
    controller: Annotated[str, typer.Option(help="Allocation of the controller: id, start of an id, or name.")],
    workers: Annotated[str, typer.Option(help="Allocations of the first workers, comma separated.")] = "",
    same_node: Annotated[bool, typer.Option("--same-node", help="The controller's host is a worker too.")] = False,
    name: Annotated[str | None, typer.Option(help="A name for people.")] = None,
    slurm: Annotated[list[str] | None, typer.Option(help="A slurm.conf setting KEY=VALUE, repeatable.")] = None,
    cluster_name: Annotated[str | None, typer.Option(help="Slurm's ClusterName; default: made from the id.")] = None,
    app_version: Annotated[str, typer.Option(help="Version of the app to deploy.")] = "1.0.0",
    as_json: Json = False,
) -> None:
    """Ask the platform for a cluster. The runner builds it."""
    config: dict[str, Any] = {"slurm": _pairs(slurm)} if slurm else {}
    if cluster_name:
        config["cluster_name"] = cluster_name
    with _person() as (client, loaded):
        made = operator.deploy(
            client,
            loaded,
            controller=controller,
            workers=_list(workers),
            same_node=same_node,
            name=name,
            config=config,
            app_version=app_version,
        )
        if as_json:
            view.print_json(made.model_dump(mode="json"))
        else:
            view.out.print(f"instance {made.id} is {made.status}; correlation {made.correlation_id}")
            view.out.print("next: gpuaas-slurm run")


def _request(
    verb: str,
    target: str,
    as_json: bool,
    *,
    component: str,
    members: str = "",
    allocations: str = "",
    parameter: list[str] | None,
) -> None:
    with _person() as (client, loaded):
        made = operator.request(
            client,
            operator.find_instance(client, loaded, target),
            verb,
            component_key=component,
            members=_list(members),
            allocations=_list(allocations),
            parameters=_pairs(parameter),
        )
        if as_json:
            view.print_json(made.model_dump(mode="json"))
        else:
            view.out.print(f"{verb} {made.id} is {made.status}; correlation {made.correlation_id}")


Component = Annotated[str, typer.Option("--component", help="component_key of the members.")]


@op.command("add")
def op_add(
    target: Target,
    allocations: Allocations,
    component: Component = "worker",
    parameter: Parameter = None,
    as_json: Json = False,
) -> None:
    """Make workers of allocations, one or many at once."""
    _request("add", target, as_json, component=component, allocations=allocations, parameter=parameter)


@op.command("drain")
def op_drain(
    target: Target,
    members: Members,
    component: Component = "worker",
    parameter: Parameter = None,
    as_json: Json = False,
) -> None:
    """Let workers finish their jobs and take no new ones."""
    _request("drain", target, as_json, component=component, members=members, parameter=parameter)


@op.command("remove")
def op_remove(
    target: Target,
    members: Members,
    component: Component = "worker",
    parameter: Parameter = None,
    as_json: Json = False,
) -> None:
    """Take workers out of the cluster."""
    _request("remove", target, as_json, component=component, members=members, parameter=parameter)


@op.command("replace")
def op_replace(
    target: Target,
    members: Members,
    allocations: Allocations,
    component: Component = "worker",
    parameter: Parameter = None,
    as_json: Json = False,
) -> None:
    """Bring in new workers for old ones."""
    _request(
        "replace", target, as_json, component=component, members=members, allocations=allocations, parameter=parameter
    )


@get.command("instances")
def get_instances(as_json: Json = False) -> None:
    """Instances of this app in the project."""
    with _reader() as (client, loaded):
        found = client.instances(app_slug=loaded.app_slug)
        rows: list[Any] = [one.model_dump(mode="json") if as_json else view.instance_row(one) for one in found]
        view.show(rows, as_json=as_json, empty="no instances")


@get.command("members")
def get_members(instance: Which = None, as_json: Json = False) -> None:
    """Members of an instance."""
    with _reader() as (client, loaded):
        found = client.members(operator.find_instance(client, loaded, instance).id)
        rows: list[Any] = [one.model_dump(mode="json") if as_json else view.member_row(one) for one in found]
        view.show(rows, as_json=as_json, empty="no members")


@get.command("operations")
def get_operations(instance: Which = None, as_json: Json = False) -> None:
    """Member operations of an instance, ended ones too."""
    with _reader() as (client, loaded):
        found = client.member_operations(operator.find_instance(client, loaded, instance).id)
        rows: list[Any] = [one.model_dump(mode="json") if as_json else view.operation_row(one) for one in found]
        view.show(rows, as_json=as_json, empty="no operations")


@get.command("allocations")
def get_allocations(as_json: Json = False) -> None:
    """Allocations of the project, and what they serve as."""
    with _reader() as (client, loaded):
        used: dict[Any, str] = {}
        for one in client.instances(app_slug=loaded.app_slug):
            for member in client.members(one.id) if one.status != "deleted" else []:
                if member.status not in ("deleted", "failed"):
                    used[member.allocation_id] = f"{used.get(member.allocation_id, '')} {member.component_key}".strip()
        found = client.allocations()
        rows: list[Any] = [one.model_dump(mode="json") if as_json else view.allocation_row(one, used) for one in found]
        view.show(rows, as_json=as_json, empty="no allocations in this project")


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _pairs(texts: list[str] | None) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for text in texts or []:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise operator.AskedWrong(f"{text!r} is not KEY=VALUE")
        pairs[key] = int(value) if value.isdigit() else value
    return pairs
