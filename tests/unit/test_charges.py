"""Who pays for the machines of a shared runtime, as `plan`, `shared attach` and `shared who` say it."""

from uuid import UUID

from runner.slurm.charges import charges
from tests.unit.lifecycle import serving
from tests.unit.test_follow_attachments import A, B, shared
from tests.unit.worlds import PROJECT


def test_the_owner_pays_for_its_own_machines_and_each_contributor_for_its_workers() -> None:
    workers = [serving(3), serving(4, source_project_id=B), serving(5, source_project_id=A), serving(6)]
    workers[-1] = workers[-1].model_copy(update={"status": "deleted"})
    now = shared()
    found = {one.project_id: one.sentence for one in charges(now.instance, [*now.members, *workers])}
    assert found == {
        PROJECT: f"project {PROJECT} pays for 1 controller, 2 reserved workers",
        A: f"project {A} pays for 1 contributed worker",
        B: f"project {B} pays for 1 contributed worker",
    }
    assert next(iter(found)) == PROJECT


def test_each_machine_is_paid_for_once() -> None:
    now = shared()
    members = [*now.members, *(serving(number, source_project_id=UUID(int=number)) for number in range(3, 9))]
    counted = [
        one.controllers + one.reserved_workers + one.contributed_workers for one in charges(now.instance, members)
    ]
    assert sum(counted) == len(members)
