"""Two runners on one project: what one holds the other leaves alone, nothing is done twice at once, nothing is left.

The platform is real; hosts are not: a play takes a moment, notes who ran it on whom, and succeeds.
"""

import fcntl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from runner.act.play_queue import PlaySlot
from runner.loop import run as loop
from runner.loop import shared, tick
from runner.loop.dry_run import dry_run
from runner.loop.process_lock import ProcessLock
from runner.model.names import CONTROLLER
from runner.model.plan import Claim, Finish, Play, SetInstance, SetMember, Step, Wait, shown, stamp
from runner.model.platform import InstanceStatus, Operation
from runner.model.world import World
from runner.observe.world import observe
from runner.platform.client import Client
from runner.report.leases import LostLease, Outdated
from runner.report.reporter import Reporter
from runner.settings import Settings
from runner.slurm import decide as policy
from runner.slurm.app import SLURM
from runner.slurm.decide import decide
from runner.slurm.decide.instance.queue import Verb
from tests.commands import ends
from tests.contract.simulated_hosts import Hosts
from tests.platform_process import Doc, Platform, Project
from tests.runner_process import environment, gpuaas_slurm, settings
from tests.waits import until


@pytest.fixture
def project(dialable: Project) -> Project:
    return dialable


def listed(project: Project, instance_id: str, what: str) -> list[Doc]:
    found: list[Doc] = project.operator.get(f"{project.path}/app-instances/{instance_id}/{what}").json()["items"]
    return found


def instance_of(project: Project, instance_id: str) -> Doc:
    found: Doc = project.operator.get(f"{project.path}/app-instances/{instance_id}").json()
    return found


def race(project: Project, done: Callable[[], bool], **changes: Any) -> list[shared.Summary]:
    """Two runners tick side by side, started together each time, until it is done."""
    runners = [settings(project, runner_id=name, **changes) for name in ("left", "right")]
    together = threading.Barrier(len(runners))
    summaries: list[shared.Summary] = []

    def one(own: Settings) -> shared.Summary:
        with Client(own) as client:
            together.wait(30)
            return loop.run(client, own, SLURM)

    with ThreadPoolExecutor(len(runners)) as pool:
        for _ in range(15):
            summaries += pool.map(one, runners)
            if done():
                return summaries
    raise AssertionError("two runners do not get it done")


def test_two_runners_deploy_and_grow_a_cluster_as_one_would(project: Project, hosts: Hosts) -> None:
    made = project.deploy(workers=2)
    path = f"{project.path}/app-instances/{made['id']}"
    summaries = race(project, lambda: instance_of(project, made["id"])["status"] == "running")
    for allocation_id in project.allocation_ids[3:7]:
        body = {"operation": "add", "component_key": "worker", "allocation_ids": [allocation_id]}
        assert project.operator.post(f"{path}/member-operations", body).status_code == 201

    def over() -> bool:
        return all(one["status"] == "succeeded" for one in listed(project, made["id"], "member-operations"))

    summaries += race(project, over)
    members, operations = listed(project, made["id"], "members"), listed(project, made["id"], "member-operations")
    assert not [problem for summary in summaries for problem in summary.problems]
    assert hosts.overlaps == [], "a member was in two plays at once"
    assert sorted(member["status"] for member in members) == ["ready"] * 7
    joined = [member_id for _, playbook, ids in hosts.runs if playbook != "observe" for member_id in ids]
    assert len(joined) == len(set(joined)) == 7, "a member was played twice"
    assert {operation["attempt"] for operation in operations} == {1}, "an operation was claimed twice"
    assert not [member for member in members if member["adapter_detail"].get("claimed_by")]
    kinds = [event["type"] for event in listed(project, made["id"], "events")]
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
    race(project, lambda: instance_of(project, made["id"])["status"] == "running")
    hosts.runs.clear()
    for _ in range(3):
        path = f"{project.path}/app-instances/{made['id']}/operations"
        assert project.operator.post(path, {"operation": "restart"}).status_code == 201

    def over() -> bool:
        return all(one["status"] == "succeeded" for one in listed(project, made["id"], "operations"))

    race(project, over)
    assert hosts.overlaps == []
    assert len([ids for _, _, ids in hosts.runs if ids]) == 3
    assert {one["attempt"] for one in listed(project, made["id"], "operations")} == {1}


