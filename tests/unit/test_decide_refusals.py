"""decide, by example: requests and intents that are refused, and what is left alone."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from runner.model.plan import Announce, Refuse
from runner.slurm.decide import decide
from tests.unit.worlds import (
    NOW,
    add,
    allocation,
    claimed_by_another,
    claimed_by_us,
    controller,
    deployed,
    instance,
    not_found,
    of_kind,
    settle,
    worker,
    world,
)


def test_a_live_lease_of_another_runner_is_left_alone() -> None:
    operation = add(2, status="running", claimed_by="other", lease_expires_at=NOW + timedelta(seconds=1))
    plan = decide(deployed(operations=(operation,)))
    assert plan.idle and "other" in plan.steps[0].why


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"component_key": "controller"}, "second_controller"),
        ({"component_key": "controller", "operation": "drain"}, "controller_not_supported"),
        ({"component_key": "gpu-fairy"}, "component_unknown"),
        ({"operation": "explode"}, "operation_unknown"),
        ({"allocation_ids": []}, "allocations_required"),
        ({"allocation_ids": [UUID(int=104), UUID(int=104)]}, "allocation_twice"),
        ({"allocation_ids": [UUID(int=999)]}, "allocation_not_found"),
        ({"allocation_ids": [UUID(int=101)]}, "allocation_is_controller"),
    ],
)
def test_what_cannot_be_done_is_refused_at_once_and_touches_nothing(changes: Any, code: str) -> None:
    start = deployed(operations=(add(4, **changes),))
    plan = decide(start.later(allocations={**start.allocations, UUID(int=999): not_found(899)}))
    (refusal,) = plan.steps
    assert isinstance(refusal, Refuse) and refusal.code == code and refusal.why


def test_an_allocation_that_serves_is_refused_and_one_that_failed_before_is_taken() -> None:
    earlier = add(4)
    serving = deployed(worker(earlier, 4, status="ready"), operations=(add(4),))
    (refusal,) = of_kind(decide(serving).steps, Refuse)
    assert refusal.code == "allocation_in_use"
    failed = deployed(worker(earlier, 4, status="failed"), operations=(add(4),))
    _, _, play = settle(failed, decide)
    assert play is not None


@pytest.mark.parametrize("whose", ["unclaimed", "ours", "another runner's"])
def test_of_two_open_adds_of_one_allocation_the_later_is_refused(whose: str) -> None:
    earlier, later = add(4, created_at=NOW - timedelta(minutes=2)), add(4, 5)
    if whose == "ours":
        earlier = claimed_by_us(earlier)
    elif whose == "another runner's":
        earlier = claimed_by_another(earlier)
    _, steps, play = settle(deployed(operations=(earlier, later)), decide)
    (refusal,) = of_kind(steps, Refuse)
    assert (refusal.operation.id, refusal.code) == (later.id, "allocation_in_use")
    joining = [one for one in play.members if one.component_key == "worker"] if play else []
    assert [one.allocation_id for one in joining] == ([] if whose == "another runner's" else [UUID(int=104)])


@pytest.mark.parametrize("status", ["releasing", "released", "failed", "release_failed", "something-new"])
def test_no_play_runs_on_an_allocation_that_is_not_active(status: str) -> None:
    start = deployed(operations=(add(4),))
    start = start.later(allocations={**start.allocations, UUID(int=104): allocation(4, status=status)})
    end, _, play = settle(start, decide)
    assert play is None
    (member,) = [one for one in end.members if one.component_key == "worker"]
    assert member.status == "failed"
    assert member.adapter_detail["last_adapter_error"]["code"] == "allocation_not_active"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"placement_intent": None}, "placement_invalid"),
        ({"placement_intent": {"mode": "magic", "controller_allocation_id": str(UUID(int=101))}}, "placement_invalid"),
        (
            {"placement_intent": {"mode": "same_node", "controller_allocation_id": str(UUID(int=101))}},
            "placement_invalid",
        ),
        ({"config": {"slurm": {"SlurmUser": "root"}}}, "config_invalid"),
        ({"config": {"slurm": {"Prolog": "/bin/evil"}}}, "config_invalid"),
        ({"config": {"slurm": {"MessageTimeout": "10\nSlurmUser=root"}}}, "config_invalid"),
        ({"config": {"cluster_name": "{{ lookup('file', '/etc/passwd') }}"}}, "config_invalid"),
        ({"config": {"surprise": 1}}, "config_invalid"),
    ],
)
def test_an_intent_that_cannot_be_used_fails_the_deploy_with_its_reason_everywhere(changes: Any, code: str) -> None:
    end, steps, play = settle(world(instance=instance(**changes), operations=(add(2),)), decide)
    assert play is None
    assert (end.instance.status, end.instance.health) == ("failed", "unhealthy")
    assert end.members[0].adapter_detail["last_adapter_error"]["code"] == code
    assert [refusal.code for refusal in of_kind(steps, Refuse)] == [code]
    assert [event.kind for event in of_kind(steps, Announce)] == ["apps.instance.failed"]


def test_two_controller_members_fail_the_deploy() -> None:
    second = controller(id=UUID(int=0xC1 << 120))
    end, _, play = settle(world(members=(controller(), second)), decide)
    assert play is None and end.instance.status == "failed"


def test_an_unknown_instance_operation_is_refused() -> None:
    dance = add(component_key=None, operation="dance", of_instance=True)
    (refusal,) = decide(deployed(instance_operations=(dance,))).steps
    assert isinstance(refusal, Refuse) and refusal.code == "operation_unknown"


def test_an_instance_with_an_unknown_status_is_not_touched() -> None:
    plan = decide(world(instance=instance(status="hibernating")))
    assert plan.idle
