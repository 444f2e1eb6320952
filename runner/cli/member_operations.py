"""Commands that request a deploy or an operation on members, and that list records."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel

from runner.act import bundle
from runner.cli import requests, view
from runner.cli.commands import as_operator, as_reader
from runner.cli.options import (
    Allocations,
    Component,
    Deadline,
    HostPatience,
    Json,
    Members,
    OnDeadline,
    OnLeavingDeadline,
    Parameter,
    Reason,
    RemoveHomes,
    Target,
    Which,
    given,
    read_pairs,
    split_list,
)
from runner.observe.find import find_instance

T = TypeVar("T", bound=BaseModel)

get = typer.Typer(help="Read records of the platform, as tables or with --json.", no_args_is_help=True)
op = typer.Typer(help="Request an operation; the runner carries it out.", no_args_is_help=True)


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
    config: dict[str, Any] = {"slurm": read_pairs(slurm)} if slurm else {}
    if users:
        config["users"] = requests.read_users(users)
    if cluster_name:
        config["cluster_name"] = cluster_name
    with as_operator() as (client, loaded):
        made = requests.deploy(
            client,
            loaded,
            controller=controller,
            workers=split_list(workers),
            same_node=same_node,
            name=name,
            config=config,
            app_version=app_version or bundle.version(),
        )
    line = f"instance {made.id} is {made.status}; correlation {made.correlation_id}"
    view.show_record(made, line, "next: gpuaas-slurm run", as_json=as_json)


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
    with as_operator() as (client, loaded):
        made = requests.request(
            client,
            find_instance(client, loaded, target),
            verb,
            component_key=component,
            members=split_list(members),
            allocations=split_list(allocations),
            parameters=parameters,
        )
    view.show_operation(made, as_json=as_json)


@op.command("add")
def op_add(
    target: Target,
    allocations: Allocations,
    component: Component = "worker",
    parameter: Parameter = None,
    as_json: Json = False,
) -> None:
    """Make allocations workers of the cluster, one or many at once."""
    _request("add", target, as_json, component=component, allocations=allocations, parameters=read_pairs(parameter))


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
    terms = {"reason": reason or None, "deadline_seconds": deadline, "on_deadline": on_deadline}
    _request("drain", target, as_json, component=component, members=members, parameters=given(terms, parameter))


@op.command("resume")
def op_resume(
    target: Target,
    members: Members,
    component: Component = "worker",
    as_json: Json = False,
) -> None:
    """Return workers that an operation drained to service. A drain set by a person or by Slurm is kept."""
    _request("resume", target, as_json, component=component, members=members, parameters={})


def _leaving_terms(
    reason: str, deadline: int | None, on_deadline: str | None, host_patience: int | None, remove_homes: bool
) -> dict[str, Any]:
    return {
        "reason": reason or None,
        "deadline_seconds": deadline,
        "on_deadline": on_deadline,
        "host_patience_seconds": host_patience,
        "remove_homes": remove_homes or None,
    }


@op.command("remove")
def op_remove(
    target: Target,
    members: Members,
    reason: Reason = "",
    deadline: Deadline = None,
    on_deadline: OnLeavingDeadline = None,
    host_patience: HostPatience = None,
    remove_homes: RemoveHomes = False,
    component: Component = "worker",
    parameter: Parameter = None,
    as_json: Json = False,
) -> None:
    """Drain workers, then take them out of the cluster and leave their hosts as they were found."""
    terms = _leaving_terms(reason, deadline, on_deadline, host_patience, remove_homes)
    _request("remove", target, as_json, component=component, members=members, parameters=given(terms, parameter))


@op.command("replace")
def op_replace(
    target: Target,
    members: Members,
    allocations: Allocations,
    reason: Reason = "",
    deadline: Deadline = None,
    on_deadline: OnLeavingDeadline = None,
    host_patience: HostPatience = None,
    remove_homes: RemoveHomes = False,
    component: Component = "worker",
    parameter: Parameter = None,
    as_json: Json = False,
) -> None:
    """Bring in new workers; once they serve, drain and remove the old ones."""
    terms = _leaving_terms(reason, deadline, on_deadline, host_patience, remove_homes)
    _request(
        "replace",
        target,
        as_json,
        component=component,
        members=members,
        allocations=allocations,
        parameters=given(terms, parameter),
    )


@op.command("cancel")
def op_cancel(
    target: Target, operation: Annotated[str, typer.Argument(help="Its id or the start of it.")], as_json: Json = False
) -> None:
    """Cancel an operation. A drain that it set is undone; a removal that has begun is finished."""
    with as_operator() as (client, loaded):
        ended = requests.cancel(client, find_instance(client, loaded, target), operation)
    view.show_record(ended, f"{ended.operation} {ended.id} is {ended.status}", as_json=as_json)


@get.command("instances")
def get_instances(as_json: Json = False) -> None:
    """Instances of this app in the project."""
    with as_reader() as (client, loaded):
        _list_of(client.instances(app_slug=loaded.app_slug), view.instance_row, as_json, "no instances")


@get.command("members")
def get_members(instance: Which = None, as_json: Json = False) -> None:
    """Members of an instance."""
    with as_reader() as (client, loaded):
        found = client.members(find_instance(client, loaded, instance).id)
        _list_of(found, view.member_row, as_json, "no members")


@get.command("operations")
def get_operations(instance: Which = None, as_json: Json = False) -> None:
    """Operations of an instance and of its members, ended ones too."""
    with as_reader() as (client, loaded):
        one = find_instance(client, loaded, instance)
        found = requests.operations(client, one)
        _list_of(found, lambda operation: view.operation_row(operation, one), as_json, "no operations")


@get.command("allocations")
def get_allocations(as_json: Json = False) -> None:
    """Allocations of the project, and what they serve as."""
    with as_reader() as (client, loaded):
        used = requests.allocation_uses(client, loaded)
        _list_of(
            client.allocations(), lambda one: view.allocation_row(one, used), as_json, "no allocations in this project"
        )


def _list_of(found: list[T], row: Callable[[T], view.Row], as_json: bool, empty: str) -> None:
    """Whole records for a program, the important columns for a person."""
    rows: list[Any] = [one.model_dump(mode="json") if as_json else row(one) for one in found]
    view.show(rows, as_json=as_json, empty=empty)