def test_a_lease_lost_while_a_play_ran_stops_the_runner_before_its_next_write(project: Project, hosts: Hosts) -> None:
    made = project.deploy(workers=0)
    race(project, lambda: instance_of(project, made["id"])["status"] == "running")
    path = f"{project.path}/app-instances/{made['id']}/member-operations"
    body = {"operation": "add", "component_key": "worker", "allocation_ids": [project.allocation_ids[1]]}
    asked = project.operator.post(path, body).json()
    taken_at: list[str] = []

    def take_over() -> None:
        """As another runner does once the lease has run out."""
        adapter = project.adapter
        past, later = datetime.now(UTC) - timedelta(seconds=5), datetime.now(UTC) + timedelta(minutes=5)
        for change in (
            {"claimed_by": "left", "lease_expires_at": stamp(past)},
            {"status": "running", "claimed_by": "thief", "lease_expires_at": stamp(later)},
        ):
            answer = adapter.patch(f"{path}/{asked['id']}", change)
            assert answer.status_code == 200, answer.text
        taken_at.append(str(project.platform.control.audit()[-1]["seq"]))

    hosts.meanwhile = take_over
    own = settings(project, runner_id="left")
    with capture_logs() as said, Client(own) as client:
        assert loop.run(client, own, SLURM).problems == []
    assert taken_at, "the worker was played"
    (left,) = [line for line in said if line["event"] == "left to another runner"]
    assert "thief" in left["problem"]
    after = [row for row in project.platform.control.audit() if row["seq"] > int(taken_at[0])]
    assert [row["action"] for row in after if "+left" in row["user_agent"]] == []
    (operation,) = [one for one in listed(project, made["id"], "member-operations") if one["id"] == asked["id"]]
    assert (operation["status"], operation["claimed_by"]) == ("running", "thief")


def test_two_processes_that_fail_the_same_deploy_send_one_event(project: Project) -> None:
    made = project.deploy(workers=2)
    project.platform.control.set_allocation_status(project.project_id, project.allocation_ids[0], "released")
    variables = environment(project)
    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(lambda _: gpuaas_slurm(variables, "run"), range(2)))
    assert all("Traceback" not in one.stderr for one in ended), [one.stderr for one in ended]
    if instance_of(project, made["id"])["status"] != "failed":  # both may have left it to the other
        ends(gpuaas_slurm(variables, "run"), 1)
    assert instance_of(project, made["id"])["status"] == "failed"
    kinds = [event["type"] for event in listed(project, made["id"], "events")]
    assert kinds.count("apps.instance.failed") == 1
    assert {one["status"] for one in listed(project, made["id"], "member-operations")} == {"failed"}


# -- contention ----------------------------------------------------------------------------------------------


