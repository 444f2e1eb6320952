"""Two runners on one project: each leaves alone what the other holds, nothing is done twice, nothing stays claimed.

The platform is real; hosts are simulated: a play takes a moment, records its runner and members, and succeeds.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from runner.act.play_queue import PlaySlot
from runner.loop import tick
from runner.model.plan import Finish, Play, Step, shown, stamp
from runner.model.platform import InstanceStatus, Operation
from runner.model.world import World
from runner.observe.world import observe
from runner.report.leases import LostLease
from runner.slurm import decide as policy
from runner.slurm.components import CONTROLLER
from runner.slurm.decide import decide
from runner.slurm.decide.instance.queue import Verb
from tests.commands import ends
from tests.contract.scene import Scene, race
from tests.contract.simulated_hosts import Hosts, work
from tests.platform_process import Project
from tests.runner_process import environment, gpuaas_slurm
from tests.waits import until


@pytest.fixture
def project(dialable: Project) -> Project:
    return dialable


def test_two_runners_deploy_and_grow_a_cluster_as_one_would(project: Project, hosts: Hosts) -> None:
    made = project.deploy(workers=2)
    path = f"{project.path}/app-instances/{made['id']}"
    summaries = race(project, lambda: project.shown(made)["status"] == "running")
    for allocation_id in project.allocation_ids[3:7]:
        body = {"operation": "add", "component_key": "worker", "allocation_ids": [allocation_id]}
        assert project.operator.post(f"{path}/member-operations", body).status_code == 201

    def over() -> bool:
        return all(one["status"] == "succeeded" for one in project.shown(made, "/member-operations"))

    summaries += race(project, over)
    members, operations = project.shown(made, "/members"), project.shown(made, "/member-operations")
    assert not [problem for summary in summaries for problem in summary.problems]
    assert hosts.overlaps == [], "a member was in two plays at once"
    assert sorted(member["status"] for member in members) == ["ready"] * 7
    joined = [member_id for _, playbook, ids in hosts.runs if playbook != "observe" for member_id in ids]
    assert len(joined) == len(set(joined)) == 7, "a member was played twice"
    assert {operation["attempt"] for operation in operations} == {1}, "an operation was claimed twice"
    assert not [member for member in members if member["adapter_detail"].get("claimed_by")]
    kinds = [event["type"] for event in project.shown(made, "/events")]
    assert sorted(kinds) == ["apps.instance.requested", "apps.instance.running"]


def _carry_out(world: World, operation: Operation) -> list[Step]:
    (controller,) = [one for one in world.members if one.component_key == CONTROLLER]
    if not world.played:
        return [Play("asked for", "observe", (controller,), frozenset({("restart", controller.id)}))]
    return [Finish("done", operation, "succeeded", {})]


def test_two_runners_carry_out_each_instance_operation_once(
    project: Project, hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(policy.VERBS, "restart", Verb((InstanceStatus.RUNNING,), _carry_out))
    made = project.deploy(workers=0)
    race(project, lambda: project.shown(made)["status"] == "running")
    hosts.runs.clear()
    for _ in range(3):
        path = f"{project.path}/app-instances/{made['id']}/operations"
        assert project.operator.post(path, {"operation": "restart"}).status_code == 201

    def over() -> bool:
        return all(one["status"] == "succeeded" for one in project.shown(made, "/operations"))

    race(project, over)
    assert hosts.overlaps == []
    assert len([ids for _, _, ids in hosts.runs if ids]) == 3
    assert {one["attempt"] for one in project.shown(made, "/operations")} == {1}


def test_a_lease_lost_while_a_play_ran_stops_the_runner_before_its_next_write(project: Project, hosts: Hosts) -> None:
    made = project.deploy(workers=0)
    race(project, lambda: project.shown(made)["status"] == "running")
    path = f"{project.path}/app-instances/{made['id']}/member-operations"
    body = {"operation": "add", "component_key": "worker", "allocation_ids": [project.allocation_ids[1]]}
    asked = project.operator.post(path, body).json()
    taken_at: list[str] = []

    def take_over() -> None:
        """Claim the operation as another runner does once the lease has run out."""
        adapter = project.adapter
        past, later = datetime.now(UTC) - timedelta(seconds=5), datetime.now(UTC) + timedelta(minutes=5)
        for change in (
            {"claimed_by": "left", "lease_expires_at": stamp(past)},
            {"status": "running", "claimed_by": "other-runner", "lease_expires_at": stamp(later)},
        ):
            answer = adapter.patch(f"{path}/{asked['id']}", change)
            assert answer.status_code == 200, answer.text
        taken_at.append(str(project.platform.control.audit()[-1]["seq"]))

    hosts.meanwhile = take_over
    with capture_logs() as logs:
        assert work(project, runner_id="left") == []
    assert taken_at, "the worker was played"
    (left,) = [line for line in logs if line["event"] == "left to another runner"]
    assert "other-runner" in left["problem"]
    after = [row for row in project.platform.control.audit() if row["seq"] > int(taken_at[0])]
    assert [row["action"] for row in after if "+left" in row["user_agent"]] == []
    (operation,) = [one for one in project.shown(made, "/member-operations") if one["id"] == asked["id"]]
    assert (operation["status"], operation["claimed_by"]) == ("running", "other-runner")


def test_two_processes_that_fail_the_same_deploy_send_one_event(project: Project) -> None:
    made = project.deploy(workers=2)
    project.platform.control.set_allocation_status(project.project_id, project.allocation_ids[0], "released")
    variables = environment(project)
    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(lambda _: gpuaas_slurm(variables, "run"), range(2)))
    assert all("Traceback" not in one.stderr for one in ended), [one.stderr for one in ended]
    if project.shown(made)["status"] != "failed":  # both may have left it to the other
        ends(gpuaas_slurm(variables, "run"), 1)
    assert project.shown(made)["status"] == "failed"
    kinds = [event["type"] for event in project.shown(made, "/events")]
    assert kinds.count("apps.instance.failed") == 1
    assert {one["status"] for one in project.shown(made, "/member-operations")} == {"failed"}


def repair(scene: Scene) -> None:
    scene.hosts.dead = {scene.worker()}


def follow(scene: Scene) -> None:
    scene.hosts.config_version = "sha256:y"


def configuration(scene: Scene) -> None:
    scene.configure({"slurm": {"MaxJobCount": 5}})


def users(scene: Scene) -> None:
    scene.configure({"users": [{"name": "ada", "uid": 2001}]})


@pytest.mark.parametrize("cause", [repair, follow, configuration, users], ids=lambda cause: cause.__name__)
def test_work_without_an_operation_is_done_by_one_runner_while_the_other_waits(
    scene: Scene, cause: Callable[[Scene], None]
) -> None:
    cause(scene)
    scene.right_comes_in_between()
    assert scene.waits_for_left(), [shown(step) for step in scene.seen]
    assert {who for who, _ in scene.hosts.changing} == {"left"}
    before = len(scene.hosts.changing)
    scene.tick("right")
    assert len(scene.hosts.changing) == before, "it was done, and is not done again"
    scene.is_consistent()


def test_a_repair_in_one_runner_holds_back_a_removal_in_another(scene: Scene) -> None:
    name = scene.worker()
    scene.hosts.dead = {name}
    come = scene.hosts.meanwhile

    def ask_then_come() -> None:
        if scene.hosts.changing:
            scene.ask("remove", name)
            scene.hosts.meanwhile = come
            scene.tick("right")
            member = scene.members()[name]
            assert (member["status"], member["adapter_detail"]["claimed_by"]) == ("ready", "left")
            assert scene.hosts.changing == [("left", "add_worker")]

    scene.hosts.runs.clear()
    scene.hosts.numbers.clear()
    scene.hosts.meanwhile = ask_then_come
    scene.tick("left")
    assert scene.hosts.changing[0] == ("left", "add_worker")
    for _ in range(3):
        scene.tick("right")
    member = scene.members()[name]
    assert member["status"] == "deleted" and name not in scene.hosts.nodes
    assert [who for who, playbook in scene.hosts.changing if playbook == "remove_worker"] == ["right"]
    scene.is_consistent()


def test_two_runners_that_read_the_same_world_do_not_both_get_the_claim(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    configuration(scene)
    scene.hosts.runs.clear()
    together, met = threading.Barrier(2), threading.local()

    def read_together(*arguments: Any, **more: Any) -> World:
        world = observe(*arguments, **more)
        if not getattr(met, "yet", False):
            met.yet = True
            together.wait(30)
        return world

    monkeypatch.setattr(tick, "observe", read_together)
    mark = scene.project.platform.control.requests()["last"]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(scene.tick, ("left", "right")))
    rows = scene.project.platform.control.requests(mark)["requests"]
    assert [row for row in rows if row["status"] in (409, 412)], "no write conflicted"
    assert len(scene.hosts.changing) == 1
    scene.is_consistent()


def test_a_lease_lost_between_the_claim_and_the_play_stops_the_tick(scene: Scene) -> None:
    """The runner was suspended right after its claim, for longer than its lease."""
    scene.ask("remove", scene.worker())
    scene.hosts.runs.clear()
    with scene.begun_tick("left") as one:
        one._write(decide(one._world))
        assert one._report.writer.claimed, "the operation is claimed"
        one._report.claims.renewal._good_until = 0
        with pytest.raises(LostLease):
            one._write(decide(one._world))
        with pytest.raises(LostLease):
            one._act(Play("too late", "remove_worker", ()), PlaySlot(requested=True, hosts=1, forks=1))
    assert scene.hosts.runs == []
    assert scene.members()[scene.worker()]["status"] == "ready"


def test_a_lease_is_renewed_before_the_play_begins(scene: Scene) -> None:
    scene.ask("drain", scene.worker())
    with scene.begun_tick("left") as one:
        one._report.claims.renewal._lease_seconds = 0.6
        one._write(decide(one._world))
        (claimed,) = one._report.writer.claimed.values()
        until(lambda: one._report.writer.claimed[claimed.id].etag != claimed.etag, 10, "the lease is renewed")
        assert not one._report.claims.renewal.is_lost
