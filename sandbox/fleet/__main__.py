"""Bare hosts without a platform, for role tests: create and destroy; clean for all fleets."""

import json
import shutil
from pathlib import Path
from typing import Annotated

import typer

from sandbox.fleet import places
from sandbox.fleet.errors import CannotRunError, FleetError
from sandbox.fleet.fleet import Fleet
from sandbox.fleet.hosts import LOGIN_USER, SSH_PORT, Hosts, HostSpec
from sandbox.fleet.images import remove_images
from sandbox.fleet.keys import KeyPair
from sandbox.fleet.runtime import Podman

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)

Name = Annotated[str, typer.Option("--name", help="The fleet's name.")]


@app.command()
def create(
    name: Name,
    host: Annotated[list[str], typer.Option("--host", help="NAME=SUITE[:warm][:gpus=4xa100]; repeat it per host.")],
    out: Annotated[Path | None, typer.Option("--out", help="Write the result there instead of printing it.")] = None,
) -> None:
    """Create missing hosts, start stopped ones, and print how to reach them as JSON."""
    specs = [HostSpec.parse(text) for text in host]
    hosts = Hosts(name, Podman.detect())
    key_file = Fleet(name).bare_key
    with places.locked(name):
        if Fleet(name).enrolled:
            raise CannotRunError(
                f"fleet {name!r} belongs to a sandbox with a platform; use another name, "
                f"or first run: gpuaas-slurm sandbox down --name {name}"
            )
        kept = KeyPair.load(key_file.read_bytes()) if key_file.exists() else None
        key = kept or KeyPair.generate()
        running = hosts.ensure(specs, key.public)
        if kept is None:
            hosts.authorize(key.public)
            places.write_private(key_file, key.private)
    result = {
        "name": name,
        "private_key_file": str(key_file),
        "hosts": {
            item.name: {
                "address": item.address,
                "port": SSH_PORT,
                "user": LOGIN_USER,
                "host_key": item.host_key,
                "suite": item.spec.suite,
                "warm": item.spec.warm,
                "gpus": item.spec.gpus.count,
            }
            for item in running
        },
    }
    text = json.dumps(result, indent=2) + "\n"
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text)


@app.command()
def destroy(name: Name) -> None:
    """Remove the fleet's hosts, its network and its key."""
    Fleet(name).down()


@app.command()
def clean(
    images: Annotated[bool, typer.Option("--images", help="Remove the cached host images too.")] = False,
) -> None:
    """Remove every fleet of this machine, and nothing else."""
    if shutil.which("podman") is None:
        typer.echo("podman is not installed, so there are no fleets")
        return
    podman = Podman.detect()
    for name in sorted(podman.fleets() | places.known_fleets()):
        Fleet(name).down()
        typer.echo(f"fleet {name}: removed")
    if images:
        for image in remove_images(podman):
            typer.echo(f"kept {image}: a container still uses it")


def main() -> None:
    try:
        app()
    except FleetError as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(2 if isinstance(error, CannotRunError) else 1) from None


if __name__ == "__main__":
    main()
