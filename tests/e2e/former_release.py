"""An earlier release of the adapter, taken from the history of this repository, run as its users ran it.

`python -m tests.e2e.former_release [SUITE ...]` deploys clusters with it and keeps the notes and host ledgers that it
writes, under tests/unit/fixtures/notes/a605804/SUITE/. They were recorded once and do not change any more.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tests.commands import ends, recorded
from tests.e2e.cluster import Cluster, deploy, fleet_named, until
from tests.platform_process import ROOT
from tests.runner_process import inherited

RELEASE = "a605804"
FIXTURES = ROOT / "tests" / "unit" / "fixtures" / "notes" / RELEASE
LEDGER = "/var/lib/gpuaas-slurm/ledger.json"
HELD = "until [ -e /tmp/go ]; do sleep 0.2; done; rm /tmp/go"
USERS = [{"name": "alice", "uid": 3001}, {"name": "bob", "uid": 3002, "account": "physics"}]


@cache
def release() -> Path:
    """The files of that release, unpacked once; needs a clone with its history."""
    target = ROOT / ".cache" / f"release-{RELEASE}"
    if not (target / "unpacked").exists():
        packed = subprocess.run(["git", "archive", RELEASE], cwd=ROOT, capture_output=True, check=False)
        if packed.returncode != 0:
            raise RuntimeError(
                f"commit {RELEASE} is not in this clone: get the whole history with `git fetch --unshallow`"
                f" ({packed.stderr.decode().strip()})"
            )
        target.mkdir(parents=True, exist_ok=True)
        subprocess.run(["tar", "-x", "-C", str(target)], input=packed.stdout, check=True)
        (target / "unpacked").touch()
    return target


@recorded
def former_gpuaas_slurm(
    variables: Mapping[str, str], *arguments: str, timeout: float = 300
) -> "subprocess.CompletedProcess[str]":
    """The command of that release, with its own playbooks, roles and modules."""
    start = "import runner.cli, sys; assert runner.__file__.startswith(sys.argv.pop(1)); runner.cli.main()"
    return subprocess.run(
        [sys.executable, "-c", start, str(release()), *arguments],
        env={**inherited(), **variables, "PYTHONPATH": str(release())},
        cwd=release(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def tick(cluster: Cluster) -> "subprocess.CompletedProcess[str]":
    """One tick of that release."""
    return former_gpuaas_slurm(cluster.variables, "run", "--instance", cluster.instance_id, "--json")


def ledger(cluster: Cluster, host: str) -> Any:
    return json.loads(cluster.on(host, "cat", LEDGER))


def hold_job(cluster: Cluster, host: str) -> str:
    """A job that runs on the host until /tmp/go is there."""
    job = cluster.on("gs-1", "sbatch", "--parsable", "--nodelist", host, "--output=/dev/null", "--wrap", HELD)
    until(lambda: cluster.on("gs-1", "squeue", "-ho", "%T", "-j", job) == "RUNNING", 60, f"job {job} runs on {host}")
    return job


def record(suite: str) -> None:
    """Notes of a cluster that serves, that drains a busy worker, that has stopped, and that is being taken down."""
    target = FIXTURES / suite
    target.mkdir(parents=True, exist_ok=True)

    def keep(name: str, content: Any) -> None:
        (target / f"{name}.json").write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")

    def keep_records(name: str, cluster: Cluster) -> None:
        operations = cluster.api.get(f"{cluster.path}/operations").json()["items"]
        keep(
            name,
            {
                "instance": cluster.instance(),
                "members": cluster.members(),
                "member_operations": cluster.operations(),
                "instance_operations": operations,
            },
        )

    with fleet_named(f"record-{suite}") as fleet:
        fleet.up(hosts=4, suite=suite, warm=True)
        users = release() / "recorded-users.json"
        users.write_text(json.dumps(USERS))
        split = deploy(fleet, "gs-1", "gs-2,gs-3", "--users", str(users))
        one = deploy(fleet, "gs-4", "", "--same-node", "--name", "one")
        for cluster in (split, one):
            ends(tick(cluster), 0)
        keep_records("serving", split)
        keep_records("same_node", one)
        for name, host in (("controller", "gs-1"), ("worker", "gs-2")):
            keep(f"ledger_{name}", ledger(split, host))
        keep("ledger_same_node", ledger(one, "gs-4"))
        hold_job(split, "gs-3")
        ends(former_gpuaas_slurm(split.variables, "op", "drain", split.instance_id, "--members", "gs-3"), 0)
        ends(tick(split), 0)
        keep_records("draining", split)
        ends(former_gpuaas_slurm(one.variables, "op", "stop", one.instance_id), 0)
        ends(tick(one), 0)
        keep_records("stopped", one)
        ends(former_gpuaas_slurm(split.variables, "op", "decommission", split.instance_id), 0)
        ends(tick(split), 1)  # it ends the drain
        keep_records("decommissioning", split)
        split.on("gs-3", "touch", "/tmp/go")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or ("bookworm", "trixie"):
        record(chosen)
