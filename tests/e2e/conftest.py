"""Clusters are deployed once a suite; many tests look at them."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from sandbox.fleet.fleet import Fleet
from tests.e2e.cluster import Cluster, Poller, deploy, fleet_named
from tests.runner_process import gpuaas_slurm

SUITES = ("bookworm", "trixie")


@dataclass
class Deployed:
    """Two clusters that one run brought up side by side, with somebody polling the API meanwhile."""

    fleet: Fleet
    split: Cluster
    same_node: Cluster
    exit_code: int
    log: str


@pytest.fixture(scope="session", params=SUITES)
def deployed(request: pytest.FixtureRequest) -> Iterator[Deployed]:
    """gs-1 with workers gs-2 and gs-3; gs-4 all by itself; gs-5 in reserve."""
    with fleet_named(f"e2e-{request.param}") as fleet:
        fleet.up(hosts=5, suite=request.param, warm=True)
        split = deploy(fleet, "gs-1", "gs-2,gs-3", "--name", "split", GPUAAS_LOG_LEVEL="debug")
        same_node = deploy(fleet, "gs-4", "", "--same-node", "--name", "one", GPUAAS_LOG_LEVEL="debug")
        with Poller(split, same_node):
            ran = gpuaas_slurm(split.variables, "run")
        yield Deployed(fleet, split, same_node, ran.returncode, ran.stdout + ran.stderr)


@pytest.fixture
def cluster(deployed: Deployed) -> Cluster:
    """The cluster with a controller and workers of its own."""
    return deployed.split
