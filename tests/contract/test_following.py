"""An operator follows a request with the operator's own token, while a runner elsewhere carries it out."""

import json
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.commands import ends
from tests.contract.simulated_hosts import Hosts, work
from tests.platform_process import Project
from tests.runner_process import COMMAND, answer, environment, gpuaas_slurm, inherited
from tests.waits import until

Done = subprocess.CompletedProcess[str]


def operator(project: Project) -> dict[str, str]:
    """The settings of a person: without the secrets of the runner."""
    own = environment(project)
    for name in ("GPUAAS_KEY_ID", "GPUAAS_CLIENT_SECRET", "VAULT_ROLE_ID", "VAULT_SECRET_ID"):
        del own[name]
    return own


def followed(project: Project, *arguments: str) -> Done:
    """The command's end, while a runner ticks in this process."""
    with ThreadPoolExecutor(1) as pool:
        command = pool.submit(gpuaas_slurm, operator(project), *arguments, "--wait", "--timeout", "100")
        until(lambda: (work(project), command.done())[1], 120, "the command ends", every=0.3)
    return command.result()


def deployed(project: Project, workers: int = 1) -> str:
    made = project.deploy(workers=workers)
    until(lambda: (work(project), project.shown(made)["health"] == "healthy")[1], 60, "the cluster serves")
    return str(made["id"])


def test_deploy_wait_ends_when_the_cluster_is_running_and_healthy(dialable: Project, hosts: Hosts) -> None:
    first, second = dialable.allocation_ids[:2]
    done = followed(dialable, "deploy", "--controller", first, "--workers", second, "--name", "mine")
    ends(done, 0)
    (instance,) = answer(operator(dialable), "get", "instances")
    assert (instance["status"], instance["health"]) == ("running", "healthy")
    assert "instance mine" in done.stdout and "worker-" in done.stdout
    assert done.stdout.rstrip().endswith(f"the deploy of {instance['id']} is done")


def test_a_failed_deploy_ends_with_1_the_error_and_its_correlation_id(project: Project, hosts: Hosts) -> None:
    """Its allocations have no usable connection."""
    first, second = project.allocation_ids[:2]
    done = followed(project, "deploy", "--controller", first, "--workers", second)
    ends(done, 1)
    (instance,) = answer(operator(project), "get", "instances")
    (failed,) = project.shown(instance, "/member-operations")
    assert f"error: {failed['error']['code']}: " in done.stderr
    assert "next: " in done.stderr
    assert f"gpuaas-slurm explain {failed['correlation_id']}" in done.stderr


def test_an_operation_is_followed_and_its_record_is_the_only_output_with_json(dialable: Project, hosts: Hosts) -> None:
    made = deployed(dialable)
    done = followed(dialable, "op", "add", made, "--allocations", dialable.allocation_ids[2], "--json")
    ends(done, 0)
    ended = json.loads(done.stdout)
    assert (ended["operation"], ended["status"]) == ("add", "succeeded")
    assert "add " in done.stderr
    refused = followed(dialable, "op", "start", made)
    ends(refused, 1)
    assert "error: instance_state: " in refused.stderr


def test_when_the_time_is_over_nothing_is_cancelled_and_the_exit_code_is_4(project: Project) -> None:
    made = project.deploy()
    done = gpuaas_slurm(operator(project), "op", "stop", made["id"], "--wait", "--timeout", "0")
    ends(done, 4)
    assert f"gpuaas-slurm status --watch --instance {made['id']}" in done.stderr
    (asked,) = project.shown(made, "/operations")
    assert asked["status"] == "accepted"


def start(project: Project, output: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    with output.open("wb") as file:
        return subprocess.Popen(
            [COMMAND, *arguments], env={**inherited(), **operator(project)}, stdout=file, stderr=subprocess.STDOUT
        )


def test_ctrl_c_leaves_the_operation_and_prints_how_to_follow_it(project: Project, tmp_path: Path) -> None:
    made, output = project.deploy(), tmp_path / "output"
    with start(project, output, "op", "stop", made["id"], "--wait") as command:
        until(lambda: "waits for a runner" in output.read_text(), 60, "it is followed", seen=output.read_text)
        command.send_signal(signal.SIGINT)
        assert command.wait(30) == 130
    assert "goes on, nothing was cancelled" in output.read_text()
    assert f"gpuaas-slurm status --watch --instance {made['id']}" in output.read_text()
    assert "Traceback" not in output.read_text()
    (asked,) = project.shown(made, "/operations")
    assert asked["status"] == "accepted"


def test_status_watch_prints_what_changes_and_ends_with_0_on_ctrl_c(
    dialable: Project, hosts: Hosts, tmp_path: Path
) -> None:
    made, output = dialable.deploy(workers=1), tmp_path / "output"
    with start(dialable, output, "status", "--watch", "--instance", made["id"][:8]) as command:
        until(lambda: "requested" in output.read_text(), 60, "the first table", seen=output.read_text)
        until(lambda: (work(dialable), "running" in output.read_text())[1], 60, "another table", seen=output.read_text)
        command.send_signal(signal.SIGINT)
        assert command.wait(30) == 0
    shown = output.read_text()
    assert shown.count("INSTANCE") >= 2 and "Traceback" not in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_ids_that_tables_show_are_accepted_by_commands(dialable: Project, hosts: Hosts) -> None:
    made, variables = deployed(dialable), operator(dialable)
    shown = ends(gpuaas_slurm(variables, "get", "members"), 0).stdout
    worker = next(line.split()[0] for line in shown.splitlines() if line.startswith("worker-"))
    asked = answer(variables, "op", "drain", made[:8], "--members", worker.removeprefix("worker-"))
    listing = ends(gpuaas_slurm(variables, "get", "operations", "--instance", made[:8]), 0).stdout
    assert asked["id"][:8] in listing and asked["id"] not in listing
    assert asked["id"] in ends(gpuaas_slurm(variables, "get", "operations", "-o", "wide"), 0).stdout
    assert answer(variables, "op", "cancel", made[:8], asked["id"][:8])["status"] == "cancelled"
    as_json = ends(gpuaas_slurm(variables, "get", "members", "-o", "json"), 0).stdout
    assert json.loads(as_json) == answer(variables, "get", "members")
    place = dialable.allocation_ids[3]
    assert place[:8] in ends(gpuaas_slurm(variables, "get", "allocations"), 0).stdout
    assert answer(variables, "op", "add", made[:8], "--allocations", place[:8])["allocation_ids"] == [place]
