"""Commands of the sandbox: a local platform and a fleet of container hosts, on this machine."""

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated

import typer

from sandbox.fleet.errors import CannotRunError, FleetError
from sandbox.fleet.fleet import Fleet
from sandbox.fleet.gpus import MODELS, MOST, Gpus
from sandbox.fleet.images import SUITES
from sandbox.fleet.other_vault import OtherVault
from sandbox.platform.control_client import ControlError

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)

tenant = typer.Typer(no_args_is_help=True, help="The sandbox's tenant: more projects, people, an administrator.")
app.add_typer(tenant, name="tenant")

# Who a command is: a project, a tenant's administrator or a shared runtime. A shell that changes from one to another
# must not keep what belongs to the former.
_IDENTITY = {
    *("GPUAAS_PROJECT_ID", "GPUAAS_SERVICE_ACCOUNT_ID", "GPUAAS_ORG_ID", "GPUAAS_SHARED_RUNTIME_ID"),
    *("GPUAAS_KEY_ID", "GPUAAS_CLIENT_SECRET", "GPUAAS_OPERATOR_TOKEN", "VAULT_ROLE_ID", "VAULT_SECRET_ID"),
}

Name = Annotated[str, typer.Option("--name", help="Which sandbox; several can run side by side.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Project = Annotated[
    str | None, typer.Option("--project", help="A project made by `sandbox tenant project`; default: the first.")
]


@app.command()
def up(
    hosts: Annotated[int, typer.Option("--hosts", min=1, max=64, help="How many hosts to have.")] = 3,
    suite: Annotated[str, typer.Option("--suite", help=f"Debian suite: {' or '.join(SUITES)}.")] = "bookworm",
    warm: Annotated[bool, typer.Option("--warm", help="Hosts with Slurm's packages installed, services off.")] = False,
    gpus: Annotated[int, typer.Option("--gpus", min=0, max=MOST, help="Stand-in GPUs of each new host.")] = 0,
    gpu_model: Annotated[str, typer.Option("--gpu-model", help=f"Their model: {', '.join(MODELS)}.")] = "a100",
    name: Name = "demo",
    port: Annotated[int | None, typer.Option("--port", help="The platform's port; default: any free port.")] = None,
    vault: Annotated[
        str | None, typer.Option("--vault", help="Address of a Vault to keep secrets in; its token is VAULT_TOKEN.")
    ] = None,
) -> None:
    """Start what is missing. A second call changes nothing; a larger number of hosts adds hosts."""
    with _exit_codes():
        fleet = Fleet(name, progress=_show_progress)
        fleet.up(hosts=hosts, suite=suite, warm=warm, gpus=Gpus(gpus, gpu_model), port=port, vault=_other_vault(vault))
        option = "" if name == "demo" else f" --name {name}"
        typer.echo(f"sandbox {name}: {len(fleet.hosts())} hosts, platform at {fleet.url}")
        typer.echo(f'next: eval "$(gpuaas-slurm sandbox env{option})" && gpuaas-slurm get allocations')


def _other_vault(address: str | None) -> OtherVault | None:
    if address is None:
        return None
    token = os.environ.get("VAULT_TOKEN")
    if not token:
        raise CannotRunError("--vault needs VAULT_TOKEN: a token that may make mounts, policies and AppRoles there")
    return OtherVault(address, token)


@app.command()
def status(name: Name = "demo", as_json: Json = False) -> None:
    """Show the hosts and the platform as they are now."""
    with _exit_codes():
        found = Fleet(name).status()
        if as_json:
            typer.echo(json.dumps(found, indent=2))
            return
        platform = found["platform"]
        state = "running" if platform["running"] else "not running"
        typer.echo(f"platform  {state}  {platform['url'] or ''}".rstrip())
        for host in found["hosts"]:
            kind = host["suite"] + (" warm" if host["warm"] else "") + (f" {host['gpus']} gpu" if host["gpus"] else "")
            columns = (host["name"], kind, host["status"], host["address"] or "-", host["allocation_id"] or "-")
            typer.echo("{:<9} {:<19} {:<8} {:<15} {}".format(*columns))


@app.command()
def env(name: Name = "demo", project: Project = None, as_json: Json = False) -> None:
    """Print the variables that a runner and an operator need, for a shell. The output holds secrets of the sandbox."""
    with _exit_codes():
        _print_variables(Fleet(name).env(project), as_json)


def _print_variables(values: Mapping[str, str], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(values, indent=2))
        return
    for key in sorted(_IDENTITY - set(values)):
        typer.echo(f"unset {key}")
    for key, value in sorted(values.items()):
        typer.echo(f"export {key}={shlex.quote(value)}")


@tenant.command("project")
def add_project(
    project: Annotated[str, typer.Argument(help="The new project's name in this sandbox.")],
    hosts: Annotated[str, typer.Option("--hosts", help="Hosts that move to it, for example gs-3,gs-4.")] = "",
    name: Name = "demo",
) -> None:
    """Create a further project in the tenant. Hosts that move to it are opened by its own credential only."""
    with _exit_codes():
        made = Fleet(name).add_project(project, [one for one in hosts.split(",") if one])
        typer.echo(f"project {project}: {made.project_id}, hosts: {', '.join(made.hosts) or 'none'}")
        typer.echo(f'next: eval "$(gpuaas-slurm sandbox env --name {name} --project {project})"')


@tenant.command("people")
def set_people(
    subjects: Annotated[
        list[str] | None, typer.Argument(help="All who belong to the project: SUBJECT or SUBJECT=USERNAME.")
    ] = None,
    project: Project = None,
    name: Name = "demo",
) -> None:
    """Say who belongs to a project; without a subject, the project is empty. It replaces the former list."""
    pairs = [one.partition("=") for one in subjects or []]
    people = [{"subject": subject, "username": username or None} for subject, _, username in pairs]
    with _exit_codes():
        Fleet(name).set_people(people, project)
        typer.echo(f"people of the project: {len(people)}")


@tenant.command("admin")
def admin(name: Name = "demo", as_json: Json = False) -> None:
    """Print the variables of a tenant administrator, with a new token. It deploys shared runtimes and attaches."""
    with _exit_codes():
        _print_variables(Fleet(name).administrator_env(), as_json)


@tenant.command("operator")
def operator(
    runtime: Annotated[str, typer.Argument(help="The shared runtime's id.")], name: Name = "demo", as_json: Json = False
) -> None:
    """Print the variables of the operator identity of a shared runtime, with a new key."""
    with _exit_codes():
        _print_variables(Fleet(name).runtime_env(runtime), as_json)


@app.command(context_settings={"allow_interspersed_args": False})
def exec(
    host: Annotated[str, typer.Argument(help="A host's name, as status shows it.")],
    command: Annotated[list[str], typer.Argument(help="The command and its arguments, after --.")],
    name: Name = "demo",
) -> None:
    """Run a command as root on a host; the exit code is the command's."""
    with _exit_codes():
        code = Fleet(name).attach(host, command[1:] if command[0] == "--" else command)
    raise typer.Exit(code)


@app.command()
def logs(
    source: Annotated[str, typer.Argument(help="A host's name, for its journal, or platform.")] = "platform",
    name: Name = "demo",
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="How many of the last lines.")] = 100,
) -> None:
    """Show the platform's log or a host's journal."""
    with _exit_codes():
        fleet = Fleet(name)
        if source != "platform":
            code = fleet.attach(source, ["journalctl", "--no-pager", "--lines", str(lines)])
            raise typer.Exit(code)
        for line in fleet.platform_log(lines):
            typer.echo(line)


@app.command()
def down(
    name: Name = "demo",
    images: Annotated[bool, typer.Option("--images", help="Remove the cached host images too.")] = False,
) -> None:
    """Remove this sandbox's hosts, network, platform and state; nothing else is touched."""
    with _exit_codes():
        for image in Fleet(name, progress=_show_progress).down(images=images):
            typer.echo(f"kept {image}: hosts of another fleet use it")
        typer.echo(f"sandbox {name}: removed")


@contextmanager
def _exit_codes() -> Iterator[None]:
    """Exit with 1 if something failed and 2 if it cannot run on this machine; the reason is on stderr."""
    try:
        yield
    except (FleetError, ControlError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, CannotRunError) else 1) from None


def _show_progress(stage: str, seconds: float | None) -> None:
    """Print one line per stage: on a terminal when the stage begins, in a log when it is done."""
    live = sys.stderr.isatty()
    if seconds is None:
        if live:
            typer.echo(f"{stage} ...", nl=False, err=True)
    else:
        typer.echo(f"{chr(13) if live else ''}{stage}: {seconds:.1f} s", err=True)
