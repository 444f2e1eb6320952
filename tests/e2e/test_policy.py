"""A cluster under the platform's policy: what is denied touches no host, and a job runs on under all of it. In order.

On one Debian only: the decisions are the adapter's.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.commands import ends
from tests.e2e.cluster import Cluster, deploy, fleet_named, until
from tests.platform_process import Doc, our_manifest
from tests.runner_process import answer

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("cluster")]

SLUG = our_manifest()["app_slug"]
OTHER = "9.0.0"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """gs-1 with the worker gs-2, which runs a job from the beginning; gs-3 is spare."""
    with fleet_named("e2e-policy") as fleet:
        fleet.up(hosts=3, suite="bookworm", warm=True)
        made = deploy(fleet, "gs-1", "gs-2")
        ends(made.run(), 0)
        made.on("gs-1", "sbatch", "-w", "gs-2", "--wrap", "sleep 100000")
        until(lambda: " RUNNING " in job(made), 120, "the job runs")
        yield made


def entitle(cluster: Cluster, status: str, regions: list[str] | None = None) -> None:
    project = cluster.variables["GPUAAS_PROJECT_ID"]
    cluster.fleet.control().put_entitlement(project, SLUG, status, {"regions": regions, "skus": None})


def add(cluster: Cluster) -> Doc:
    """The ended add of gs-3, after one run."""
    asked = cluster.add("gs-3")
    cluster.run()
    found: Doc = cluster.api.get(f"{cluster.path}/member-operations/{asked['id']}").json()
    return found


def connections(cluster: Cluster, host: str) -> int:
    """How often something connected over ssh since the host is up; the fleet itself does so while the host comes up."""
    counted = "journalctl --no-pager -t sshd | grep -cE 'Accepted|[Cc]onnection (from|closed|reset)' || true"
    return int(cluster.on(host, "sh", "-c", counted))


def job(cluster: Cluster) -> str:
    return str(cluster.on("gs-1", "squeue", "--noheader", "--format=%i %T %S %N"))


def reasons(cluster: Cluster) -> list[str]:
    return [one["code"] for one in cluster.instance()["status_detail"]["reasons"]]


def test_without_an_entitlement_a_worker_is_refused_and_the_job_runs_on(cluster: Cluster) -> None:
    before, at_first = job(cluster), connections(cluster, "gs-3")
    entitle(cluster, "disabled")
    ended = add(cluster)
    assert (ended["status"], ended["error"]["code"]) == ("failed", "not_entitled")
    assert job(cluster) == before
    assert connections(cluster, "gs-3") == at_first
    ends(cluster.run(GPUAAS_OBSERVE_SECONDS="0"), 0)
    assert reasons(cluster) == ["no_new_machines"] and cluster.instance()["health"] == "healthy"


def test_a_worker_in_a_region_that_is_not_allowed_is_refused(cluster: Cluster) -> None:
    at_first = connections(cluster, "gs-3")
    entitle(cluster, "enabled", regions=["elsewhere"])
    ended = add(cluster)
    assert (ended["status"], ended["error"]["code"]) == ("failed", "region_denied")
    assert "effective_policy.regions allows elsewhere" in ended["error"]["message"]
    assert connections(cluster, "gs-3") == at_first


def test_once_policy_allows_it_the_same_worker_joins(cluster: Cluster) -> None:
    at_first = connections(cluster, "gs-3")
    entitle(cluster, "enabled")
    ended = add(cluster)
    assert ended["status"] == "succeeded", ended
    assert "gs-3 idle" in cluster.on("gs-1", "sinfo", "-N", "--noheader", "--format=%N %t")
    assert connections(cluster, "gs-3") > at_first


def test_the_app_version_moves_and_returns_under_a_running_job(cluster: Cluster, tmp_path: Path) -> None:
    before, manifest = job(cluster), tmp_path / "manifest.yaml"
    manifest.write_text(yaml.safe_dump(our_manifest() | {"version": OTHER}))
    ends(cluster.command("app", "publish", "--manifest", str(manifest)), 0)
    for version, shown in ((OTHER, ["app_version_differs"]), (our_manifest()["version"], [])):
        answer(cluster.variables, "configure", cluster.instance_id, "--app-version", version)
        ends(cluster.run(GPUAAS_OBSERVE_SECONDS="0"), 0)
        seen = cluster.instance()
        assert (seen["app_version"], seen["health"], reasons(cluster)) == (version, "healthy", shown)
        assert job(cluster) == before
