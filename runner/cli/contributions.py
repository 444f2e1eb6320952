"""gpuaas-slurm shared contribute and withdraw: what a project does, with GPUAAS_PROJECT_ID and its own token."""

import uuid
from typing import Annotated

import typer

from runner.cli import view
from runner.cli.options import Json, given_id, split_list
from runner.cli.shared_records import as_project
from runner.model.errors import RequestError
from runner.model.platform import Operation
from runner.observe.find import find_member
from runner.slurm.app import SLURM

NOT_SUPPORTED = "contribution_not_supported"
Org = Annotated[str, typer.Option(help="The tenant's id.")]
RuntimeId = Annotated[str, typer.Option("--runtime", help="The shared runtime's id.")]


def contribute(
    allocations: Annotated[str, typer.Option(help="Ids of the project's allocations, comma separated.")],
    access_credential: Annotated[str, typer.Option(help="Id of the project's ssh credential that opens them.")],
    org: Org,
    runtime: RuntimeId,
) -> None:
    """A project: let machines of yours be workers of the shared cluster. This version refuses it: not supported yet."""
    with as_project(org, runtime) as (_, _, project):
        named = [given_id(one, "an allocation") for one in split_list(allocations)]
        given_id(access_credential, "an access credential")
        raise RequestError(
            f"{NOT_SUPPORTED}: nothing was requested for {len(named)} allocations of project {project}, because this"
            " version cannot use contributed workers yet. The tenant's administrator can add reserved workers of the"
            " owner project: gpuaas-slurm op add"
        )


def withdraw(
    members: Annotated[str, typer.Option(help="The workers, comma separated: id, start of an id, or node name.")],
    org: Org,
    runtime: RuntimeId,
    deadline: Annotated[int | None, typer.Option(help="Seconds to wait for their jobs; default: no limit.")] = None,
    as_json: Json = False,
) -> None:
    """A project: take workers that you contributed out again. They are drained, then their hosts are cleaned."""
    with as_project(org, runtime) as (client, runtime_id, _):
        listed = client.members(runtime_id)
        body = {
            "operation": "remove",
            "component_key": "worker",
            "member_ids": [str(find_member(listed, one, SLURM).id) for one in split_list(members)],
            "parameters": {} if deadline is None else {"deadline_seconds": deadline},
        }
        made = client.create_operation(runtime_id, body, key=uuid.uuid4().hex)
    _answer(made, "withdrawal", as_json=as_json)


def _answer(made: Operation, what: str, *, as_json: bool) -> None:
    view.show_record(made, f"{what} {made.id} is {made.status}; correlation {made.correlation_id}", as_json=as_json)


def add_to(shared: typer.Typer) -> None:
    shared.command("contribute")(contribute)
    shared.command("withdraw")(withdraw)
