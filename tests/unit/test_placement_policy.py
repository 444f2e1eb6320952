"""Entitlement, regions and SKUs: what a cluster may get, and that everything but a clear yes is a no."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from runner.intent import placement_policy
from runner.intent.errors import IntentError
from runner.model.entitlements import Entitlement, Entitlements
from runner.model.plan import Claim, Finish, NewMember, Refuse, SetInstance, SetMember, Step
from runner.model.world import World
from runner.slurm.decide import decide
from tests.unit.worlds import (
    PROJECT,
    THEIR_CLAIM,
    add,
    allocation,
    claimed_by_us,
    deployed,
    entitled,
    of_kind,
    settle,
    worker,
    world,
)

OFF = Entitlements((Entitlement(id=UUID(int=11), project_id=PROJECT, app_slug="slurm-reference", status="disabled"),))
BOTH = Entitlements((*entitled(PROJECT).listed, *OFF.listed))
UNKNOWN = Entitlements(
    (Entitlement(id=UUID(int=11), project_id=PROJECT, app_slug="slurm-reference", status="on_probation"),)
)
OTHER_APP = Entitlements((Entitlement(id=UUID(int=11), project_id=PROJECT, app_slug="another", status="enabled"),))
SILENT = Entitlements(held="whether the project may use the app cannot be read (api_unreachable)")
NOT_KEPT = Entitlements(missing=True, required=False)
HERE: dict[str, Any] = {"region": "north", "sku": "h100"}

# What the platform answered, the instance's policy, and the code of the refusal.
DENIALS = [
    (OFF, {}, "not_entitled"),
    (BOTH, {}, "not_entitled"),
    (UNKNOWN, {}, "not_entitled"),
    (OTHER_APP, {}, "not_entitled"),
    (entitled(UUID(int=99)), {}, "not_entitled"),
    (Entitlements(), {}, "not_entitled"),
    (Entitlements(missing=True), {}, "entitlement_policy_missing"),
    (Entitlements(unreadable="HTTP 403"), {}, "entitlement_unreadable"),
    (Entitlements(entitled(PROJECT).listed, unreadable="one record"), {}, "entitlement_unreadable"),
    (entitled(PROJECT), {"regions": ["south", "west"]}, "region_denied"),
    (entitled(PROJECT), {"regions": []}, "region_denied"),
    (entitled(PROJECT), {"skus": ["b200"]}, "sku_denied"),
    (NOT_KEPT, {"skus": ["b200"]}, "sku_denied"),
]
NO_POLICY: list[Any] = [
    None,
    {},
    [],
    "north",
    {"regions": None},
    {"regions": "north", "skus": None},
    {"regions": [1], "skus": None},
]


def policy(**limits: Any) -> dict[str, Any]:
    return {"regions": None, "skus": None} | limits


def placed(start: World, entitlements: Entitlements, limits: Any) -> World:
    """The world on machines of one region and SKU, with this answer and this policy."""
    return start.later(
        instance=start.instance.model_copy(update={"effective_policy": limits}),
        entitlements=entitlements,
        allocations={one.id: one.model_copy(update=HERE) for one in start.allocations.values()},
    )


def replacement(start: World) -> World:
    old = worker(add(2), 2, status="ready")
    return start.later(members=(*start.members, old), operations=(add(3, operation="replace", member_ids=[old.id]),))


STARTS: dict[str, Callable[[], World]] = {
    "add": lambda: deployed(operations=(add(3),)),
    "replace": lambda: replacement(deployed()),
}


def concluded(start: World) -> list[Step]:
    """The steps up to a play, none of which may touch a host."""
    _, steps, play = settle(start, decide)
    assert play is None or play.playbook == "observe"
    assert not of_kind(steps, NewMember) and not of_kind(steps, Claim)
    return steps


@pytest.mark.parametrize(("answer", "limits", "code"), DENIALS)
def test_a_deploy_that_policy_does_not_allow_fails_before_any_host(
    answer: Entitlements, limits: dict[str, Any], code: str
) -> None:
    steps = concluded(placed(world(operations=(add(2),)), answer, policy(**limits)))
    (failed,) = of_kind(steps, SetMember)
    (reported,) = of_kind(steps, SetInstance)
    (refused,) = of_kind(steps, Refuse)
    assert (failed.status, reported.status, refused.code) == ("failed", "failed", code)
    assert failed.detail["last_adapter_error"]["code"] == code
    assert {one.rule for one in (failed, reported, refused)} == {"deploy only where policy allows"}


@pytest.mark.parametrize("verb", STARTS)
@pytest.mark.parametrize(("answer", "limits", "code"), DENIALS)
def test_an_add_or_replace_that_policy_does_not_allow_is_refused(
    answer: Entitlements, limits: dict[str, Any], code: str, verb: str
) -> None:
    steps = concluded(placed(STARTS[verb](), answer, policy(**limits)))
    (refused,) = of_kind(steps, Refuse)
    assert (refused.code, refused.rule) == (code, "refuse workers where policy does not allow them")
    assert not of_kind(steps, SetMember) and not of_kind(steps, Finish), "the members that serve stay as they are"


@pytest.mark.parametrize("limits", NO_POLICY)
def test_a_policy_that_cannot_be_read_allows_nothing(limits: Any) -> None:
    for start in (world(), deployed(operations=(add(3),))):
        steps = concluded(placed(start, entitled(PROJECT), limits))
        codes = {one.detail["last_adapter_error"]["code"] for one in of_kind(steps, SetMember)}
        assert codes | {one.code for one in of_kind(steps, Refuse)} == {"effective_policy_unreadable"}


@pytest.mark.parametrize("limits", [{}, {"regions": ["north"]}, {"regions": ["south", "north"], "skus": ["h100"]}])
def test_what_every_limit_allows_is_deployed_and_joined(limits: dict[str, Any]) -> None:
    for start, playbook in ((world(), "deploy"), (deployed(operations=(add(3),)), "add_worker")):
        _, _, play = settle(placed(start, entitled(PROJECT), policy(**limits)), decide)
        assert play and play.playbook == playbook


def test_a_platform_without_entitlements_is_used_only_with_the_setting() -> None:
    _, _, play = settle(placed(world(), NOT_KEPT, None), decide)
    assert play and play.playbook == "deploy"
    with pytest.raises(IntentError, match="GPUAAS_ENTITLEMENT_POLICY=none"):
        placement_policy.check_entitled(Entitlements(missing=True), [PROJECT], "slurm-reference")


@pytest.mark.parametrize("answer", [SILENT, None], ids=["no answer", "not read"])
def test_without_an_answer_nothing_begins_and_nothing_fails(answer: Any) -> None:
    joining = claimed_by_us(add(3))
    begun = worker(joining, 3)
    for start in (
        world(operations=(add(2),)),
        *(make() for make in STARTS.values()),
        deployed(begun, operations=(joining,)),
    ):
        steps = concluded(placed(start, answer, policy()))
        assert not of_kind(steps, Refuse) and not of_kind(steps, SetMember)
        assert any("nothing begins" in one.why for one in steps)


def test_a_machine_without_a_region_is_outside_of_every_list_of_regions() -> None:
    with pytest.raises(IntentError, match=r"region of allocation .* is not given") as refused:
        placement_policy.check_allocation(entitled(PROJECT), policy(regions=["north"]), allocation(2))
    assert "effective_policy.regions allows north" in refused.value.message


def test_a_refusal_names_its_rule_and_prints_nothing_that_could_harm_a_terminal() -> None:
    odd = Entitlements((OFF.listed[0].model_copy(update={"status": "\x1b[2J" * 100}),))
    with pytest.raises(IntentError) as refused:
        placement_policy.check_entitled(odd, [PROJECT], "slurm-reference")
    assert f"entitlement {UUID(int=11)} is ?[2J" in refused.value.message
    assert refused.value.message.isprintable() and len(refused.value.message) < 500


def test_a_worker_whose_bootstrap_has_not_begun_fails_when_the_entitlement_ends() -> None:
    operation = claimed_by_us(add(3))
    start = deployed(worker(operation, 3), operations=(operation,))
    _, steps, play = settle(placed(start, OFF, policy()), decide)
    assert [one.detail["last_adapter_error"]["code"] for one in of_kind(steps, SetMember)] == ["not_entitled"]
    assert [one.error["code"] for one in of_kind(steps, Finish)] == ["not_entitled"]
    assert play is None or play.playbook == "observe"


def test_a_worker_whose_bootstrap_has_begun_is_finished_when_the_entitlement_ends() -> None:
    operation = claimed_by_us(add(3))
    start = deployed(worker(operation, 3, status="reconciling"), operations=(operation,))
    _, steps, play = settle(placed(start, OFF, policy()), decide)
    assert play and play.playbook == "add_worker" and not of_kind(steps, Refuse)


def test_what_another_runner_has_begun_is_left_to_it() -> None:
    operation = add(3, 4, status="running", **THEIR_CLAIM)
    _, steps, _ = settle(placed(deployed(worker(operation, 3), operations=(operation,)), OFF, policy()), decide)
    assert not of_kind(steps, Refuse) and not of_kind(steps, SetMember)
