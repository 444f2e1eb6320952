"""./dev demo: deploy a Slurm cluster on an empty sandbox by a request to the API, and run a job on it."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from sandbox.fleet.errors import FleetError
from sandbox.fleet.fleet import Fleet

NAME = "demo"
HOSTS = 3
RECORD_SECONDS = 60
SAY_WHERE = "sh -c 'echo job $SLURM_JOB_ID on $(hostname)'"
COMMAND = str(Path(sys.executable).parent / "gpuaas-slurm")


def main() -> None:
    suite = sys.argv[1] if len(sys.argv) > 1 else "bookworm"
    fleet = Fleet(NAME, progress=_show_progress)
    _title(f"sandbox: a local platform and {HOSTS} plain {suite} hosts without Slurm")
    try:
        fleet.up(hosts=HOSTS, suite=suite)
        variables = {**os.environ, **fleet.env()}
    except FleetError as error:
        _fail(str(error))
    start = time.monotonic()

    instances = [one for one in _read(variables, "get", "instances") if one["status"] not in ("deleted", "failed")]
    if instances:
        _title(f"the platform already has instance {instances[0]['id']} ({instances[0]['status']})")
    else:
        _title("deploy: the operator requests it at the platform; no host has changed yet")
        workers = ",".join(f"gs-{number}" for number in range(2, HOSTS + 1))
        _show(variables, "deploy", "--controller", "gs-1", "--workers", workers, "--name", NAME)
        _title("plan: what the runner will do, and why")
        _show(variables, "plan")

    _title("run: the runner carries out the plan")
    instance = _run_until_settled(variables)
    ready = [one for one in _read(variables, "get", "members") if one["status"] == "ready"]
    workers_ready = sum(one["component_key"] == "worker" for one in ready)
    seconds = time.monotonic() - start

    _title("status: as the API shows it")
    _show(variables, "status")
    if instance["status"] != "running" or instance["health"] != "healthy":
        _fail("the cluster is not healthy; the reasons are above; see `gpuaas-slurm sandbox logs gs-1`")

    _on_controller(fleet, "sinfo")
    job = read_job(_on_controller(fleet, f"srun --nodes {workers_ready} {SAY_WHERE}"))
    _on_controller(fleet, show_record(job), f"sacct --allusers --jobs {job}")

    _title("access: how to reach and use the cluster")
    _show(variables, "access", instance["id"])
    _title("what to type next")
    sys.stdout.write(
        '  . .venv/bin/activate && eval "$(gpuaas-slurm sandbox env)"\n'
        "  gpuaas-slurm status\n"
        "  gpuaas-slurm sandbox exec gs-1 -- sbatch --wrap hostname\n"
        "  gpuaas-slurm sandbox up --hosts 4\n"
        "  gpuaas-slurm op add demo --allocations gs-4 && gpuaas-slurm run --progress\n"
        "  ansible-inventory -i gpuaas.yml --graph\n"
        "  ./dev clean\n\n"
        f"demo: ok, {workers_ready} workers ready in {seconds:.0f} s\n"
    )


def read_job(output: str) -> str:
    """The job's number, from what it printed on each node."""
    found = re.search(r"^job (\d+) on ", output, re.MULTILINE)
    return found[1] if found else _fail("the job printed nothing; see gpuaas-slurm sandbox logs gs-1")


def show_record(job: str) -> str:
    """Show the job in accounting once it is completed there: slurmctld reports the end of a job a little later."""
    shown = f"sacct --allusers --jobs {job}"
    state = f"{shown} --allocations --noheader --format=State"
    wait = f"timeout {RECORD_SECONDS} sh -c 'until {state} | grep -q COMPLETED; do sleep 0.2; done'"
    return f"{wait}; waited=$?; {shown}; exit $waited"


def _on_controller(fleet: Fleet, command: str, title: str = "") -> str:
    _title(f"on the controller: {title or command}")
    done = fleet.exec("gs-1", ["sh", "-c", command])
    sys.stdout.write(done.stdout + done.stderr)
    if done.returncode != 0:
        _fail(f"{(title or command).split()[0]} ended with {done.returncode}; see gpuaas-slurm sandbox logs gs-1")
    return str(done.stdout)


def _run_until_settled(variables: Mapping[str, str]) -> dict[str, Any]:
    """Run ticks until the instance is running or failed. A few are enough, since retries are bounded."""
    for _ in range(10):
        code = subprocess.run(
            [COMMAND, "run", "--progress"], env={**variables, "GPUAAS_LOG_LEVEL": "warning"}
        ).returncode
        if code == 2:
            _fail("the runner could not run; its message is above")
        instance: dict[str, Any] = next(
            one for one in _read(variables, "get", "instances") if one["status"] != "deleted"
        )
        if instance["status"] in ("running", "failed"):
            return instance
        time.sleep(5)  # between ticks, as a scheduled job would
    return _fail("the deploy does not finish; see gpuaas-slurm status")


def _read(variables: Mapping[str, str], *arguments: str) -> Any:
    done = subprocess.run([COMMAND, *arguments, "--json"], env=dict(variables), stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        _fail(f"gpuaas-slurm {' '.join(arguments)} ended with {done.returncode}")
    return json.loads(done.stdout)


def _show(variables: Mapping[str, str], *arguments: str) -> None:
    sys.stdout.write(f"$ gpuaas-slurm {' '.join(arguments)}\n")
    sys.stdout.flush()
    if subprocess.run([COMMAND, *arguments], env=dict(variables)).returncode != 0:
        _fail(f"gpuaas-slurm {arguments[0]} failed")


def _show_progress(stage: str, seconds: float | None) -> None:
    if seconds is not None:
        sys.stdout.write(f"  {stage}: {seconds:.1f} s\n")
        sys.stdout.flush()


def _title(text: str) -> None:
    sys.stdout.write(f"\n== {text}\n")
    sys.stdout.flush()


def _fail(message: str) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.write(f"demo: failed: {message}\n")
    sys.exit(1)


if __name__ == "__main__":
    main()
