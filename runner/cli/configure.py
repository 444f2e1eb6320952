"""Commands that change an existing instance: configure, op upgrade and op rollback."""

from pathlib import Path
from typing import Annotated

import typer

from runner.cli import requests, view
from runner.cli.commands import as_operator
from runner.cli.instance_operations import request
from runner.cli.options import Answer, Json, Parameter, Target, Timeout, Wait, given, read_pairs
from runner.model.errors import RequestError
from runner.observe.find import find_instance


def configure(
    target: Target,
    slurm: Annotated[list[str] | None, typer.Option(help="A slurm.conf setting KEY=VALUE, repeatable.")] = None,
    unset: Annotated[list[str] | None, typer.Option(help="A setting to remove, repeatable.")] = None,
    users: Annotated[Path | None, typer.Option(help="A JSON file with the whole list of users.")] = None,
    app_version: Annotated[str | None, typer.Option(help="Desired version of the app.")] = None,
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
    with as_operator() as (client, loaded):
        instance = find_instance(client, loaded, target)
        changed = requests.configure(
            client, instance, read_pairs(slurm), unset or [], app_version, listed, access_credential
        )
    changes = []
    if slurm or unset or users:
        changes.append(f"the desired configuration is {changed.config}")
    if app_version:
        changes.append(f"the desired app version is {changed.app_version}")
    if access_credential:
        changes.append(f"credential {changed.access_credential_id} is used from the next tick on")
    lines = [f"instance {changed.id}: {change}" for change in changes]
    view.show_record(changed, *lines, "next: gpuaas-slurm run", as_json=as_json)


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
    wait: Wait = False,
    timeout: Timeout = None,
) -> None:
    """Move Slurm's packages to a newer version, controller first; jobs continue.

    Within a series a failed upgrade is undone; across series it stops and names its backup.
    """
    terms = {"slurm_version": slurm_version, "accept_no_way_back": accept_no_way_back or None}
    request("upgrade", target, Answer(as_json, wait, timeout), given(terms, parameter))


def rollback(target: Target, as_json: Json = False, wait: Wait = False, timeout: Timeout = None) -> None:
    """Return to the packages and the configuration from before the last upgrade or change."""
    request("rollback", target, Answer(as_json, wait, timeout), {})


def add_to(app: typer.Typer, op: typer.Typer) -> None:
    app.command()(configure)
    op.command("upgrade")(upgrade)
    op.command("rollback")(rollback)
