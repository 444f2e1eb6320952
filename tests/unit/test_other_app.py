"""The core serves any app: one whose components are called director and painter goes through every part of it."""

from typing import Any
from uuid import UUID

import pytest

from runner import settings
from runner.act import dns, inventory
from runner.act.play_queue import PlaySlot
from runner.act.play_secrets import Access
from runner.act.plays import PlayError, play, stopped_result
from runner.loop.dry_run import dry_run
from runner.model import neighbours, progress
from runner.model.errors import RequestError
from runner.model.names import host_name
from runner.model.plan import AdapterError, Claim, Finish, NewMember, Play, SetInstance
from runner.model.platform import Member, Operation
from runner.model.world import Policy, World
from runner.observe.find import find_member
from runner.observe.world import observe
from runner.platform.contract import DEFAULT
from runner.report.leases import LostLease
from runner.report.ownership import check_still_ours
from runner.slurm.app import SLURM
from runner.translate import RunResult, translate
from tests.other_app import STUDIO, StudioReports, StudioSettings
from tests.unit import worlds
from tests.unit.worlds import ME, NOW, PROJECT, allocation, claimed_by_us, entitled, fresh_id, of_kind

ALLOCATIONS = {one.id: one for one in (allocation(1), allocation(2), allocation(3))}
ERROR = AdapterError("play_stalled", "it hangs", "retryable")


def instance() -> Any:
    return worlds.instance(app_slug="studio", runtime_backend="easel", config={"palette": "warm"})


def member(component: str, number: int, **changes: Any) -> Member:
    fields: dict[str, Any] = {"id": fresh_id(), "app_instance_id": UUID(int=7), "status": "requested"}
    return Member(**fields | {"component_key": component, "allocation_id": allocation(number).id} | changes)


def director(**changes: Any) -> Member:
    return member("director", 1, **changes)


def painter(number: int, **changes: Any) -> Member:
    return member("painter", number, **changes)


def hire(*numbers: int, **changes: Any) -> Operation:
    return worlds.add(*numbers, **{"operation": "hire", "component_key": "painter"} | changes)


def studio(*members: Member, **changes: Any) -> World:
    return World(
        **{"instance": instance(), "now": NOW, "runner_id": ME, "members": members, "allocations": ALLOCATIONS}
        | changes
    )


# -- act -----------------------------------------------------------------------------------------------------


def test_the_inventory_has_the_apps_components_as_groups() -> None:
    lead, other = director(), painter(2)
    tree, problems = inventory.build(STUDIO, instance(), [other, lead], ALLOCATIONS, {"varnish": 7})
    assert problems == {}
    groups, hosts = tree["all"]["children"], tree["all"]["hosts"]
    (own,) = (content for name, content in groups.items() if name.startswith("instance_"))
    assert {name: list(content["hosts"]) for name, content in groups.items() if content is not own} == {
        "director": [host_name(lead)],
        "painter": [host_name(other)],
    }
    assert hosts[host_name(lead)]["studio_work"] == {"varnish": 7}
    assert "studio_work" not in hosts[host_name(other)]
    assert own["vars"] | {"studio_director": host_name(lead), "studio_palette": "warm"} == own["vars"]


def test_members_get_the_checked_address_of_their_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    lead = director()
    tree, _ = inventory.build(STUDIO, instance(), [lead, painter(2)], ALLOCATIONS)
    monkeypatch.setattr(dns, "_addresses", lambda host: [host.replace("10.0.0", "198.51.100")])
    assert dns.resolve_hosts(tree, STUDIO) == {}
    (own,) = (content for name, content in tree["all"]["children"].items() if name.startswith("instance_"))
    assert own["vars"]["studio_director_address"] == "198.51.100.1"


@pytest.mark.parametrize("app", [STUDIO, SLURM])
def test_a_member_of_a_component_that_the_app_lacks_is_a_problem(app: Any) -> None:
    foreign = member("plumber", 2)
    tree, problems = inventory.build(app, instance(), [foreign], ALLOCATIONS)
    assert tree["all"]["hosts"] == {} and problems[foreign.id].code == "component_unknown"