@dataclass
class Scene:
    """A cluster with two workers, and two runners: `left` begins, and `right` ticks in the middle of its play."""

    project: Project
    hosts: Hosts
    instance_id: str
    seen: list[Step] = field(default_factory=list)  # what right planned meanwhile

    @property
    def path(self) -> str:
        return f"{self.project.path}/app-instances/{self.instance_id}"

    def members(self) -> dict[str, Doc]:
        found = listed(self.project, self.instance_id, "members")
        return {one["adapter_detail"].get("worker_hostname") or one["component_key"]: one for one in found}

    def worker(self) -> str:
        return min(name for name, one in self.members().items() if one["component_key"] == "worker")

    def settings(self, who: str) -> Settings:
        # Nothing but a claim keeps a second try from being due at once.
        return settings(self.project, runner_id=who, observe_seconds=0, retry_seconds=0)

    def tick(self, who: str) -> shared.Summary:
        own = self.settings(who)
        with Client(own) as client:
            summary = loop.run(client, own, SLURM)
        assert summary.problems == []
        return summary

    def configure(self, config: Doc) -> None:
        answer = self.project.operator.patch(self.path, {"config": config})
        assert answer.status_code == 200, answer.text

    def ask(self, verb: str, name: str) -> None:
        body = {"operation": verb, "component_key": "worker", "member_ids": [self.members()[name]["id"]]}
        assert self.project.operator.post(f"{self.path}/member-operations", body).status_code == 201

    def right_comes_in_between(self) -> None:
        """During left's first play that changes a host, right ticks to its end."""

        def come() -> None:
            if not self.hosts.changing:
                return  # left is still looking
            self.hosts.meanwhile = lambda: None
            own = self.settings("right")
            with Client(own) as client:
                world = observe(client, client.instance(UUID(self.instance_id)), own, SLURM, everything=True)
                self.seen = dry_run(world.later(snapshot=self.hosts.snapshot()), SLURM)
            before = list(self.hosts.changing)
            self.tick("right")
            assert self.hosts.changing == before, "right changed a host while left did"

        self.hosts.runs.clear()
        self.hosts.numbers.clear()
        self.hosts.meanwhile = come
        self.tick("left")
        assert self.hosts.meanwhile.__name__ == "<lambda>", "left changed nothing, so nobody met"

    def waits_for_left(self) -> bool:
        return any(isinstance(step, Wait) and "runner left holds it until" in step.why for step in self.seen)

    def is_consistent(self) -> None:
        assert self.hosts.overlaps == []
        assert self.hosts.misnumbered() == []
        members = self.members().values()
        assert not [one for one in members if one["adapter_detail"].get("claimed_by")]
        for one in members:
            used = self.hosts.numbers.get(UUID(one["id"]), [("", 0)])
            assert one["adapter_detail"].get("fence", 0) >= max(fence for _, fence in used)


@pytest.fixture
def scene(project: Project, hosts: Hosts) -> Scene:
    made = project.deploy(workers=2)
    scene = Scene(project, hosts, made["id"])
    for _ in range(3):
        scene.tick("first")
    assert instance_of(project, made["id"])["status"] == "running"
    return scene


def repair(scene: Scene) -> None:
    scene.hosts.dead = {scene.worker()}


def follow(scene: Scene) -> None:
    scene.hosts.config_version = "sha256:y"


def configuration(scene: Scene) -> None:
    scene.configure({"slurm": {"MaxJobCount": 5}})


def users(scene: Scene) -> None:
    scene.configure({"users": [{"name": "ada", "uid": 2001}]})


