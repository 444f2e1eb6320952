"""What a person asks of the platform: deploy, op and get, as commands. No logic of their own."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel

from runner.act import bundle
from runner.cli import requests, view
from runner.cli.commands import Json, Which, as_person, as_reader
from runner.model.errors import RequestError

T = TypeVar("T", bound=BaseModel)

get = typer.Typer(help="Read records of the platform, as tables or with --json.", no_args_is_help=True)
op = typer.Typer(help="Request an operation; the runner carries it out.", no_args_is_help=True)

Target = Annotated[str, typer.Argument(help="The instance: id, start of an id, or name.")]
MEMBER_NAMES = "id, start of an id, node name, or inventory name (worker-1a2b3c4d)"
Members = Annotated[str, typer.Option(help=f"Members, comma separated: {MEMBER_NAMES}.")]
Allocations = Annotated[str, typer.Option(help="Allocations, comma separated: id, start of an id, or name.")]
Parameter = Annotated[list[str] | None, typer.Option("--parameter", "-p", help="KEY=VALUE, as often as needed.")]


def deploy(
    controller: Annotated[str, typer.Option(help="Allocation of the controller: id, start of an id, or name.")],
    workers: Annotated[str, typer.Option(help="Allocations of the first workers, comma separated.")] = "",
    same_node: Annotated[bool, typer.Option("--same-node", help="The controller's host is a worker too.")] = False,
    name: Annotated[str | None, typer.Option(help="A name for people.")] = None,
    slurm: Annotated[list[str] | None, typer.Option(help="A slurm.conf setting KEY=VALUE, repeatable.")] = None,
    cluster_name: Annotated[str | None, typer.Option(help="Slurm's ClusterName; default: made from the id.")] = None,
    users: Annotated[Path | None, typer.Option(help="A JSON file with the list of users, as config.users.")] = None,
    app_version: Annotated[
        str | None, typer.Option(help="Version of the app to deploy; default: the version of this program.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Ask the platform for a cluster. The runner builds it."""
    config: dict[str, Any] = {"slurm": pairs(slurm)} if slurm else {}
    if users:
        config["users"] = requests.read_users(users)
    if cluster_name:
        config["cluster_name"] = cluster_name
    with as_person() as (client, loaded):
        made = requests.deploy(
            client,
            loaded,
            controller=controller,
            workers=listed(workers),
            same_node=same_node,
            name=name,
            config=config,
            app_version=app_version or bundle.version(),
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
    parameters: dict[str, Any],
) -> None:
    with as_person() as (client, loaded):
        made = requests.request(
            client,
            requests.find_instance(client, loaded, target),
            verb,
            component_key=component,
            members=listed(members),
            allocations=listed(allocations),
            parameters=parameters,
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
    _request("add", target, as_json, component=component, allocations=allocations, parameters=pairs(parameter))


Reason = Annotated[str, typer.Option(help="Your words; they stand in the node's drain reason.")]
Deadline = Annotated[int | None, typer.Option(help="Seconds to wait for jobs on the worker; default: no limit.")]
OnDeadline = Annotated[str | None, typer.Option(help="Then: give_up (default), requeue or cancel them.")]
OnLeavingDeadline = Annotated[
    str | None,
    typer.Option(
        help="Then: give_up (default), requeue or cancel them; a waiting job that names the node loses that"
        " requirement under requeue."
    ),
]
Patience = Annotated[int | None, typer.Option(help="Seconds a host may not answer before it is taken out without it.")]

RemoveHomes = Annotated[
    bool,
    typer.Option("--remove-homes", help="Delete the users' homes that the adapter made, on the root file system only."),
]


def _terms(
    more: list[str] | None,
    reason: str,
    deadline: int | None,
    on_deadline: str | None,
    patience: int | None = None,
    *,
    remove_homes: bool = False,
) -> dict[str, Any]:
    given = {
        "reason": reason or None,
        "deadline_seconds": deadline,
        "on_deadline": on_deadline,
        "host_patience_seconds": patience,
        "remove_homes": remove_homes or None,
    }
    return {key: value for key, value in given.items() if value is not None} | pairs(more)


@op.command("drain")
def op_drain(
    target: Target,
    members: Members,
    reason: Reason = "",
    deadline: Deadline = None,
    on_deadline: OnDeadline = None,
    component: Component = "worker",
    parameter: Parameter = None,
    as_json: Json = False,
) -> None:
    """Let workers finish their jobs and take no new ones."""
    terms = _terms(parameter, reason, deadline, on_deadline)
    _request("drain", target, as_json, component=component, members=members, parameters=terms)


@op.command("resume")
def op_resume(
    target: Target,
    members: Members,
    component: Component = "worker",
    as_json: Json = False,
) -> None:
    """Return workers to service that an operation drained. A drain set by a person or by Slurm is kept."""
    _request("resume", target, as_json, component=component, members=members, parameters={})


@op.command("remove")
def op_remove(
    target: Target,
    members: Members,
    reason: Reason = "",
    deadline: Deadline = None,
    on_deadline: OnLeavingDeadline = None,
    host_patience: Patience = None,
    remove_homes: RemoveHomes = False,
    component: Component = "worker",
    parameter: Parameter = None,
    as_json: Json = False,
) -> None:
    """Drain workers, then take them out of the cluster and leave their hosts as they were found."""
    terms = _terms(parameter, reason, deadline, on_deadline, host_patience, remove_homes=remove_homes)
    _request("remove", target, as_json, component=component, members=members, parameters=terms)


@op.command("replace")
def op_replace(
    target: Target,
    members: Members,
    allocations: Allocations,
    reason: Reason = "",
    deadline: Deadline = None,
    on_deadline: OnLeavingDeadline = None,
    host_patience: Patience = None,
    remove_homes: RemoveHomes = False,
    component: Component = "worker",
    parameter: Parameter = None,
    as_json: Json = False,
) -> None:
    """Bring in new workers; once they serve, drain and remove the old ones."""
    terms = _terms(parameter, reason, deadline, on_deadline, host_patience, remove_homes=remove_homes)
    _request(
        "replace", target, as_json, component=component, members=members, allocations=allocations, parameters=terms
    )


@op.command("cancel")
def op_cancel(
    target: Target, operation: Annotated[str, typer.Argument(help="Its id or the start of it.")], as_json: Json = False
) -> None:
    """Call an operation off: a drain of ours is undone; what is already being deleted is finished."""
    with as_person() as (client, loaded):
        ended = requests.cancel(client, requests.find_instance(client, loaded, target), operation)
        if as_json:
            view.print_json(ended.model_dump(mode="json"))
        else:
            view.out.print(f"{ended.operation} {ended.id} is {ended.status}")


@get.command("instances")
def get_instances(as_json: Json = False) -> None:
    """Instances of this app in the project."""
    with as_reader() as (client, loaded):
        _list_of(client.instances(app_slug=loaded.app_slug), view.instance_row, as_json, "no instances")


@get.command("members")
def get_members(instance: Which = None, as_json: Json = False) -> None:
    """Members of an instance."""
    with as_reader() as (client, loaded):
        found = client.members(requests.find_instance(client, loaded, instance).id)
        _list_of(found, view.member_row, as_json, "no members")


@get.command("operations")
def get_operations(instance: Which = None, as_json: Json = False) -> None:
    """Operations of an instance and of its members, ended ones too."""
    with as_reader() as (client, loaded):
        one = requests.find_instance(client, loaded, instance)
        found = requests.operations(client, one)
        _list_of(found, lambda operation: view.operation_row(operation, one), as_json, "no operations")


@get.command("allocations")
def get_allocations(as_json: Json = False) -> None:
    """Allocations of the project, and what they serve as."""
    with as_reader() as (client, loaded):
        used: dict[Any, str] = {}
        for one in client.instances(app_slug=loaded.app_slug):
            for member in client.members(one.id) if one.status != "deleted" else []:
                if member.status not in ("deleted", "failed"):
                    used[member.allocation_id] = f"{used.get(member.allocation_id, '')} {member.component_key}".strip()
        _list_of(
            client.allocations(), lambda one: view.allocation_row(one, used), as_json, "no allocations in this project"
        )


def _list_of(found: list[T], row: Callable[[T], view.Row], as_json: bool, empty: str) -> None:
    """For a program the whole objects, for a person the columns that matter."""
    rows: list[Any] = [one.model_dump(mode="json") if as_json else row(one) for one in found]
    view.show(rows, as_json=as_json, empty=empty)


def listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def pairs(texts: list[str] | None) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for text in texts or []:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise RequestError(f"{text!r} is not KEY=VALUE")
        pairs[key] = int(value) if value.isdigit() else value
    return pairs
