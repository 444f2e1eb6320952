"""Allocations: the machines of a project. The API only shows them; the sandbox's control makes them."""

from sandbox.platform.api import Call, Reply, operation, shown
from sandbox.platform.errors import not_found
from sandbox.platform.listing import page_of

KIND = "allocation"


@operation("listAllocations")
def list_allocations(call: Call) -> Reply:
    return page_of(call, KIND, of_instance=False)


@operation("getAllocation")
def get_allocation(call: Call) -> Reply:
    row = call.tx.find(KIND, call.given.path["allocation_id"], project=call.project)
    if row is None:
        raise not_found(KIND)
    return shown(row, kind=KIND)
