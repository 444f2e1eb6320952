"""gpuaas-slurm explain: everything about one request, from the API alone.

Five questions: which instance, which operation, which members, which correlation id, and what the runtime shows.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from runner.cli import requests, view
from runner.cli.commands import as_reader
from runner.cli.options import Json
from runner.model import claims
from runner.model.errors import RequestError
from runner.model.names import host_name
from runner.model.plan import Detail
from runner.model.platform import AppInstance, Member, Operation
from runner.platform.client import Client
from runner.slurm import notes

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
RUNTIME_OF_INSTANCE = {"observed_at", "config_version", "versions", "workers"}


def explain(
    correlation: Annotated[str, typer.Argument(help="A correlation id, or its start (six characters or more).")],
    as_json: Json = False,
) -> None:
    """Everything about one request: its instance, operations and members, and what the runtime shows of them."""
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
    requested = [one for one in operations if matches(one.correlation_id, correlation)]
    own = matches(instance.correlation_id, correlation)
    if not requested and not own:
        return None
    # A platform may give the operations that a deploy seeds the deploy's own id: then this is about the whole instance.
    members = [one for one in client.members(instance.id) if own or is_about(one, requested, correlation)]
    events = [one for one in client.events(instance.id) if matches(str(one.get("correlation_id")), correlation)]
    return explanation(instance, requested, members, events)


def matches(correlation_id: str, start: str) -> bool:
    return correlation_id == start or (len(start) >= SHORTEST and correlation_id.startswith(start))


def is_about(member: Member, operations: Sequence[Operation], correlation: str) -> bool:
    """Whether one of the operations made the member, names it, or drains or removes it."""
    return matches(member.correlation_id or "", correlation) or any(
        claims.is_about(operation, member) for operation in operations
    )


def explanation(
    instance: AppInstance, operations: Sequence[Operation], members: Sequence[Member], events: Sequence[Detail]
) -> Detail:
    shown = notes.instance(instance)
    runtime = {key: value for key, value in shown.stored_fields(RUNTIME_OF_INSTANCE).items() if value is not None}
    carried = {one.correlation_id for one in operations} or {instance.correlation_id}
    return {
        "correlation_ids": sorted(carried),
        "instance": {
            "id": str(instance.id),
            "name": instance.name,
            "status": instance.status,
            "health": instance.health,
            "reasons": [one.stored() for one in shown.reasons or []],
            "lifecycle": shown.lifecycle,
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
                "host": notes.of(one).hostname,
                "status": one.status,
                "error": error.stored() if (error := one.notes.last_adapter_error) else None,
                "runtime": _runtime(one),
            }
            for one in members
        ],
        "runtime": runtime,
        "events": [{"type": one.get("type"), "at": one.get("created_at")} for one in events],
    }


def _runtime(member: Member) -> Detail:
    seen = notes.of(member).stored_fields(RUNTIME)
    return {key: seen[key] for key in RUNTIME if key in seen}


def lines(account: Detail) -> list[str]:
    """The explanation as lines of text: the five answers, each with its error if there is one."""
    instance = account["instance"]
    shown = [f"correlation  {', '.join(account['correlation_ids'])}"]
    shown += [f"instance     {instance['id']} {instance['name'] or ''} is {instance['status']}, {instance['health']}"]
    shown += [line for reason in instance["reasons"] for line in _error_lines(reason)]
    for one in account["operations"]:
        shown += [
            f"operation    {one['operation']} {one['of']} {one['id']} is {one['status']}",
            *_error_lines(one["error"]),
        ]
    for one in account["members"]:
        shown += [f"member       {one['name']} on {one['host'] or 'an unknown host'} is {one['status']}"]
        shown += _error_lines(one["error"])
        shown += [f"             {key}: {value}" for key, value in one["runtime"].items()]
    shown += [f"runtime      {key}: {value}" for key, value in account["runtime"].items()] or [
        "runtime      not seen yet"
    ]
    return shown + [f"event        {one['at']} {one['type']}" for one in account["events"]]


def _error_lines(error: Any) -> list[str]:
    return [f"             {error.get('code')}: {error.get('message')}"] if isinstance(error, dict) else []
