"""The policy of the example app, without hosts: what it plans, and what it concludes."""

from base64 import b64decode
from typing import Any

import pytest

from examples.web_farm import members
from examples.web_farm.farm import WEB_FARM
from examples.web_farm.reports import FarmReports
from runner.loop.dry_run import dry_run
from runner.model.entitlements import Entitlements
from runner.model.neighbours import Neighbours
from runner.model.plan import Claim, Play, Refuse, SetInstance, SetMember, SkipPlay, Wait
from runner.model.platform import Member, MemberStatus, Resolution
from runner.model.world import Outcome, World
from tests.unit import worlds
from tests.unit.worlds import ME, NOW, THEIR_CLAIM, allocation, claimed_by_us, fresh_id

FREE = Entitlements(missing=True, required=False)
ALLOCATIONS = {one.id: one for one in (allocation(1), allocation(2), allocation(3))}


def instance(**changes: Any) -> Any:
    fields = {"app_slug": "web-farm", "runtime_backend": "web-farm", "config": {"page": "hello"}}
    return worlds.instance(**fields | changes)


def member(component: str, number: int, status: str = "requested", **detail: Any) -> Member:
    return Member(
        id=fresh_id(),
        app_instance_id=instance().id,
        component_key=component,
        allocation_id=allocation(number).id,
        status=status,
        adapter_detail=detail,
    )


def add(*numbers: int, **changes: Any) -> Any:
    return worlds.add(*numbers, **{"component_key": "web"} | changes)


def farm(*found: Member, **changes: Any) -> World:
    fields: dict[str, Any] = {"instance": instance(), "members": found, "allocations": ALLOCATIONS}
    fields |= {"now": NOW, "runner_id": ME, "neighbours": Neighbours(), "entitlements": FREE}
    return World(**fields | changes)


def test_a_deploy_is_one_play_for_the_balancer_and_its_web_members() -> None:
    steps = dry_run(farm(member("balancer", 1), operations=(add(2, 3),)), WEB_FARM)
    play = steps[-1]
    assert isinstance(play, Play) and play.playbook == "converge" and len(play.members) == 3
    assert set(play.fences) == {one.id for one in play.members}
    assert play.work == {"webs": ["10.0.0.2", "10.0.0.3"]}


def test_a_deny_of_policy_fails_the_members_and_touches_no_host() -> None:
    world = farm(member("balancer", 1), packages=Resolution(decision="deny", rule={"id": "r1"}))
    (skip,) = WEB_FARM.decide(world).steps
    assert isinstance(skip, SkipPlay) and skip.error.code == "artifact_denied"
    (failed,) = (one for one in WEB_FARM.decide(world.after(skip)).steps if isinstance(one, SetMember))
    assert failed.status == MemberStatus.FAILED


@pytest.mark.parametrize(
    ("entitlements", "code"),
    [(Entitlements(), "not_entitled"), (Entitlements(missing=True), "entitlement_policy_missing")],
)
def test_a_project_without_entitlement_gets_no_machine(entitlements: Entitlements, code: str) -> None:
    world = farm(member("balancer", 1), entitlements=entitlements)
    (failed, *_) = (one for one in WEB_FARM.decide(world).steps if isinstance(one, SetMember))
    assert failed.status == MemberStatus.FAILED
    assert failed.detail["last_adapter_error"]["code"] == code


def test_while_entitlements_cannot_be_read_nothing_begins_and_nothing_fails() -> None:
    world = farm(member("balancer", 1), entitlements=Entitlements(held="no answer"))
    assert not any(isinstance(one, SetMember | Claim | Play) for one in WEB_FARM.decide(world).steps)


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        (add(2, operation="drain"), "operation_unknown"),
        (add(2, component_key="balancer"), "operation_unknown"),
        (add(1), "allocation_in_use"),
        (add(2, 2), "allocations_required"),
        (add(9), "allocation_not_found"),
        (worlds.add(operation="remove", component_key="web", allocation_ids=[]), "member_not_found"),
    ],
)
def test_an_operation_that_cannot_be_done_is_refused_with_its_code(operation: Any, code: str) -> None:
    world = farm(member("balancer", 1, "ready"), operations=(operation,), instance=instance(status="running"))
    assert [one.code for one in WEB_FARM.decide(world).steps if isinstance(one, Refuse)] == [code]


