"""Clusters are deployed once a suite; many tests look at them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from sandbox.fleet.fleet import Fleet
from sandbox.fleet.gpus import Gpus
from sandbox.fleet.hosts import HostSpec
from sandbox.fleet.images import SUITES as SUITES
from sandbox.fleet.keys import KeyPair
from tests.commands import ends
from tests.e2e.cluster import Cluster, Poller, deploy, fleet_named
from tests.journal_table import UNITS, Line, read_journal, read_munged
from tests.runner_process import gpuaas_slurm, own_processes
from tests.waits import TEST_SECONDS


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Hosts take their time. The limit is above every wait inside a test, whose message says more than a time limit."""
    for item in items:
        if item.get_closest_marker("e2e") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


@dataclass
class Deployed:
    """Two clusters that one run brought up side by side, with a poller that read the API meanwhile."""

    fleet: Fleet
    split: Cluster
    same_node: Cluster
    exit_code: int
    log: str
    journals: dict[str, list[Line]]


def journals(fleet: Fleet) -> dict[str, list[Line]]:
    """Log lines of each host's daemons so far, from the journal and from munged's own log."""
    units = [f"--unit={unit}" for unit in UNITS]
    logged: dict[str, list[Line]] = {}
    for host in fleet.hosts():
        journal = fleet.exec(host.name, ["journalctl", "--output=json", "--all", "--no-pager", "--quiet", *units])
        ends(journal, 0)
        munged = fleet.exec(host.name, ["sh", "-c", "cat /var/log/munge/munged.log 2>/dev/null || true"])
        logged[host.name] = read_journal(journal.stdout) + read_munged(munged.stdout)
    return logged


@pytest.fixture(scope="session", params=SUITES)
def deployed(request: pytest.FixtureRequest) -> Iterator[Deployed]:
    """gs-1 with workers gs-2 and gs-3; gs-4 all by itself; gs-5 in reserve."""
    with own_processes(), fleet_named(f"e2e-{request.param}") as fleet:
        fleet.up(hosts=5, suite=request.param, warm=True)
        for name in ("gs-2", "gs-3", "gs-5"):  # as on a bare host: tokens are the controller's business
            fleet.exec(name, ["dpkg", "--purge", "slurm-wlm-jwt-plugin"])
        split = deploy(fleet, "gs-1", "gs-2,gs-3", "--name", "split", GPUAAS_LOG_LEVEL="debug")
        same_node = deploy(fleet, "gs-4", "", "--same-node", "--name", "one", GPUAAS_LOG_LEVEL="debug")
        with Poller(split, same_node):
            ran = gpuaas_slurm(split.variables, "run")
        ends(ran, 0)  # all tests look at what this made
        yield Deployed(fleet, split, same_node, ran.returncode, ran.stdout + ran.stderr, journals(fleet))


@pytest.fixture(scope="session", params=SUITES)
def standing(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """gs-1 with workers gs-2 and gs-3, for scenarios that leave it as they found it, and for one that comes last."""
    with fleet_named(f"e2e-standing-{request.param}") as fleet:
        fleet.up(hosts=3, suite=request.param, warm=True)
        cluster = deploy(fleet, "gs-1", "gs-2,gs-3")
        ends(cluster.run(), 0)
        yield cluster


@pytest.fixture
def cluster(deployed: Deployed) -> Cluster:
    """The cluster with a controller and workers of its own."""
    return deployed.split


@dataclass
class Equipped:
    """A cluster with GPUs and with people of its own."""

    cluster: Cluster
    suite: str
    users: list[dict[str, Any]]
    key: KeyPair  # the first user's
    log: str  # of the run that deployed it


@pytest.fixture(scope="session", params=SUITES)
def equipped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Equipped]:
    """gs-1 with worker gs-2 that has four GPUs; gs-3 with two others and gs-4 with none are in reserve."""
    key = KeyPair.generate()
    users: list[dict[str, Any]] = [
        {"name": "ada", "uid": 2001, "account": "physics", "ssh_keys": [f"{key.public} ada@laptop"]},
        {"name": "ben", "uid": 2002},
    ]
    listed = tmp_path_factory.mktemp("users") / "users.json"
    listed.write_text(json.dumps(users))
    with fleet_named(f"equip-{request.param}") as fleet:
        gpus = {"gs-2": Gpus(4, "a100"), "gs-3": Gpus(2, "h100")}
        fleet.ensure([HostSpec(f"gs-{n}", request.param, True, gpus.get(f"gs-{n}", Gpus())) for n in range(1, 5)])
        cluster = deploy(fleet, "gs-1", "gs-2", "--users", str(listed), GPUAAS_LOG_LEVEL="debug")
        ran = cluster.run()
        ends(ran, 0)
        yield Equipped(cluster, request.param, users, key, ran.stdout + ran.stderr)
