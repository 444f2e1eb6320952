"""Hosts whose keys are not on record are known by the key they showed first; one that shows another key is left alone.

On one Debian only: none of this depends on which.
"""

import json
from collections.abc import Iterator

import pytest

from sandbox.fleet.fleet import Fleet
from tests.commands import ends, fails
from tests.e2e.cluster import Cluster, by_hand, deploy, fleet_named, log_lines, until
from tests.platform_process import Doc

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("cluster")]

CONTROLLER, GOOD, REKEYED, SPARE = "gs-1", "gs-2", "gs-3", "gs-4"
NEW_KEY = (
    "rm /etc/ssh/ssh_host_*; ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key; systemctl restart ssh"
)


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """A platform that does not give the host keys of its machines."""
    with fleet_named("e2e-keys") as fleet:
        fleet.up(hosts=4, suite="bookworm", warm=True)
        project = fleet.env()["GPUAAS_PROJECT_ID"]
        for host in fleet.hosts():
            connection = {"host": host.address, "port": 22, "username": "ops"}
            fleet.control().put_allocation(
                project, fleet.allocation_id(host.name), name=host.name, connection=connection
            )
        yield fleet


@pytest.fixture(scope="module")
def cluster(fleet: Fleet) -> Cluster:
    more = ("--slurm", "SlurmdTimeout=10")  # a worker that does not answer for so long is down
    return deploy(fleet, CONTROLLER, f"{GOOD},{REKEYED}", *more, GPUAAS_OBSERVE_SECONDS="1", GPUAAS_RETRY_SECONDS="0")


def shown_by(cluster: Cluster, host: str) -> list[str]:
    """The host's own public keys, without their comments."""
    lines = cluster.on(host, "sh", "-c", "cat /etc/ssh/ssh_host_*_key.pub").splitlines()
    return sorted(" ".join(line.split()[:2]) for line in lines)


def logins(cluster: Cluster, host: str) -> int:
    return cluster.on(host, "journalctl", "--no-pager", "--quiet", "--unit=ssh").count("Accepted publickey")


def dialled(cluster: Cluster, host: str) -> int:
    return len(cluster.on(host, "journalctl", "--no-pager", "--quiet", "--unit=ssh").splitlines())


def error_of(member: Doc) -> tuple[str, str]:
    error = member["adapter_detail"]["last_adapter_error"]
    return error["code"], error["class"]


def test_a_vault_sealed_in_mid_run_is_vault_sealed_in_the_record(cluster: Cluster) -> None:
    """The ssh key was had before; the cluster's own secrets cannot be, in the middle of the play."""
    sealed = {"status": 503, "body": {"errors": ["Vault is sealed"]}}
    cluster.fleet.control().inject_fault("status", r"^/v1/secret/data/", times=1000, **sealed)
    cluster.ran = ends(cluster.run(), 0)
    cluster.fleet.control().clear_faults()
    controller = cluster.controller()
    assert controller["status"] == "reconciling", controller["adapter_detail"]
    assert error_of(controller) == ("vault_sealed", "retryable")


def test_keys_that_were_not_given_are_pinned_before_the_first_play(cluster: Cluster) -> None:
    first, second = cluster.ran, cluster.run()
    assert first is not None
    ends(second, 0)
    members = {CONTROLLER: cluster.controller(), **cluster.workers()}
    assert set(members) == {CONTROLLER, GOOD, REKEYED}
    for host, member in members.items():
        note = member["adapter_detail"]["host_keys_pinned"]
        assert (member["status"], sorted(note["keys"])) == ("ready", shown_by(cluster, host))
    events = [line["event"] for line in log_lines(first.stderr + second.stderr)]
    assert events.count("host keys pinned at first contact") == 3
    assert max(place for place, event in enumerate(events) if "pinned" in event) < events.index("play")
    cluster.runs_a_job_on_every_worker()


def test_by_hand_the_pinned_keys_are_the_ones_that_count(cluster: Cluster) -> None:
    done = by_hand(cluster, "ansible-inventory", "-i", "gpuaas.yml", "--list")
    ends(done, 0)
    hostvars: Doc = json.loads(done.stdout)["_meta"]["hostvars"]
    assert len(hostvars) == 3
    members = {CONTROLLER: cluster.controller(), **cluster.workers()}
    keys = {host: shown_by(cluster, host) for host in members}
    for host, member in members.items():
        arguments = str(hostvars[f"{member['component_key']}-{member['id'][:8]}"]["ansible_ssh_common_args"])
        assert {one for one, listed in keys.items() if any(key in arguments for key in listed)} == {host}


def test_a_ready_worker_that_shows_another_key_is_left_alone_and_the_others_go_on(cluster: Cluster) -> None:
    cluster.on(REKEYED, "sh", "-c", f"systemctl stop slurmd; {NEW_KEY}")
    before = logins(cluster, REKEYED)
    look = ("sinfo", "--noheader", "--nodes", REKEYED, "--format=%T")
    until(lambda: "down" in cluster.on(CONTROLLER, *look), 90, "Slurm gives it up", every=0.5)
    cluster.add(SPARE)
    ends(cluster.run(), 0)
    workers = cluster.workers()
    assert error_of(workers[REKEYED]) == ("host_key_mismatch", "intervention")
    assert "op remove" in workers[REKEYED]["adapter_detail"]["last_adapter_error"]["message"]
    assert {host: one["status"] for host, one in workers.items()} == dict.fromkeys((GOOD, REKEYED, SPARE), "ready")
    instance = cluster.instance()
    assert instance["health"] == "degraded"
    assert "host_key_mismatch" in [reason["code"] for reason in instance["status_detail"]["reasons"]]
    output = cluster.on(CONTROLLER, "srun", f"--nodelist={GOOD},{SPARE}", "--nodes=2", "--immediate=30", "hostname")
    assert sorted(output.split()) == [GOOD, SPARE]

    asked = dialled(cluster, REKEYED)
    ends(cluster.run(), 0)
    assert dialled(cluster, REKEYED) == asked, "it was dialled again"
    assert logins(cluster, REKEYED) == before, "something ran on it"
    fails(cluster.fleet.exec(REKEYED, ["systemctl", "is-active", "--quiet", "slurmd"]))
    by_hand_too = ends(by_hand(cluster, "ansible-inventory", "-i", "gpuaas.yml", "--list"), 0)
    assert "does not show the ssh key" in " ".join(by_hand_too.stderr.split())


def test_it_is_removed_without_its_host_and_added_again_with_its_new_key(cluster: Cluster) -> None:
    before = logins(cluster, REKEYED)
    removed = cluster.workers()[REKEYED]["id"]
    ends(cluster.command("op", "remove", cluster.instance_id, "--members", removed), 0)
    ends(cluster.run(), 0)
    gone = next(one for one in cluster.members() if one["id"] == removed)
    assert gone["status"] == "deleted", gone["adapter_detail"]
    assert gone["adapter_detail"]["host_cleaned"] is False
    assert "another machine" in gone["adapter_detail"]["host_left"]
    assert logins(cluster, REKEYED) == before
    cluster.add(REKEYED)
    ends(cluster.run(), 0)
    back = next(
        one
        for one in cluster.members()
        if one["id"] != removed and one["allocation_id"] == gone["allocation_id"] and one["status"] == "ready"
    )
    assert sorted(back["adapter_detail"]["host_keys_pinned"]["keys"]) == shown_by(cluster, REKEYED)
    assert cluster.instance()["health"] == "healthy"
