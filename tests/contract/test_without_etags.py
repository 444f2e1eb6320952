"""A platform without ETags: one runner at a time, by a lock on its machine; with ETags no lock is needed."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from runner.loop import run as loop
from runner.loop.process_lock import ProcessLock
from runner.platform.client import Client
from runner.slurm.app import SLURM
from sandbox.fleet.keys import KeyPair
from tests.commands import EXEC, ends
from tests.contract.shared_runtime import KEY
from tests.contract.simulated_hosts import Hosts
from tests.platform_process import Platform, Project
from tests.runner_process import COMMAND, environment, gpuaas_slurm, settings


@pytest.fixture
def project(dialable: Project) -> Project:
    return dialable


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
    (lock,) = (tmp_path / "state").iterdir()
    assert lock.read_text() == f"runner only (process {os.getpid()})\n", "what a second runner names as the holder"
    assert project.shown(made)["status"] == "running"
    assert {member["status"] for member in project.shown(made, "/members")} == {"ready"}
    assert (tmp_path / "state").stat().st_mode & 0o077 == 0


HOLDER = """
import fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
fcntl.flock(file, fcntl.LOCK_EX)
os.write(file, b"runner first (process 7)")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def held(project: Project, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Settings under which another process has the lock."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / f"project-{project.project_id}.lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout and holder.stdout.readline() == "held\n"
        yield environment(project, GPUAAS_STATE_DIRECTORY=str(tmp_path), GPUAAS_LOG_FORMAT="json")
    finally:
        holder.kill()
        holder.wait()


@pytest.mark.usefixtures("without_etags")
@pytest.mark.parametrize(
    "command",
    [
        (*EXEC, "--", "true"),
        (*EXEC, "--read-only", "--", "true"),
        ("trust", "controller", "--key", KEY, "--reason", "new host"),
    ],
    ids=lambda command: command[0] + ("-read-only" if "--read-only" in command else ""),
)
def test_without_etags_a_person_writes_nothing_while_a_runner_works(
    project: Project, held: dict[str, str], command: tuple[str, ...]
) -> None:
    project.deploy(workers=1)
    mark = project.platform.control.requests()["last"]
    refused = gpuaas_slurm(held, *command)
    ends(refused, 3)
    assert "no ETags" in refused.stderr and "runner first (process 7)" in refused.stderr
    sent = project.platform.control.requests(mark)["requests"]
    assert {row["method"] for row in sent if "token" not in row["path"]} == {"GET"}


@pytest.mark.usefixtures("without_etags")
def test_without_etags_a_runner_leaves_while_a_persons_command_runs(project: Project, tmp_path: Path) -> None:
    made = project.deploy(workers=1)
    variables = environment(project, GPUAAS_STATE_DIRECTORY=str(tmp_path), GPUAAS_LOG_FORMAT="json")
    project.platform.control.put_credential(
        project.project_id, project.credential_id, username="ops", private_key=KeyPair.generate().private
    )
    nested = f"{COMMAND} run; echo code $?"
    done = gpuaas_slurm(variables, *EXEC, "--read-only", "--", "sh", "-c", nested)
    ends(done, 0)
    assert done.stdout.endswith("code 3\n") and "only one runner may work" in done.stderr
    (note,) = project.shown(made)["status_detail"]["by_hand"]["notes"]
    assert note["exit_code"] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a lock for the user of the service")
def test_a_lock_that_root_made_first_can_be_opened_by_the_service(project: Project, tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 54321)
    own = settings(project, state_directory=tmp_path)
    with Client(own) as client, ProcessLock(own) as alone:
        instance = client.instance(UUID(project.deploy(workers=1)["id"]))
        alone.require([instance.model_copy(update={"etag": None})])
        (lock,) = tmp_path.iterdir()
        assert (lock.stat().st_uid, lock.stat().st_gid, lock.stat().st_mode & 0o777) == (12345, 54321, 0o600)


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
    ends(done, 1)  # it worked, and reported that the deploy failed
    assert done.stderr.count("sends no ETags") == 1


def test_with_etags_no_lock_is_needed(project: Project, tmp_path: Path) -> None:
    project.deploy(workers=1)
    project.platform.control.set_allocation_status(project.project_id, project.allocation_ids[0], "released")
    with (tmp_path / f"project-{project.project_id}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = gpuaas_slurm(environment(project, GPUAAS_STATE_DIRECTORY=str(tmp_path)), "run")
    ends(done, 1)
