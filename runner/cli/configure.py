"""What a person changes on an instance that exists: configure, op upgrade and op rollback, as commands."""

from pathlib import Path
from typing import Annotated

import typer

from runner.cli import requests, view
from runner.cli.commands import Json, as_person
from runner.cli.instance_operations import ask
from runner.cli.member_operations import Parameter, Target, pairs
from runner.model.errors import RequestError


def configure(
    target: Target,
    slurm: Annotated[list[str] | None, typer.Option(help="A slurm.conf setting KEY=VALUE, repeatable.")] = None,
    unset: Annotated[list[str] | None, typer.Option(help="A setting to take back, repeatable.")] = None,
    users: Annotated[Path | None, typer.Option(help="A JSON file with the whole list of users.")] = None,
    app_version: Annotated[str | None, typer.Option(help="Version of the app to have.")] = None,
    access_credential: Annotated[
        str | None,
        typer.Option(
            help="Id of the ssh credential for the instance's hosts, used from the next tick on;"
            " also for a failed, stopped or deleting instance."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Change the desired configuration, the app version or the ssh credential of an instance.

    The runner tests a new configuration beside the live one, then loads it or keeps the old one.
    """
    if not (slurm or unset or users or app_version or access_credential):
        ways = "--slurm KEY=VALUE, --unset KEY, --users FILE, --app-version VERSION or --access-credential ID"
        raise RequestError(f"nothing to change: pass {ways}")
    listed = requests.read_users(users) if users else None
    with as_person() as (client, loaded):
        instance = requests.find_instance(client, loaded, target)
        changed = requests.configure(
            client, instance, pairs(slurm), unset or [], app_version, listed, access_credential
        )
        if as_json:
            view.print_json(changed.model_dump(mode="json"))
        else:
            if slurm or unset or users:
                view.out.print(f"instance {changed.id}: the desired configuration is {changed.config}")
            if app_version:
                view.out.print(f"instance {changed.id}: the desired app version is {changed.app_version}")
            if access_credential:
                used = f"credential {changed.access_credential_id} is used from the next tick on"
                view.out.print(f"instance {changed.id}: {used}")
            view.out.print("next: gpuaas-slurm run")


Version = Annotated[
    str | None, typer.Option("--slurm-version", help="A package version or a series; default: the newest that fits.")
]
NoWayBack = Annotated[
    bool, typer.Option("--accept-no-way-back", help="Also if no source offers the version installed now.")
]


def upgrade(
    target: Target,
    slurm_version: Version = None,
    accept_no_way_back: NoWayBack = False,
    parameter: Parameter = None,
    as_json: Json = False,
) -> None:
    """Move Slurm's packages to a newer version, controller first; jobs run on.

    Within a series a failed upgrade is undone; across series it stops and names its backup.
    """
    terms = {"slurm_version": slurm_version, "accept_no_way_back": accept_no_way_back or None}
    ask("upgrade", target, as_json, terms | pairs(parameter))


def rollback(target: Target, parameter: Parameter = None, as_json: Json = False) -> None:
    """Return to the packages and the configuration from before the last upgrade or change."""
    ask("rollback", target, as_json, pairs(parameter))


def add_to(app: typer.Typer, op: typer.Typer) -> None:
    app.command()(configure)
    op.command("upgrade")(upgrade)
    op.command("rollback")(rollback)
