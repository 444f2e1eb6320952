"""GPUs are what the host has: Slurm hands them out one by one, and a host that has not what was rented stays out."""

import pytest

from tests.commands import ends, fails
from tests.e2e.cluster import Cluster, until
from tests.e2e.conftest import Equipped

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("equipped")]

TABLE = "/etc/sandbox-gpus"
# Each job waits until it has seen the other, so that they hold their GPUs at the same time.
MEET = """echo "$CUDA_VISIBLE_DEVICES" > /tmp/gpu-$SLURM_JOB_ID
while [ $(ls /tmp/gpu-* | wc -l) -lt 2 ]; do sleep 0.2; done"""


def gres_of(cluster: Cluster, node: str) -> str:
    shown = cluster.on(cluster.controller_host, "sinfo", "--noheader", "--nodes", node, "--format=%G")
    return shown.partition("(")[0]


def test_a_worker_comes_up_with_the_gpus_its_host_has(equipped: Equipped) -> None:
    cluster = equipped.cluster
    shown = cluster.on(cluster.controller_host, "scontrol", "--oneliner", "show", "node", "gs-2")
    assert " Gres=gpu:a100:4" in shown
    assert "gres/gpu=4" in shown  # counted for accounting too
    assert gres_of(cluster, "gs-2") == "gpu:a100:4"
    assert cluster.workers()["gs-2"]["adapter_detail"]["gpus"] == 4


def test_a_job_gets_one_gpu_and_another_job_at_the_same_time_gets_another(equipped: Equipped) -> None:
    cluster, controller = equipped.cluster, equipped.cluster.controller_host
    asked = ("sbatch", "--parsable", "--nodelist=gs-2", "--ntasks=1", "--output=/dev/null", "--wrap", MEET)
    jobs = [cluster.on(controller, *asked, f"--gres={what}") for what in ("gpu:1", "gpu:a100:1")]

    def states() -> set[str]:
        output = cluster.on(controller, "sacct", "-X", "-n", "-P", "--format=State", f"--jobs={','.join(jobs)}")
        return set(output.split())

    until(lambda: states() == {"COMPLETED"}, 120, "two jobs that wait for each other", every=1)
    given = sorted(cluster.on("gs-2", "cat", f"/tmp/gpu-{job}") for job in jobs)
    assert len(set(given)) == 2
    assert set(given) <= {"0", "1", "2", "3"}
    used = cluster.on(controller, "sacct", "-X", "-n", "-P", "--format=AllocTRES", f"--jobs={','.join(jobs)}")
    assert used.count("gres/gpu=1") == 2


def test_more_gpus_than_there_are_is_refused_by_slurm(equipped: Equipped) -> None:
    cluster = equipped.cluster
    done = cluster.fleet.exec(cluster.controller_host, ["srun", "--gres=gpu:a100:5", "--immediate=30", "true"])
    fails(done)
    assert "Requested node configuration is not available" in done.stderr


def test_a_host_with_fewer_gpus_than_rented_is_refused_before_anything_on_it_changes(equipped: Equipped) -> None:
    cluster = equipped.cluster
    whole = cluster.on("gs-3", "cat", TABLE)
    cluster.on("gs-3", "sed", "--in-place", "1d", TABLE)
    try:
        operation = cluster.add("gs-3")
        ends(cluster.run(), 1)
    finally:
        ends(cluster.fleet.exec("gs-3", ["tee", TABLE], stdin=f"{whole}\n"), 0)
    ended = next(one for one in cluster.operations() if one["id"] == operation["id"])
    assert ended["error"]["code"] == "gpu_count_mismatch"
    assert "1 GPU(s), its allocation has 2" in ended["error"]["message"]
    assert "gs-3" not in cluster.on(cluster.controller_host, "sinfo", "--noheader", "--Node")
    assert (
        cluster.on("gs-3", "sh", "-c", "ls /var/lib/gpuaas-slurm/ledger.json /etc/munge/munge.key 2>/dev/null; true")
        == ""
    )


def test_a_worker_with_other_gpus_joins_and_no_other_is_touched(equipped: Equipped) -> None:
    cluster = equipped.cluster
    others = [("gs-1", "slurmctld"), ("gs-2", "slurmd")]
    before = [cluster.process(*one) for one in others] + [cluster.on("gs-1", "sha256sum", "/etc/slurm/gres.conf")]
    cluster.add("gs-3")
    ran = cluster.run()
    ends(ran, 0)
    assert gres_of(cluster, "gs-3") == "gpu:h100:2"
    assert [cluster.process(*one) for one in others] + [
        cluster.on("gs-1", "sha256sum", "/etc/slurm/gres.conf")
    ] == before
    job = ("srun", "--gres=gpu:h100:2", "--immediate=60", "sh", "-c", 'echo "$(hostname) $CUDA_VISIBLE_DEVICES"')
    assert cluster.on("gs-1", *job) == "gs-3 0,1"
    assert [one["hostname"] for one in cluster.instance()["access"]["workers"]] == ["gs-2", "gs-3"]