@pytest.mark.parametrize(("status", "failed"), [("ready", [2]), ("reconciling", [1, 2])])
def test_a_stopped_play_gives_a_ready_lead_no_error(status: str, failed: list[int]) -> None:
    members = (director(status=status), painter(2))
    run = stopped_result(RunResult(), Play("test", "paint", members), ERROR, STUDIO)
    assert [number for number, one in enumerate(members, 1) if one.id in run.outcomes] == failed


def test_a_member_in_a_final_phase_of_the_app_keeps_its_result_in_a_stopped_play() -> None:
    lead, other = director(), painter(2)
    events = [report(one, "painting", "e1") for one in (lead, other)]
    result = translate(events, readers(lead, other))
    run = stopped_result(result, Play("test", "paint", (lead, other)), ERROR, STUDIO)
    assert [one.error for one in run.outcomes.values()] == [None, None]


def test_a_play_that_needs_its_lead_is_not_run_without_it(
    loaded: settings.Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead, other = director(), painter(2)
    world = studio(lead, other, allocations=ALLOCATIONS | {allocation(1).id: allocation(1, status="released")})

    def run(needs_lead: bool) -> RunResult:
        step = Play("test", "paint", (lead, other), needs_lead=needs_lead)
        slot = PlaySlot(requested=True, hosts=2, forks=1)
        return play(step, world, STUDIO, Access({}), loaded, on_member_event=print, give_up=lambda: False, slot=slot)

    def not_run(**_: Any) -> Any:
        raise PlayError("ansible-playbook was started")

    monkeypatch.setattr("ansible_runner.run", not_run)
    assert list(run(needs_lead=True).outcomes) == [lead.id]
    with pytest.raises(PlayError):
        run(needs_lead=False)


# -- translate -----------------------------------------------------------------------------------------------


def readers(*members: Member) -> dict[str, StudioReports]:
    return {host_name(one): StudioReports(one.id) for one in members}


def report(one: Member, phase: str, easel: str) -> dict[str, Any]:
    result = {"member_report": {"phase": phase, "easel": easel}}
    data = {"host": host_name(one), "task_action": "member_report", "res": result}
    return {"event": "runner_on_ok", "event_data": data}


def test_reports_of_a_play_become_outcomes_of_the_apps_members() -> None:
    lead, other = director(), painter(2)
    run = translate([report(lead, "painting", "e1"), report(other, "sketching", "e2")], readers(lead, other))
    assert [(one.phase, one.detail) for one in run.outcomes.values()] == [
        ("painting", {"easel": "e1"}),
        ("sketching", {"easel": "e2"}),
    ]


# -- observe and decide --------------------------------------------------------------------------------------


def test_a_dry_run_predicts_a_deploy_up_to_its_play() -> None:
    steps = dry_run(studio(director(), operations=(hire(2, 3),)), STUDIO)
    assert [type(one) for one in steps] == [Claim, NewMember, NewMember, Claim, Play]
    (planned,) = of_kind(steps, Play)
    assert sorted(one.component_key for one in planned.members) == ["director", "painter", "painter"]
    assert set(planned.fences) == {one.id for one in planned.members}


def test_a_dry_run_predicts_how_a_studio_opens() -> None:
    ready = [director(status="ready"), painter(2, status="ready")]
    operation = claimed_by_us(hire(2))
    ready[1] = ready[1].written("ready", {"operation_id": str(operation.id)})
    steps = dry_run(studio(*ready, operations=(operation,)), STUDIO)
    assert [type(one) for one in steps] == [Finish, SetInstance]


class Platform:
    """Records of one instance, as observe reads them."""

    project = PROJECT
    contract = DEFAULT

    def __init__(self, members: list[Member], operations: list[Operation]) -> None:
        self._members, self._operations = members, operations
        self.asked_for_instances = False

    def now(self) -> Any:
        return NOW

    def members(self, _: UUID) -> Any:
        return Records(self._members)

    def member_operations(self, *_: Any, **__: Any) -> Any:
        return Records(self._operations)

    def instance_operations(self, *_: Any, **__: Any) -> Any:
        return Records()

    def attachments(self, _: UUID) -> Any:
        return Records()

    def allocations(self) -> Any:
        return list(ALLOCATIONS.values())

    def instances(self) -> Any:
        self.asked_for_instances = True
        return Records()


class Records(list[Any]):
    unreadable: tuple[Any, ...] = ()


def observed(platform: Any, loaded: settings.Settings) -> World:
    return observe(platform, instance(), loaded, STUDIO, read_entitlements=entitled)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> settings.Settings:
    monkeypatch.setenv("GPUAAS_BASE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("GPUAAS_PROJECT_ID", str(PROJECT))
    monkeypatch.setenv("GPUAAS_VARNISH_SECONDS", "9")
    return settings.load(STUDIO.settings)


def test_decisions_get_the_apps_own_settings_and_no_others(loaded: settings.Settings) -> None:
    policy: Policy[StudioSettings] = observed(Platform([director()], []), loaded).policy
    assert type(policy.app) is StudioSettings and policy.app.model_dump() == {"varnish_seconds": 9}


def test_a_wrong_setting_of_the_app_is_named(loaded: settings.Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUAAS_VARNISH_SECONDS", "0")
    with pytest.raises(settings.SettingsError, match="GPUAAS_VARNISH_SECONDS: "):
        settings.load(STUDIO.settings)


@pytest.mark.parametrize(
    ("members", "operations", "asked"),
    [
        ([director()], [], True),
        ([director(status="ready")], [], False),
        ([director(status="ready"), painter(2)], [], False),
        ([director(status="ready")], [hire(2)], True),
        ([director(status="ready")], [hire(2, operation="dismiss")], False),
    ],
)
def test_neighbours_are_read_before_a_deploy_or_a_joining_operation(
    members: list[Member], operations: list[Operation], asked: bool, loaded: settings.Settings
) -> None:
    platform = Platform(members, operations)
    world = observed(platform, loaded)
    assert platform.asked_for_instances is asked
    assert world.neighbours == (neighbours.Neighbours() if asked else None)


def test_an_operation_is_under_way_on_members_beside_the_lead() -> None:
    operation = hire(2)
    made = {"operation_id": str(operation.id)}
    assert progress.operation_under_way(painter(2, adapter_detail=made), STUDIO.components) == operation.id
    assert progress.operation_under_way(director(adapter_detail=made), STUDIO.components) is None


def test_a_person_may_call_a_member_by_its_hosts_own_name() -> None:
    lead, other = director(), painter(2, adapter_detail={"easel": "e2", "worker_hostname": "w2"})
    assert find_member([lead, other], "e2", STUDIO) == other
    assert find_member([lead, other], host_name(lead), STUDIO) == lead
    with pytest.raises(RequestError):
        find_member([lead, other], "w2", STUDIO)


# -- report --------------------------------------------------------------------------------------------------


class Holder:
    """The platform's answer about the operation of a member."""

    def __init__(self, operation: Operation) -> None:
        self._operation = operation

    def member_operation(self, _: UUID, __: UUID) -> Operation:
        return self._operation

    instance_operation = member_operation


def ours(newest: Member, operation: Operation) -> bool:
    try:
        check_still_ours(Holder(operation), ME, UUID(int=7), newest, [], STUDIO.components)  # type: ignore[arg-type]
    except LostLease:
        return False
    return True


def test_a_lead_that_comes_up_is_held_by_its_own_claim_and_others_by_their_operation() -> None:
    operation = claimed_by_us(hire(2))
    made = {"operation_id": str(operation.id)}
    taken = operation.model_copy(update={"claimed_by": "other"})
    assert not ours(director(status="reconciling", adapter_detail=made), operation)
    assert ours(director(status="reconciling", adapter_detail=made | {"claimed_by": ME}), taken)
    assert ours(painter(2, status="reconciling", adapter_detail=made), operation)
    assert not ours(painter(2, status="reconciling", adapter_detail=made | {"claimed_by": ME}), taken)
