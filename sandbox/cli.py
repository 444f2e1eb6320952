"""Commands of the sandbox: a local platform and a fleet of container hosts, on this machine."""

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from sandbox.fleet.errors import CannotRunError, FleetError
from sandbox.fleet.fleet import Fleet
from sandbox.fleet.gpus import MODELS, MOST, Gpus
from sandbox.fleet.images import SUITES

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)

Name = Annotated[str, typer.Option("--name", help="Which sandbox; several can run side by side.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def up(
    hosts: Annotated[int, typer.Option("--hosts", min=1, max=64, help="How many hosts to have.")] = 3,
    suite: Annotated[str, typer.Option("--suite", help=f"Debian suite: {' or '.join(SUITES)}.")] = "bookworm",
    warm: Annotated[bool, typer.Option("--warm", help="Hosts with Slurm's packages installed, services off.")] = False,
    gpus: Annotated[int, typer.Option("--gpus", min=0, max=MOST, help="Stand-in GPUs of each new host.")] = 0,
    gpu_model: Annotated[str, typer.Option("--gpu-model", help=f"Their model: {', '.join(MODELS)}.")] = "a100",
    name: Name = "demo",
    port: Annotated[int | None, typer.Option("--port", help="The platform's port; default: any free port.")] = None,
) -> None:
    """Start what is missing. A second call changes nothing; a larger number of hosts adds hosts."""
    with _exit_codes():
        fleet = Fleet(name, progress=_show_progress)
        fleet.up(hosts=hosts, suite=suite, warm=warm, gpus=Gpus(gpus, gpu_model), port=port)
        option = "" if name == "demo" else f" --name {name}"
        typer.echo(f"sandbox {name}: {len(fleet.hosts())} hosts, platform at {fleet.url}")
        typer.echo(f'next: eval "$(gpuaas-slurm sandbox env{option})" && gpuaas-slurm get allocations')


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
def env(name: Name = "demo", as_json: Json = False) -> None:
    """Print the variables that a runner and an operator need, for a shell. The output holds secrets of the sandbox."""
    with _exit_codes():
        values = Fleet(name).env()
        if as_json:
            typer.echo(json.dumps(values, indent=2))
            return
        for key, value in sorted(values.items()):
            typer.echo(f"export {key}={shlex.quote(value)}")


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
    except FleetError as error:
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
