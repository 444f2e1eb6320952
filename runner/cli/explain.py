"""gpuaas-slurm explain: one request from every side, from the API alone.

Five questions: which instance, which operation, which members, which correlation id, and what the runtime says.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from runner.cli import requests, view
from runner.cli.commands import Json, as_reader
from runner.model.errors import RequestError
from runner.model.names import host_name
from runner.model.plan import Detail
from runner.model.platform import AppInstance, Member, Operation
from runner.platform.client import Client

SHORTEST = 6
RUNTIME = (
    "phase",
    "node_state",
    "slurmctld_state",
    "slurmd_state",
    "drain_reason",
    "jobs_remaining",
    "slurm_version",
    "last_runtime_observed_at",
)


def explain(
    correlation: Annotated[str, typer.Argument(help="A correlation id, or its start (six characters or more).")],
    as_json: Json = False,
) -> None:
    """One request from every side: its instance, operations and members, and what the runtime says of them."""
    with as_reader() as (client, loaded):
        found = [
            account
            for instance in client.instances(app_slug=loaded.app_slug)
            if (account := _account(client, instance, correlation))
        ]
    if not found:
        raise RequestError(
            f"no record of this project has the correlation id {correlation}. gpuaas-slurm get operations lists them"
        )
    if as_json:
        view.print_json(found)
    else:
        view.out.print("\n\n".join("\n".join(lines(one)) for one in found), markup=False, soft_wrap=True)


def _account(client: Client, instance: AppInstance, correlation: str) -> Detail | None:
    operations = requests.operations(client, instance)
    asked = [one for one in operations if is_meant(one.correlation_id, correlation)]
    own = is_meant(instance.correlation_id, correlation)
    if not asked and not own:
        return None
    # A platform may give the operations that a deploy seeds the deploy's own id: then this is about the whole instance.
    members = [one for one in client.members(instance.id) if own or is_about(one, asked, correlation)]
    events = [one for one in client.events(instance.id) if is_meant(str(one.get("correlation_id")), correlation)]
    return tell(instance, asked, members, events)


def is_meant(known: str, asked: str) -> bool:
    return known == asked or (len(asked) >= SHORTEST and known.startswith(asked))


def is_about(member: Member, operations: Sequence[Operation], correlation: str) -> bool:
    """Made by one of the operations, named by it, or on its way out because of it."""
    ids = {str(operation.id) for operation in operations}
    leaving = member.adapter_detail.get("leave") or {}
    return (
        is_meant(member.correlation_id or "", correlation)
        or any(member.id in operation.member_ids for operation in operations)
        or member.adapter_detail.get("operation_id") in ids
        or leaving.get("operation_id") in ids
    )


def tell(
    instance: AppInstance, operations: Sequence[Operation], members: Sequence[Member], events: Sequence[Detail]
) -> Detail:
    said = instance.status_detail or {}
    carried = {one.correlation_id for one in operations} or {instance.correlation_id}
    return {
        "correlation_ids": sorted(carried),
        "instance": {
            "id": str(instance.id),
            "name": instance.name,
            "status": instance.status,
            "health": instance.health,
            "reasons": said.get("reasons") or [],
            "lifecycle": said.get("lifecycle"),
        },
        "operations": [
            {
                "id": str(one.id),
                "operation": one.operation,
                "of": "instance" if one.of_instance else one.component_key,
                "status": one.status,
                "requested_by": one.requested_by,
                "created_at": str(one.created_at) if one.created_at else None,
                "error": one.error,
            }
            for one in operations
        ],
        "members": [
            {
                "id": str(one.id),
                "name": host_name(one),
                "host": one.adapter_detail.get("controller_hostname") or one.adapter_detail.get("worker_hostname"),
                "status": one.status,
                "error": one.adapter_detail.get("last_adapter_error"),
                "runtime": {key: value for key in RUNTIME if (value := one.adapter_detail.get(key)) is not None},
            }
            for one in members
        ],
        "runtime": {key: said[key] for key in ("observed_at", "config_version", "versions", "workers") if key in said},
        "events": [{"type": one.get("type"), "at": one.get("created_at")} for one in events],
    }


def lines(account: Detail) -> list[str]:
    """The same for a person: the five answers, each with its cause where something went wrong."""
    instance = account["instance"]
    shown = [f"correlation  {', '.join(account['correlation_ids'])}"]
    shown += [f"instance     {instance['id']} {instance['name'] or ''} is {instance['status']}, {instance['health']}"]
    shown += [f"             {reason.get('code')}: {reason.get('message')}" for reason in instance["reasons"]]
    for one in account["operations"]:
        shown += [
            f"operation    {one['operation']} {one['of']} {one['id']} is {one['status']}",
            *_because(one["error"]),
        ]
    for one in account["members"]:
        shown += [f"member       {one['name']} on {one['host'] or 'an unknown host'} is {one['status']}"]
        shown += _because(one["error"])
        shown += [f"             {key}: {value}" for key, value in one["runtime"].items()]
    shown += [f"runtime      {key}: {value}" for key, value in account["runtime"].items()] or [
        "runtime      not seen yet"
    ]
    return shown + [f"event        {one['at']} {one['type']}" for one in account["events"]]


def _because(error: Any) -> list[str]:
    return [f"             {error.get('code')}: {error.get('message')}"] if isinstance(error, dict) else []
