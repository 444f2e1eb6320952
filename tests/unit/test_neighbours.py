"""Other instances of the project: their allocations are refused, and a left-over host is not taken for one in use."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from ansible.module_utils.host import claim as host_claim

from runner.act import inventory
from runner.model import neighbours
from runner.model.errors import Forbidden, NotFound, PlatformError, Rejected, Unavailable
from runner.model.neighbours import Neighbours
from runner.model.plan import AdapterError, Claim, NewMember, Refuse, SetMember, Wait
from runner.model.platform import AppInstance, Member, Unreadable
from runner.model.scope import ProjectScope
from runner.model.world import Outcome, World
from runner.observe import left_over, other_instances
from runner.slurm.app import SLURM
from runner.slurm.components import COMPONENTS
from runner.slurm.decide import decide
from runner.slurm.member_reports import MemberReports
from runner.translate import RunResult, translate
from tests.unit.worlds import ME, NOW, PROJECT, add, allocation, claimed_by_us, controller, entitled, instance, worker

OTHER = UUID(int=8)
OUR_APP = instance().app_slug


class Records(list[Any]):
    """A list of records, with those that could not be read beside it."""

    unreadable: tuple[Any, ...] = ()


class Platform:
    """What neighbours ask a client for; an exception in place of an answer is raised."""

    def __init__(self, found: Any, members: dict[UUID, Any] | None = None) -> None:
        self._found, self._members = found, members or {}
        self.scope = ProjectScope(UUID(int=1))
        self.asked: list[str] = []
        self.at_once = threading.Barrier(1)  # how many lists must be asked for before one is returned

    @contextlib.contextmanager
    def clone(self, *, patience: float, timeout: float) -> Iterator["Platform"]:
        assert patience == 0 and timeout < 5, "another instance delays ours by a few seconds at most"
        yield self

    def instances(self) -> Any:
        self.asked.append("instances")
        return self._answer(self._found)

    def members(self, instance_id: UUID) -> Any:
        self.asked.append(f"members {instance_id}")
        self.at_once.wait(10)
        return self._answer(self._members[instance_id])

    def instance(self, instance_id: UUID) -> Any:
        self.asked.append(f"instance {instance_id}")
        return self._answer(self._found)

    def _answer(self, answer: Any) -> Any:
        if isinstance(answer, PlatformError):
            raise answer
        return answer


def other(status: str = "running", app_slug: str = "other-app", **changes: Any) -> AppInstance:
    return instance(id=OTHER, status=status, app_slug=app_slug, **changes)


def odd(**raw: Any) -> Records:
    """A list with one record, which cannot be read, with what can be seen of it all the same."""
    made = Records([])
    made.unreadable = (Unreadable("record", "r-1", "correlation_id: Field required", **raw),)
    return made


def member(number: int, status: str = "ready") -> Member:
    return controller(id=uuid4(), allocation_id=UUID(int=100 + number), status=status)


def read(platform: Platform) -> Neighbours:
    return other_instances.read(platform, instance())  # type: ignore[arg-type]


@pytest.mark.parametrize("status", ["requested", "reconciling", "ready", "draining", "deleting", "failed"])
def test_an_allocation_is_another_instances_in_any_status_but_deleted(status: str) -> None:
    platform = Platform(Records([instance(), other()]), {OTHER: Records([member(2, status), member(3, "deleted")])})
    assert read(platform).holders == {UUID(int=102): f"other-app instance {OTHER}"}
    assert platform.asked == ["instances", f"members {OTHER}"]


def test_a_deleted_instance_has_no_allocation_and_is_not_asked_about() -> None:
    platform = Platform(Records([other("deleted")]))
    assert read(platform) == Neighbours({})
    assert platform.asked == ["instances"]


@pytest.mark.parametrize("refusal", [Forbidden("no"), NotFound("gone")])
def test_instances_that_may_not_be_read_are_skipped(refusal: PlatformError) -> None:
    assert read(Platform(Records([other()]), {OTHER: refusal})) == Neighbours({})


def test_a_list_that_we_may_not_read_is_not_an_error() -> None:
    assert read(Platform(Forbidden("no"))) == Neighbours()


def test_a_platform_that_does_not_answer_ends_the_tick() -> None:
    with pytest.raises(Unavailable):
        read(Platform(Unavailable("down")))


FAILURES = [Unavailable("500"), Unavailable("no list", code="bad_answer"), Rejected("400")]
THIRD = instance(id=UUID(int=9))


@pytest.mark.parametrize("error", FAILURES)
def test_a_member_list_of_another_app_that_the_platform_fails_to_give_is_named(error: PlatformError) -> None:
    """Hosts of another app carry no mark of ours."""
    platform = Platform(Records([other(), THIRD]), {OTHER: error, THIRD.id: Records([member(3)])})
    found = read(platform)
    assert found.unreadable == f"the member list of instance {OTHER}"
    assert list(found.holders) == [UUID(int=103)], "the other lists are read all the same"


@pytest.mark.parametrize("error", FAILURES)
def test_a_member_list_of_our_app_that_does_not_come_is_left_to_the_hosts_mark(error: PlatformError) -> None:
    platform = Platform(Records([other(app_slug=OUR_APP), THIRD]), {OTHER: error, THIRD.id: Records([member(3)])})
    found = read(platform)
    assert found.unreadable is None and list(found.holders) == [UUID(int=103)]


def test_member_lists_are_read_side_by_side() -> None:
    platform = Platform(Records([other(), THIRD]), {OTHER: Records([member(2)]), THIRD.id: Records([member(3)])})
    platform.at_once = threading.Barrier(2)
    assert sorted(read(platform).holders) == [UUID(int=102), UUID(int=103)]


@pytest.mark.parametrize("slug", [OUR_APP, None])
def test_an_instance_that_cannot_be_read_and_may_be_of_our_app_is_named(slug: str | None) -> None:
    assert read(Platform(odd(app_slug=slug, status="running"))).unreadable == "app instance r-1"
    assert read(Platform(odd(app_slug=slug))).unreadable == "app instance r-1"


@pytest.mark.parametrize(("slug", "status"), [("other-app", "running"), ("other-app", None), (OUR_APP, "deleted")])
def test_an_odd_instance_of_another_app_or_a_deleted_one_delays_nothing(slug: str, status: str | None) -> None:
    assert read(Platform(odd(app_slug=slug, status=status))) == Neighbours({})


@pytest.mark.parametrize("status", ["ready", None])
def test_a_member_of_our_app_that_cannot_be_read_is_named(status: str | None) -> None:
    platform = Platform(Records([other(app_slug=OUR_APP)]), {OTHER: odd(status=status)})
    assert read(platform).unreadable == f"member r-1 of instance {OTHER}"


@pytest.mark.parametrize(("slug", "status"), [("other-app", "ready"), (OUR_APP, "deleted")])
def test_an_odd_member_of_another_app_or_a_deleted_one_delays_nothing(slug: str, status: str) -> None:
    assert read(Platform(Records([other(app_slug=slug)]), {OTHER: odd(status=status)})) == Neighbours({})


# -- when they are asked about -------------------------------------------------------------------------------


def test_neighbours_matter_only_while_something_is_about_to_begin() -> None:
    adding = add(2, 3)
    assert neighbours.matter([], [controller()], COMPONENTS)
    assert not neighbours.matter([], [controller(status="reconciling")], COMPONENTS)
    assert not neighbours.matter([], [controller(adapter_detail={"stopped": {"was": "ready"}})], COMPONENTS)
    assert neighbours.matter([adding], [worker(adding, 2)], COMPONENTS)
    assert not neighbours.matter([adding], [worker(adding, 2), worker(adding, 3)], COMPONENTS)
    assert not neighbours.matter([add(2, operation="drain")], [], COMPONENTS)


# -- what is decided -----------------------------------------------------------------------------------------


def world(**changes: Any) -> World:
    fields: dict[str, Any] = {
        "instance": instance(status="running"),
        "now": NOW,
        "runner_id": ME,
        "members": (controller(status="ready", adapter_detail={"controller_hostname": "gs-1"}),),
        "allocations": {one.id: one for one in map(allocation, range(1, 5))},
        "entitlements": entitled(PROJECT),
    }
    return World(**(fields | changes))


def test_an_add_of_another_instances_allocation_is_refused_and_names_it() -> None:
    operation = add(2)
    plan = decide(world(operations=(operation,), neighbours=Neighbours({UUID(int=102): "other-app instance 8"})))
    refused = [step for step in plan.steps if isinstance(step, Refuse)]
    assert [(step.code, step.why) for step in refused] == [
        ("allocation_in_use", f"allocation {UUID(int=102)} serves other-app instance 8: remove it there first")
    ]
    assert plan.play is None or plan.play.playbook == "observe"


def test_an_add_that_has_begun_is_left_to_the_hosts_mark() -> None:
    operation = claimed_by_us(add(2))
    begun = world(
        operations=(operation,),
        members=(controller(status="ready"), worker(operation, 2)),
        neighbours=Neighbours({UUID(int=102): "other-app instance 8"}),
    )
    assert not [step for step in decide(begun).steps if isinstance(step, Refuse)]


@pytest.mark.parametrize("operation", [add(2), claimed_by_us(add(2))])
def test_an_add_waits_while_a_neighbours_record_cannot_be_read(operation: Any) -> None:
    plan = decide(world(operations=(operation,), neighbours=Neighbours({}, "member m-1 of instance 8")))
    assert not [step for step in plan.steps if isinstance(step, NewMember | Refuse)]
    assert any(isinstance(step, Wait) and "m-1" in step.why for step in plan.steps)


def test_a_deploy_on_another_instances_allocation_fails_before_any_play() -> None:
    holders = {UUID(int=101): "other-app instance 8"}
    plan = decide(world(instance=instance(), members=(controller(),), neighbours=Neighbours(holders)))
    failed = [step for step in plan.steps if isinstance(step, SetMember)]
    assert plan.play is None and [step.status for step in failed] == ["failed"]
    assert failed[0].detail["last_adapter_error"]["code"] == "allocation_in_use"
    assert "other-app instance 8" in failed[0].detail["last_adapter_error"]["message"]


def test_a_deploy_waits_while_a_neighbours_record_cannot_be_read() -> None:
    plan = decide(world(instance=instance(), members=(controller(),), neighbours=Neighbours({}, "app instance x")))
    assert plan.play is None and not any(isinstance(step, Claim | SetMember) for step in plan.steps)


# -- a host that names its instance ---------------------------------------------------------------------------


def failed_event(error: dict[str, Any]) -> dict[str, Any]:
    data = {"host": "worker-1", "task": "Look at the host", "res": {"msg": "no", "adapter_error": error}}
    return {"event": "runner_on_failed", "event_data": data}


@pytest.mark.parametrize(("named", "read_as"), [(str(OTHER), OTHER), ("../../x", None), (7, None), (None, None)])
def test_the_instance_that_a_host_names_is_read_as_an_id_or_not_at_all(named: Any, read_as: UUID | None) -> None:
    error = {"code": "host_in_use", "message": "in use", "class": "intervention", "instance": named}
    run = translate([failed_event(error)], {"worker-1": MemberReports(UUID(int=5), "worker")})
    found = run.outcomes[UUID(int=5)].error
    assert found is not None and found.instance == read_as
    assert found.as_note(NOW).stored().get("instance") == (str(read_as) if read_as else None)


def error_after(answer: Any, code: str = "host_in_use") -> AdapterError:
    error = AdapterError(code, "as the host reported", instance=OTHER)
    run = left_over.name_left_over_hosts(Platform(answer), RunResult({UUID(int=5): Outcome(error=error)}))  # type: ignore[arg-type]
    found = run.outcomes[UUID(int=5)].error
    assert found is not None
    return found


@pytest.mark.parametrize("answer", [NotFound("no such instance"), other("deleted")])
def test_a_mark_of_an_instance_that_is_gone_is_left_over_and_names_the_command(answer: Any) -> None:
    error = error_after(answer)
    assert error.code == "host_left_over"
    assert f"playbooks/clean_host.yml -e gpuaas_clean_instance={OTHER}" in error.message


@pytest.mark.parametrize("answer", [other(), other("failed"), Forbidden("no"), Unavailable("down")])
def test_a_mark_of_an_instance_that_exists_or_cannot_be_read_is_in_use(answer: Any) -> None:
    assert error_after(answer) == AdapterError("host_in_use", "as the host reported", instance=OTHER)


def test_the_platform_is_not_asked_about_other_errors() -> None:
    assert error_after(AssertionError("asked"), "disk_full").code == "disk_full"


def test_host_and_runner_name_the_same_clean_up_command() -> None:
    assert left_over.CLEAN_UP == host_claim.CLEAN_UP


# -- variables of the play -----------------------------------------------------------------------------------


def test_a_play_gets_the_hosts_that_the_instance_has_changed() -> None:
    operation = add(2, 3, 4)
    members = [
        controller(adapter_detail={"host_touched": True}),
        worker(operation, 2, adapter_detail={"host_touched": True, "host_cleaned": True}),
        worker(operation, 3),
    ]
    before = worker(operation, 3, status="deleted", adapter_detail={"host_touched": True})
    allocations = {one.id: one for one in map(allocation, range(1, 5))}
    tree, _ = inventory.build(SLURM, instance(), members, allocations, on_record=[*members, before])
    seen = {one["gpuaas_allocation_id"][-2:]: one["gpuaas_host_touched"] for one in tree["all"]["hosts"].values()}
    assert seen == {"65": True, "66": False, "67": True}