@pytest.mark.parametrize("cause", [repair, follow, configuration, users], ids=lambda cause: cause.__name__)
def test_what_no_operation_asks_for_is_done_by_one_runner_while_the_other_waits(
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
    assert [row for row in rows if row["status"] in (409, 412)], "they never met"
    assert len(scene.hosts.changing) == 1
    scene.is_consistent()


def test_a_lease_lost_between_the_claim_and_the_play_stops_the_tick(scene: Scene) -> None:
    """As a runner that was suspended right after its claim, for longer than its lease."""
    scene.ask("remove", scene.worker())
    scene.hosts.runs.clear()
    own = scene.settings("left")
    with Client(own) as client:
        one = tick._Tick(
            client,
            shared.Shared(own, SLURM),
            client.instance(UUID(scene.instance_id)),
            shared.Summary(),
            time.monotonic(),
        )
        one._write(decide(one._world))
        assert one._report.writer.claimed, "the operation is claimed"
        one._report.claims.renewal._good_until = 0
        with pytest.raises(LostLease):
            one._write(decide(one._world))
        with pytest.raises(LostLease):
            one._act(Play("too late", "remove_worker", ()), PlaySlot(requested=True, forks=1, number=1))
        one._report.claims.release()
    assert scene.hosts.runs == []
    assert scene.members()[scene.worker()]["status"] == "ready"


def test_a_lease_is_renewed_before_the_play_begins(scene: Scene) -> None:
    scene.ask("drain", scene.worker())
    own = scene.settings("left")
    with Client(own) as client:
        one = tick._Tick(
            client,
            shared.Shared(own, SLURM),
            client.instance(UUID(scene.instance_id)),
            shared.Summary(),
            time.monotonic(),
        )
        one._report.claims.renewal._lease_seconds = 0.6
        one._write(decide(one._world))
        (claimed,) = one._report.writer.claimed.values()
        until(lambda: one._report.writer.claimed[claimed.id].etag != claimed.etag, 10, "the lease is renewed")
        assert not one._report.claims.renewal.is_lost
        one._report.claims.release()


# -- writes that meet another's ------------------------------------------------------------------------------


def reporter_of(scene: Scene, client: Client) -> tuple[Reporter, World]:
    own = scene.settings("left")
    world = observe(client, client.instance(UUID(scene.instance_id)), own, SLURM, everything=True)
    return Reporter(client, own, world, SLURM), world


def write_in_between(scene: Scene, name: str, **changes: Any) -> None:
    member = scene.members()[name]
    body = {"adapter_detail": {**member["adapter_detail"], **changes}}
    assert scene.project.adapter.patch(f"{scene.path}/members/{member['id']}", body).status_code == 200


def test_a_write_puts_only_its_own_changes_into_the_newest_detail(scene: Scene) -> None:
    """A key that a person pinned in mid-tick, a number and a newer version's note stay."""
    name = scene.worker()
    newer = {"jobs_remaining": "a newer version's own type", "leave": {"attempts": {"count": 1}}}
    with Client(scene.settings("left")) as client:
        report, world = reporter_of(scene, client)
        member = next(one for one in world.members if one.adapter_detail.get("worker_hostname") == name)
        write_in_between(scene, name, host_keys_pinned={"keys": ["k"]}, fence=9, **newer)
        mark = scene.project.platform.control.requests()["last"]
        report.apply(SetMember("seen", member, member.status, {"node_state": "IDLE+X"}), world)
    rows = scene.project.platform.control.requests(mark)["requests"]
    assert [row["status"] for row in rows if row["method"] == "PATCH"] == [412, 200]
    known = scene.members()[name]["adapter_detail"]
    assert (known["node_state"], known["host_keys_pinned"], known["fence"]) == ("IDLE+X", {"keys": ["k"]}, 9)
    assert {key: known[key] for key in newer} == newer


def test_no_write_but_a_claim_changes_the_number(scene: Scene) -> None:
    """Also not one that carries a host's own report."""
    name = scene.worker()
    with Client(scene.settings("left")) as client:
        report, world = reporter_of(scene, client)
        member = next(one for one in world.members if one.adapter_detail.get("worker_hostname") == name)
        number = member.adapter_detail["fence"]
        for wrong in (0, number + 5, None):
            world = report.apply(SetMember("told", member, member.status, {"fence": wrong, "phase": str(wrong)}), world)
            assert scene.members()[name]["adapter_detail"]["fence"] == number
        world = report.apply(Claim("ours", member, member.status), world)
        assert scene.members()[name]["adapter_detail"]["fence"] == world.fences[member.id] == number + 1
        report.claims.release()


def test_a_write_decides_again_if_the_status_or_the_claim_changed(scene: Scene) -> None:
    name = scene.worker()
    with Client(scene.settings("left")) as client:
        report, world = reporter_of(scene, client)
        member = next(one for one in world.members if one.adapter_detail.get("worker_hostname") == name)
        step = SetMember("seen", member, member.status, {"node_state": "X"})
        path = f"{scene.path}/members/{member.id}"
        assert scene.project.adapter.patch(path, {"status": "draining"}).status_code == 200
        with pytest.raises(Outdated, match="draining now, and was ready"):
            report.apply(step, world)
        later = stamp(datetime.now(UTC) + timedelta(minutes=5))
        write_in_between(scene, name, claimed_by="right", lease_expires_at=later)
        with pytest.raises(LostLease, match="held by right until"):
            report.apply(step, world)
    assert scene.members()[name]["adapter_detail"]["node_state"] != "X"


def test_a_claim_that_meets_another_claim_gives_no_number(scene: Scene) -> None:
    """Claimed and handed back by another runner meanwhile: what was decided on may be done."""
    name = scene.worker()
    with Client(scene.settings("left")) as client:
        report, world = reporter_of(scene, client)
        member = next(one for one in world.members if one.adapter_detail.get("worker_hostname") == name)
        number = member.adapter_detail["fence"]
        write_in_between(scene, name, fence=number + 1)
        with pytest.raises(Outdated, match="claimed by another runner"):
            report.apply(Claim("late", member, member.status), world)
        report.claims.release()
    assert scene.members()[name]["adapter_detail"]["fence"] == number + 1


def test_an_operators_stop_is_not_overwritten_by_what_was_to_be_written(scene: Scene) -> None:
    with Client(scene.settings("left")) as client:
        report, world = reporter_of(scene, client)
        said = {**(world.instance.status_detail or {}), "reasons": [{"code": "x", "message": "y"}]}
        step = SetInstance("seen", "running", "degraded", said)
        assert scene.project.adapter.patch(scene.path, {"status": "stopped"}).status_code == 200
        with pytest.raises(Outdated, match="stopped now, and was running"):
            report.apply(step, world)
    assert instance_of(scene.project, scene.instance_id)["status"] == "stopped"


def test_a_write_to_the_instance_keeps_what_others_wrote_into_its_detail(scene: Scene) -> None:
    with Client(scene.settings("left")) as client:
        report, world = reporter_of(scene, client)
        known = world.instance.status_detail or {}
        body = {"status_detail": {**known, "observed_at": "2026-01-01T00:00:00Z", "newer_note": {"a": 1}}}
        assert scene.project.adapter.patch(scene.path, body).status_code == 200
        said = {**known, "reasons": [{"code": "x", "message": "y"}]}
        report.apply(SetInstance("seen", "running", "degraded", said), world)
    now = instance_of(scene.project, scene.instance_id)["status_detail"]
    assert (now["newer_note"], now["observed_at"]) == ({"a": 1}, "2026-01-01T00:00:00Z")
    assert now["reasons"] == [{"code": "x", "message": "y"}]


# -- a platform without ETags --------------------------------------------------------------------------------


@pytest.fixture
def without_etags(platform: Platform) -> None:
    platform.control.inject_fault("strip_etags", "/projects/", times=1_000_000)


@pytest.mark.usefixtures("without_etags")
def test_without_etags_one_runner_does_the_work(project: Project, hosts: Hosts, tmp_path: Path) -> None:
    made = project.deploy(workers=2)
    own = settings(project, runner_id="only", state_directory=tmp_path / "state")
    with Client(own) as client, ProcessLock(own) as alone:
        for _ in range(3):
            assert loop.run(client, own, SLURM, process_lock=alone).problems == []
    assert instance_of(project, made["id"])["status"] == "running"
    assert {member["status"] for member in listed(project, made["id"], "members")} == {"ready"}
    assert (tmp_path / "state").stat().st_mode & 0o077 == 0


HOLDER = """
import fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
fcntl.flock(file, fcntl.LOCK_EX)
os.write(file, b"runner first (process 7)")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.usefixtures("without_etags")
def test_without_etags_a_second_runner_leaves_and_the_lock_dies_with_its_holder(
    project: Project, tmp_path: Path
) -> None:
    project.deploy(workers=1)
    project.platform.control.set_allocation_status(project.project_id, project.allocation_ids[0], "released")
    lock = tmp_path / f"project-{project.project_id}.lock"
    variables = environment(project, GPUAAS_STATE_DIRECTORY=str(tmp_path), GPUAAS_LOG_FORMAT="json")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout and holder.stdout.readline() == "held\n"
        mark = project.platform.control.requests()["last"]
        left = gpuaas_slurm(variables, "run")
        ends(left, 3)
        assert "no ETags" in left.stderr and "runner first (process 7)" in left.stderr
        assert "Traceback" not in left.stderr
        asked = project.platform.control.requests(mark)["requests"]
        assert {row["method"] for row in asked if "token" not in row["path"]} == {"GET"}
    finally:
        holder.kill()
        holder.wait()
    done = gpuaas_slurm(variables, "run")
    ends(done, 1)  # it worked, and told that the deploy failed
    assert done.stderr.count("sends no ETags") == 1


def test_with_etags_no_lock_is_needed(project: Project, tmp_path: Path) -> None:
    project.deploy(workers=1)
    project.platform.control.set_allocation_status(project.project_id, project.allocation_ids[0], "released")
    with (tmp_path / f"project-{project.project_id}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = gpuaas_slurm(environment(project, GPUAAS_STATE_DIRECTORY=str(tmp_path)), "run")
    ends(done, 1)
