"""Allocations: the machines of projects. The API only reads them; the control API of the sandbox creates them."""

import json

from sandbox.platform import attached, contributions
from sandbox.platform.calls import Call, Reply, operation, shown
from sandbox.platform.errors import not_found
from sandbox.platform.listing import page_of

KIND = "allocation"


@operation("listAllocations")
def list_allocations(call: Call) -> Reply:
    return page_of(call, KIND, parent="")


@operation("getAllocation")
def get_allocation(call: Call) -> Reply:
    return shown(call.tx.get(KIND, call.given.path["allocation_id"], project=call.project), kind=KIND)


@operation("listRuntimeAllocations")
def list_runtime_allocations(call: Call) -> Reply:
    ids = _eligible(call) if "eligible" in call.given.query else _usable(call)
    return page_of(call, KIND, parent="", ids=sorted(ids))


@operation("getRuntimeAllocation")
def get_runtime_allocation(call: Call) -> Reply:
    allocation_id = call.given.path["allocation_id"]
    if allocation_id not in _usable(call) | _eligible(call):
        raise not_found(KIND)
    return shown(call.tx.get(KIND, allocation_id), kind=KIND)


def _of_projects(call: Call, projects: list[str], condition: str) -> set[str]:
    query = f"SELECT id FROM objects WHERE kind=? AND project_id IN (SELECT value FROM json_each(?)) AND {condition}"  # noqa: S608 - a literal of ours
    return {row[0] for row in call.tx.sql.execute(query, (KIND, json.dumps(projects)))}


def _contributed(call: Call) -> set[str]:
    return {row.doc["allocation_id"] for row in contributions.open_ones(call.tx, call.current.doc["id"])}


def _usable(call: Call) -> set[str]:
    """What the path's runtime may use now."""
    return _of_projects(call, [call.current.doc["owner_project_id"]], "1") | _contributed(call)


def _eligible(call: Call) -> set[str]:
    """What may be added to the runtime, or contributed to it, and is not in use."""
    runtime = call.current.doc
    attachments = attached.open_ones(call.tx, runtime["id"])
    contributors = [row.doc["project_id"] for row in attachments if attached.may_contribute(row)]
    unused = f"status='active' AND id NOT IN ({contributions.USED})"
    return _of_projects(call, [runtime["owner_project_id"], *contributors], unused) - _contributed(call)
