"""gpuaas-slurm shared contributor, which is the tenant's consent, and contribute and withdraw: what a project does.

A project uses GPUAAS_PROJECT_ID and its own token.
"""

import uuid
from typing import Annotated

import typer

from runner.cli import view
from runner.cli.options import Json, given_id, split_list
from runner.cli.shared_records import ROOT_WARNING, as_administrator, as_project
from runner.model.errors import RequestError
from runner.model.platform import Operation
from runner.observe.find import find_member
from runner.slurm.app import SLURM

Org = Annotated[str, typer.Option(help="The tenant's id.")]
RuntimeId = Annotated[str, typer.Option("--runtime", help="The shared runtime's id.")]


def contributor(
    project: Annotated[str, typer.Argument(help="The project's id, or the start of it.")],
    allow: Annotated[
        bool, typer.Option("--allow/--deny", help="Whether it may contribute workers from now on.")
    ] = True,
    trusted: Annotated[
        bool | None,
        typer.Option("--trusted/--not-trusted", help="Whether hosts on which others can become root count."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say whether an attached project may contribute workers. Those that are there stay until they are withdrawn."""
    if trusted and not allow:
        raise RequestError("--trusted goes with --allow: pass both, or --deny alone")
    terms = {"may_contribute": allow} | ({} if allow and trusted is None else {"trusted_contributor": bool(trusted)})
    with as_administrator() as runtime:
        attachment = runtime.attachment(project)
        if allow:
            view.err.print(ROOT_WARNING.format(attachment.project_id))
        done = "may contribute workers" if allow else "may contribute no more workers"
        changed = runtime.change(attachment, terms)
    view.show_record(changed, f"project {changed.project_id} {done}", as_json=as_json)


def contribute(
    allocations: Annotated[str, typer.Option(help="Ids of the project's allocations, comma separated.")],
    access_credential: Annotated[str, typer.Option(help="Id of the project's ssh credential that opens them.")],
    org: Org,
    runtime: RuntimeId,
    as_json: Json = False,
) -> None:
    """A project: let machines of yours be workers of the shared cluster. You go on paying for them.

    A host on which others than the credential's owner can become root is refused, unless the tenant trusts the project.
    """
    with as_project(org, runtime) as (client, runtime_id, project):
        body = {
            "operation": "add",
            "component_key": "worker",
            "allocation_ids": [given_id(one, "an allocation") for one in split_list(allocations)],
            "access_credential_id": given_id(access_credential, "an access credential"),
        }
        view.err.print(ROOT_WARNING.format(project))
        view.err.print(f"project {project} goes on paying for what it contributes")
        made = client.create_operation(runtime_id, body, key=uuid.uuid4().hex)
    _answer(made, "contribution", as_json=as_json)


def withdraw(
    members: Annotated[str, typer.Option(help="The workers, comma separated: id, start of an id, or node name.")],
    org: Org,
    runtime: RuntimeId,
    deadline: Annotated[int | None, typer.Option(help="Seconds to wait for their jobs; default: no limit.")] = None,
    as_json: Json = False,
) -> None:
    """A project: take workers that you contributed out again. They are drained, then their hosts are cleaned.

    The cluster's munge key was readable there: the tenant's operator should request rotate_credentials afterwards.
    """
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
    shared.command("contributor")(contributor)
    shared.command("contribute")(contribute)
    shared.command("withdraw")(withdraw)
