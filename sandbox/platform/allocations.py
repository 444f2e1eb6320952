"""Allocations: the machines of a project. The API only reads them; the control API of the sandbox creates them."""

from sandbox.platform.api import Call, Reply, operation, shown
from sandbox.platform.listing import page_of

KIND = "allocation"


@operation("listAllocations")
def list_allocations(call: Call) -> Reply:
    return page_of(call, KIND, of_instance=False)


@operation("getAllocation")
def get_allocation(call: Call) -> Reply:
    return shown(call.tx.get(KIND, call.given.path["allocation_id"], project=call.project), kind=KIND)
