"""On a platform that makes no operations at a deploy, the adapter requests the first workers once, and never again."""

from typing import Any

import pytest

from runner.loop.dry_run import dry_run
from runner.model.plan import NewMember, NewOperation, shown
from runner.model.platform import MemberStatus
from runner.slurm.app import SLURM
from tests.unit.worlds import add, allocation, controller, instance, of_kind, worker, world

INTENT = {
    "mode": "split",
    "controller_allocation_id": str(allocation(1).id),
    "worker_allocation_ids": [str(allocation(number).id) for number in (2, 3)],
}


def requested(**changes: Any) -> list[NewOperation]:
    fields: dict[str, Any] = {
        "instance": instance(status="requested", placement_intent=INTENT),
        "members": (controller(status="requested", allocation_id=allocation(1).id),),
        "history": (),
    }
    found: list[NewOperation] = of_kind(dry_run(world(**fields | changes), SLURM), NewOperation)
    return found


def test_the_first_workers_are_requested_together_and_then_added() -> None:
    (step,) = requested()
    assert (step.verb, step.component_key) == ("add", "worker")
    assert step.allocation_ids == (allocation(2).id, allocation(3).id)
    assert shown(step)["step"] == "request add"
    steps = dry_run(
        world(
            instance=instance(status="requested", placement_intent=INTENT),
            members=(controller(status="requested", allocation_id=allocation(1).id),),
            history=(),
        ),
        SLURM,
    )
    assert len(of_kind(steps, NewMember)) == 2, "the operation is carried out like any other"


def test_a_platform_that_makes_the_operations_gets_no_request() -> None:
    assert requested(history=None) == []


@pytest.mark.parametrize("status", ["accepted", "running", "succeeded", "failed", "cancelled"])
def test_an_operation_that_names_them_is_never_repeated_however_it_ended(status: str) -> None:
    assert requested(history=(add(2, 3, status=status),)) == []


def test_a_worker_that_was_removed_is_not_added_again_without_its_operation() -> None:
    gone = worker(add(2), 2, status=MemberStatus.DELETED)
    (step,) = requested(members=(controller(status="requested", allocation_id=allocation(1).id), gone))
    assert step.allocation_ids == (allocation(3).id,)