def test_an_allocation_of_another_app_is_refused_and_an_unknown_neighbour_waits() -> None:
    lead, running = member("balancer", 1, "ready"), instance(status="running")
    taken = Neighbours({allocation(2).id: "slurm-reference instance 5"})
    (refused,) = WEB_FARM.decide(farm(lead, operations=(add(2),), instance=running, neighbours=taken)).steps[:1]
    assert isinstance(refused, Refuse) and refused.code == "allocation_in_use" and "slurm-reference" in refused.why
    unknown = Neighbours(unreadable="app instance 5")
    world = farm(lead, operations=(claimed_by_us(add(2)),), instance=running, neighbours=unknown)
    assert {type(one) for one in WEB_FARM.decide(world).steps if one.rule == "operations on members"} == {Wait}


def test_another_scope_fails_the_deploy_once_and_plans_no_play() -> None:
    world = farm(member("balancer", 1), instance=instance(control_plane_scope="platform"))
    steps = WEB_FARM.decide(world).steps
    assert [one.status for one in steps if isinstance(one, SetInstance)] == ["failed"]
    assert not any(isinstance(one, Play | Claim) for one in steps)
    again = WEB_FARM.decide(world.later(instance=instance(control_plane_scope="platform", status="failed")))
    assert again.idle


@pytest.mark.parametrize(
    ("snapshot", "status"), [({"10.0.0.2": 200}, "ready"), ({"10.0.0.2": 502}, "reconciling"), (None, "reconciling")]
)
def test_a_web_member_is_ready_only_if_the_balancer_got_its_page(snapshot: Any, status: str) -> None:
    web = member("web", 2, "reconciling")
    world = farm(member("balancer", 1, "ready"), web, snapshot=snapshot)
    assert members.concluded(world, web, Outcome(phase="serving")).status == status


def test_a_balancer_without_web_members_is_ready() -> None:
    lead = member("balancer", 1, "reconciling")
    assert members.concluded(farm(lead, snapshot={}), lead, Outcome(phase="serving")).status == "ready"


def test_a_member_that_another_runner_holds_waits() -> None:
    held = members.before_play(farm(), member("web", 2, **THEIR_CLAIM), "converge")
    assert isinstance(held, Wait)


def test_a_host_may_report_only_what_is_its_own() -> None:
    web = FarmReports(fresh_id(), "web", 3)
    read = web.read({"phase": "x", "detail": {"fence": 9, "host_touched": True}, "snapshot": {"10.0.0.3": 200}}, None)
    assert (read.detail, read.dropped, read.snapshot) == ({"host_touched": True}, ("fence",), None)


def test_the_page_reaches_plays_as_text_and_not_as_a_template() -> None:
    page = "{{ lookup('pipe', 'id') }}"
    shared = WEB_FARM.variables(instance(config={"page": page}), [], []).shared
    assert "{" not in str(shared["farm_page_base64"])
    assert b64decode(shared["farm_page_base64"]).decode() == page


def test_a_decommission_cleans_every_host_and_then_deletes_the_instance() -> None:
    operation = worlds.add(operation="decommission", component_key=None, allocation_ids=[], of_instance=True)
    world = farm(
        member("balancer", 1, "ready"),
        member("web", 2, "ready"),
        instance=instance(status="running"),
        instance_operations=(operation,),
    )
    steps = dry_run(world, WEB_FARM)
    play = steps[-1]
    assert isinstance(play, Play) and play.playbook == "decommission" and len(play.members) == 2
    assert "deleting" in [one.status for one in steps if isinstance(one, SetInstance)]
