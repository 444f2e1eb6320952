"""Commands that request a deploy or an operation on members, and that list records."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from runner.act import bundle
from runner.cli import follow, requests, tables, view
from runner.cli.commands import as_operator, as_reader
from runner.cli.options import (
    Allocations,
    Answer,
    AppVersion,
    Component,
    Credential,
    Deadline,
    Form,
    HostPatience,
    Json,
    Members,
    OnDeadline,
    OnLeavingDeadline,
    OperatorAccount,
    Output,
    Parameter,
    Reason,
    RemoveHomes,
    Target,
    Timeout,
    Wait,
    Which,
    chosen_form,
    given,
    read_pairs,
    split_list,
)
from runner.observe.find import find_instance

get = typer.Typer(help="Read records of the platform, as tables or with --json.", no_args_is_help=True)
op = typer.Typer(help="Request an operation; the runner carries it out.", no_args_is_help=True)


def deploy(
    controller: Annotated[str, typer.Option(help="Allocation of the controller: id, start of an id, or name.")],
    workers: Annotated[str, typer.Option(help="Allocations of the first workers, comma separated.")] = "",
    same_node: Annotated[bool, typer.Option("--same-node", help="The controller's host is a worker too.")] = False,
    name: Annotated[str | None, typer.Option(help="Display name.")] = None,
    slurm: Annotated[list[str] | None, typer.Option(help="A slurm.conf setting KEY=VALUE, repeatable.")] = None,
    cluster_name: Annotated[str | None, typer.Option(help="Slurm's ClusterName; default: made from the id.")] = None,
    users: Annotated[Path | None, typer.Option(help="A JSON file with the list of users, as config.users.")] = None,
    app_version: AppVersion = None,
    access_credential: Credential = None,
    operator_account: OperatorAccount = None,
    as_json: Json = False,
    wait: Wait = False,
    timeout: Timeout = None,
) -> None:
    """Request a cluster. The runner builds it."""
    answer = Answer(as_json, wait, timeout)
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
            access_credential=access_credential,
            operator_account=operator_account,
        )
        follow.answer_deploy(client, loaded, made, answer)


def _request(
    verb: str,
    target: str,
    answer: Answer,
    *,
    component: str,
    members: str = "",
    allocations: str = "",
    parameters: dict[str, Any],
) -> None:
    with as_operator() as (client, loaded):
        instance = find_instance(client, loaded, target)
        made = requests.request(
            client,
            instance,
            verb,
            component_key=component,
            members=split_list(members),
            allocations=split_list(allocations),
            parameters=parameters,
        )
        follow.answer_operation(client, loaded, instance, made, answer)


@op.command("add")
def op_add(
    target: Target,
    allocations: Allocations,
    component: Component = "worker",
    as_json: Json = False,
    wait: Wait = False,
    timeout: Timeout = None,
) -> None:
    """Make allocations workers of the cluster, one or many at once."""
    _request(
        "add",
        target,
        Answer(as_json, wait, timeout),
        component=component,
        allocations=allocations,
        parameters={},
    )


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
    wait: Wait = False,
    timeout: Timeout = None,
) -> None:
    """Let workers finish their jobs and take no new ones."""
    terms = {"reason": reason or None, "deadline_seconds": deadline, "on_deadline": on_deadline}
    _request(
        "drain",
        target,
        Answer(as_json, wait, timeout),
        component=component,
        members=members,
        parameters=given(terms, parameter),
    )


@op.command("resume")
def op_resume(
    target: Target,
    members: Members,
    component: Component = "worker",
    as_json: Json = False,
    wait: Wait = False,
    timeout: Timeout = None,
) -> None:
    """Return workers that an operation drained to service. A drain set by a person or by Slurm is kept."""
    _request("resume", target, Answer(as_json, wait, timeout), component=component, members=members, parameters={})


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
    wait: Wait = False,
    timeout: Timeout = None,
) -> None:
    """Drain workers, then take them out of the cluster and leave their hosts as they were found."""
    terms = _leaving_terms(reason, deadline, on_deadline, host_patience, remove_homes)
    _request(
        "remove",
        target,
        Answer(as_json, wait, timeout),
        component=component,
        members=members,
        parameters=given(terms, parameter),
    )


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
    wait: Wait = False,
    timeout: Timeout = None,
) -> None:
    """Bring in new workers; once they serve, drain and remove the old ones."""
    terms = _leaving_terms(reason, deadline, on_deadline, host_patience, remove_homes)
    _request(
        "replace",
        target,
        Answer(as_json, wait, timeout),
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
def get_instances(as_json: Json = False, output: Output = Form.TABLE) -> None:
    """Instances of this app in the project."""
    form = chosen_form(output, as_json)
    with as_reader() as (client, loaded):
        found = client.instances(app_slug=loaded.app_slug)
    _show(found, [view.instance_row(one) for one in found], tables.INSTANCES, form, "no instances")


@get.command("members")
def get_members(instance: Which = None, as_json: Json = False, output: Output = Form.TABLE) -> None:
    """Members of an instance."""
    form = chosen_form(output, as_json)
    with as_reader() as (client, loaded):
        one = find_instance(client, loaded, instance)
        open_now = requests.operations(client, one, status="accepted,running") if form is not Form.JSON else []
        records = follow.read_records(client, loaded, one, open_now)
    found, rows = records.members, [records.member_row(member) for member in records.members]
    _show(found, rows, tables.MEMBERS, form, "no members")


@get.command("operations")
def get_operations(instance: Which = None, as_json: Json = False, output: Output = Form.TABLE) -> None:
    """Operations of an instance and of its members, ended ones too."""
    form = chosen_form(output, as_json)
    with as_reader() as (client, loaded):
        one = find_instance(client, loaded, instance)
        found = requests.operations(client, one)
        rows = []
        if form is not Form.JSON:
            records = follow.read_records(client, loaded, one, found)
            rows = [records.operation_row(operation) for operation in found]
    _show(found, rows, tables.OPERATIONS, form, "no operations")


@get.command("allocations")
def get_allocations(as_json: Json = False, output: Output = Form.TABLE) -> None:
    """Allocations of the project, and what they serve as."""
    form = chosen_form(output, as_json)
    with as_reader() as (client, loaded):
        used = requests.allocation_uses(client, loaded)
        found = client.allocations()
    rows = [view.allocation_row(one, used) for one in found]
    _show(found, rows, tables.ALLOCATIONS, form, "no allocations in this project")


def _show(
    found: Sequence[BaseModel], rows: Sequence[view.Row], columns: tables.Columns, form: Form, empty: str
) -> None:
    """Whole records for a program, a table for a person."""
    if form is Form.JSON:
        view.print_json([one.model_dump(mode="json") for one in found])
    else:
        view.show([tables.Section(columns, rows, empty)], wide=form is Form.WIDE)
