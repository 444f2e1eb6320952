"""Two runners on one project: what one holds the other leaves alone, nothing is done twice at once, nothing is left.

The platform is real; hosts are not: a play takes a moment, notes who ran it on whom, and succeeds.
"""

import fcntl
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import runner.decide
from runner import tick
from runner.alone import Alone
from runner.decide import lifecycle
from runner.decide.lifecycle import Verb
from runner.inventory import CONTROLLER
from runner.plan import Play, Step, stamp
from runner.platform.client import Client
from runner.platform.models import InstanceStatus, Operation
from runner.settings import Settings
from runner.world import World
from tests.commands import ends
from tests.contract.hosts_in_mind import Hosts
from tests.platform_process import Doc, Platform, Project
from tests.runner_process import environment, gpuaas_slurm, settings


@pytest.fixture
def project(dialable: Project) -> Project:
    return dialable


def listed(project: Project, instance_id: str, what: str) -> list[Doc]:
    found: list[Doc] = project.operator.get(f"{project.path}/app-instances/{instance_id}/{what}").json()["items"]
    return found


def instance_of(project: Project, instance_id: str) -> Doc:
    found: Doc = project.operator.get(f"{project.path}/app-instances/{instance_id}").json()
    return found


def race(project: Project, done: Callable[[], bool], **changes: Any) -> list[tick.Summary]:
    """Two runners tick side by side, started together each time, until it is done."""
    runners = [settings(project, runner_id=name, **changes) for name in ("left", "right")]
    together = threading.Barrier(len(runners))
    summaries: list[tick.Summary] = []

    def one(own: Settings) -> tick.Summary:
        with Client(own) as client:
            together.wait(30)
            return tick.run_tick(client, own)

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
    return [lifecycle.succeed(operation, "done")]


def test_two_runners_carry_out_each_instance_operation_once(
    project: Project, hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(runner.decide.VERBS, "restart", Verb((InstanceStatus.RUNNING,), _carry_out))
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
    with Client(own) as client:
        tick.run_tick(client, own)
    assert taken_at, "the worker was played"
    after = [row for row in project.platform.control.audit() if row["seq"] > int(taken_at[0])]
    assert [row["action"] for row in after if "+left" in row["user_agent"]] == []
    (operation,) = [one for one in listed(project, made["id"], "member-operations") if one["id"] == asked["id"]]
    assert (operation["status"], operation["claimed_by"]) == ("running", "thief")


def test_two_processes_that_fail_the_same_deploy_tell_it_once(project: Project) -> None:
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


# -- a platform without ETags --------------------------------------------------------------------------------


@pytest.fixture
def without_etags(platform: Platform) -> None:
    platform.control.inject_fault("strip_etags", "/projects/", times=1_000_000)


@pytest.mark.usefixtures("without_etags")
def test_without_etags_one_runner_does_the_work_and_says_so_once(
    project: Project, hosts: Hosts, tmp_path: Path
) -> None:
    made = project.deploy(workers=2)
    own = settings(project, runner_id="only", state_directory=tmp_path / "state")
    with Client(own) as client, Alone(own) as alone:
        for _ in range(3):
            assert tick.run_tick(client, own, alone=alone).problems == []
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


def test_with_etags_nobody_needs_the_lock(project: Project, tmp_path: Path) -> None:
    project.deploy(workers=1)
    project.platform.control.set_allocation_status(project.project_id, project.allocation_ids[0], "released")
    with (tmp_path / f"project-{project.project_id}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = gpuaas_slurm(environment(project, GPUAAS_STATE_DIRECTORY=str(tmp_path)), "run")
    ends(done, 1)
