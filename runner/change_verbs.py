"""What a person changes on a cluster that runs: configure, op upgrade and op rollback, as commands."""

from pathlib import Path
from typing import Annotated

import typer

from runner import operator, view
from runner.commands import Json, as_person
from runner.instance_verbs import ask
from runner.verbs import Parameter, Target, pairs


def configure(
    target: Target,
    slurm: Annotated[list[str] | None, typer.Option(help="A slurm.conf setting KEY=VALUE, repeatable.")] = None,
    unset: Annotated[list[str] | None, typer.Option(help="A setting to take back, repeatable.")] = None,
    users: Annotated[Path | None, typer.Option(help="A JSON file with the whole list of users.")] = None,
    app_version: Annotated[str | None, typer.Option(help="Version of the app to have.")] = None,
    access_credential: Annotated[
        str | None, typer.Option(help="Id of the ssh credential to reach its hosts with, from the next tick on.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Change the configuration of a cluster that runs. The runner proves it, puts it live, or keeps the old one."""
    if not (slurm or unset or users or app_version or access_credential):
        ways = "--slurm KEY=VALUE, --unset KEY, --users FILE, --app-version VERSION or --access-credential ID"
        raise operator.AskedWrong(f"nothing to change: say {ways}")
    listed = operator.read_users(users) if users else None
    with as_person() as (client, loaded):
        instance = operator.find_instance(client, loaded, target)
        changed = operator.configure(
            client, instance, pairs(slurm), unset or [], app_version, listed, access_credential
        )
        if as_json:
            view.print_json(changed.model_dump(mode="json"))
        else:
            view.out.print(f"instance {changed.id} is to have {changed.config}; next: gpuaas-slurm run")
            if access_credential:
                view.out.print(f"its hosts are reached with credential {changed.access_credential_id} from now on")


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
    """Move Slurm's packages to a newer version, controller first, jobs running on; back by itself if that fails."""
    terms = {"slurm_version": slurm_version, "accept_no_way_back": accept_no_way_back or None}
    ask("upgrade", target, as_json, terms | pairs(parameter))


def rollback(target: Target, parameter: Parameter = None, as_json: Json = False) -> None:
    """Return to the packages and the configuration from before the last upgrade or change."""
    ask("rollback", target, as_json, pairs(parameter))


def add_to(app: typer.Typer, op: typer.Typer) -> None:
    app.command()(configure)
    op.command("upgrade")(upgrade)
    op.command("rollback")(rollback)
