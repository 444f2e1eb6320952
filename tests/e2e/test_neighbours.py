"""A host serves one owner: what another instance, another cluster or an earlier one has is refused and left as it is.

On one Debian only: none of this depends on which.
"""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandbox.fleet.fleet import Fleet
from tests.commands import EXEC, ends
from tests.e2e.cluster import Cluster, by_hand, deploy, fleet_named, until
from tests.e2e.host_picture import difference, picture
from tests.platform_process import Doc
from tests.runner_process import answer

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("neighbours")]

SUITE = "bookworm"
MARK = "/etc/gpuaas-slurm/owner.json"
TAKEN, FOREIGN, TWIN, NAMESAKE = "gs-2", "gs-4", "gs-5", "gs-6"


@dataclass
class Neighbours:
    """Two instances of one project, each with a controller; the first has a worker with a job on it."""

    first: Cluster
    second: Cluster
    job: str = ""

    def hide_first(self, **instead: int) -> None:
        """The second one's runner may not read the first one's members, as if they were another team's."""
        control = self.second.fleet.control()
        refused = {"code": "forbidden", "message": "not yours"}
        control.inject_fault("status", f"{self.first.instance_id}/members", times=1000, status=403, body=refused)
        for status in instead.values():
            control.inject_fault(
                "status", f"{self.first.instance_id}$", method="GET", times=1000, status=status, body=refused
            )

    def refused(self, *hosts: str) -> Doc:
        """The operation with which the second instance asked for hosts in vain."""
        operation = self.second.add(*hosts)
        try:
            ends(self.second.run(), 1)
        finally:
            self.second.fleet.control().clear_faults()
        return next(one for one in self.second.operations() if one["id"] == operation["id"])


@pytest.fixture(scope="module")
def neighbours() -> Iterator[Neighbours]:
    with fleet_named("e2e-neighbours") as fleet:
        fleet.up(hosts=6, suite=SUITE, warm=True)
        first, second = deploy(fleet, "gs-1", TAKEN), deploy(fleet, "gs-3", "")
        ends(first.command("run", "--json"), 0)
        yield Neighbours(first, second)


def processes(cluster: Cluster, host: str) -> list[str]:
    return [cluster.process(host, unit) for unit in ("munge", "slurmd")]


def owner(cluster: Cluster, host: str) -> str:
    return str(json.loads(cluster.on(host, "cat", MARK))["instance"])


def test_both_hosts_and_ledgers_carry_the_instance_that_they_serve(neighbours: Neighbours) -> None:
    for cluster, host in ((neighbours.first, "gs-1"), (neighbours.first, TAKEN), (neighbours.second, "gs-3")):
        ledger = json.loads(cluster.on(host, "cat", "/var/lib/gpuaas-slurm/ledger.json"))
        assert (ledger["format"], ledger["instance"], owner(cluster, host)) == (2, *[cluster.instance_id] * 2)
        fences = json.loads(cluster.on(host, "cat", "/run/gpuaas-slurm/fences.json"))["members"]
        members = {one["id"]: one["adapter_detail"]["fence"] for one in cluster.members()}
        assert fences and {one["instance"] for one in fences.values()} == {cluster.instance_id}
        assert all(1 <= each["number"] <= members[one] for one, each in fences.items())


def test_an_allocation_of_another_instance_is_refused_before_its_host_is_asked(neighbours: Neighbours) -> None:
    first = neighbours.first
    hold = "until [ -e /tmp/end-of-job ]; do sleep 0.2; done"
    neighbours.job = first.on(
        "gs-1", "sbatch", "--parsable", f"--nodelist={TAKEN}", "--output=/dev/null", "--wrap", hold
    )
    before = processes(first, TAKEN)
    operation = neighbours.refused(TAKEN)
    assert operation["error"]["code"] == "allocation_in_use"
    assert first.instance_id in operation["error"]["message"]
    assert neighbours.second.workers() == {}
    assert processes(first, TAKEN) == before


def test_the_hosts_mark_refuses_what_the_records_do_not_show(neighbours: Neighbours) -> None:
    first, second = neighbours.first, neighbours.second
    before = processes(first, TAKEN)
    kept = picture(first.fleet, TAKEN)
    neighbours.hide_first()
    operation = neighbours.refused(TAKEN)
    assert operation["error"]["code"] == "host_in_use"
    error = second.workers()[TAKEN]["adapter_detail"]["last_adapter_error"]
    assert error["instance"] == first.instance_id and first.instance_id in error["message"]
    assert processes(first, TAKEN) == before and owner(first, TAKEN) == first.instance_id
    changed = [line for line in difference(kept, picture(first.fleet, TAKEN)) if "/var/log/" not in line]
    assert [line for line in changed if "/etc/" in line or "/var/lib/gpuaas-slurm" in line] == []


def test_removing_the_refused_worker_leaves_the_others_host_alone(neighbours: Neighbours) -> None:
    first, second = neighbours.first, neighbours.second
    before = processes(first, TAKEN)
    member = second.workers()[TAKEN]["id"]
    answer(second.variables, "op", "remove", second.instance_id, "--members", member)
    ends(second.run(), 0)
    assert second.workers()[TAKEN]["status"] == "deleted"
    assert processes(first, TAKEN) == before and owner(first, TAKEN) == first.instance_id


def test_the_job_of_the_first_instance_runs_to_its_end(neighbours: Neighbours) -> None:
    first = neighbours.first
    first.on(TAKEN, "touch", "/tmp/end-of-job")
    ask = ("sacct", "-X", "-n", "-P", "--format=State", f"--jobs={neighbours.job}")
    until(lambda: first.on("gs-1", *ask) == "COMPLETED", 60, "the job to end", every=0.5)
    first.runs_a_job_on_every_worker()


def test_a_host_with_a_munged_of_its_own_is_refused_and_stays_as_it_is(neighbours: Neighbours) -> None:
    fleet = neighbours.second.fleet
    own = "head -c 1024 /dev/urandom >$0 && chown munge: $0 && chmod 400 $0 && systemctl start munge"
    ends(fleet.exec(FOREIGN, ["sh", "-c", own, "/etc/munge/munge.key"]), 0)
    before = picture(fleet, FOREIGN)
    operation = neighbours.refused(FOREIGN)
    assert operation["error"]["code"] == "host_has_slurm"
    assert "munged" in operation["error"]["message"]
    left = [line for line in difference(before, picture(fleet, FOREIGN)) if "/var/log/munge" not in line]
    assert left == []


def test_of_two_hosts_with_one_name_one_joins_and_the_other_is_refused(neighbours: Neighbours) -> None:
    second = neighbours.second
    rename(second.fleet, NAMESAKE, TWIN)
    before = {host: picture(second.fleet, host) for host in (TWIN, NAMESAKE)}
    neighbours.refused(TWIN, NAMESAKE)
    workers = {host: one for host, one in second.workers().items() if host in before}
    (refused,) = [host for host, one in workers.items() if one["status"] == "failed"]
    assert sorted(one["status"] for one in workers.values()) == ["failed", "ready"]
    assert workers[refused]["adapter_detail"]["last_adapter_error"]["code"] == "hostname_taken"
    assert difference(before[refused], picture(second.fleet, refused)) == []


def test_a_host_with_the_name_of_a_member_on_record_is_refused(neighbours: Neighbours) -> None:
    second = neighbours.second
    refused = next(h for h, one in second.workers().items() if h in (TWIN, NAMESAKE) and one["status"] == "failed")
    operation = neighbours.refused(refused)
    assert "has the node of that name" in operation["error"]["message"]
    assert operation["error"]["code"] == "hostname_taken"


def test_a_play_without_a_claim_is_refused_and_names_exec(neighbours: Neighbours) -> None:
    first = neighbours.first
    before = processes(first, TAKEN)
    play = ("ansible-playbook", "-i", "gpuaas.yml", "playbooks/restart.yml", "--limit", group(first))
    done = by_hand(first, "gpuaas-slurm", *EXEC, "--read-only", "--instance", first.instance_id, "--", *play)
    assert done.returncode != 0 and "claim_required" in done.stdout
    assert f"gpuaas-slurm exec --instance {first.instance_id} --reason 'WHY' -- " in " ".join(done.stdout.split())
    assert processes(first, TAKEN) == before
    emergency = (*play, "-e", "gpuaas_unfenced=true")
    ends(
        by_hand(
            first,
            "gpuaas-slurm",
            *EXEC,
            "--read-only",
            "--instance",
            first.instance_id,
            "--",
            *emergency,
        ),
        0,
    )
    assert processes(first, TAKEN) != before


def test_a_left_over_host_is_cleaned_by_the_command_and_serves_again(neighbours: Neighbours, tmp_path: Path) -> None:
    first, second = neighbours.first, neighbours.second
    neighbours.hide_first(instance=404)
    operation = neighbours.refused(TAKEN)
    assert operation["error"]["code"] == "host_left_over"
    command = f"playbooks/clean_host.yml -e gpuaas_clean_instance={first.instance_id}"
    assert command in operation["error"]["message"]
    other = clean(second, TAKEN, second.instance_id, tmp_path)
    assert other.returncode != 0 and "host_in_use" in other.stdout
    assert owner(first, TAKEN) == first.instance_id, "the id must be the mark's"
    ends(clean(second, TAKEN, first.instance_id, tmp_path), 0)
    assert second.on(TAKEN, "sh", "-c", f"ls -d {MARK} /etc/gpuaas-slurm /var/lib/gpuaas-slurm 2>/dev/null; true") == ""
    neighbours.hide_first()
    second.add(TAKEN)
    try:
        ends(second.run(), 0)
    finally:
        second.fleet.control().clear_faults()
    assert second.workers()[TAKEN]["status"] == "ready" and owner(second, TAKEN) == second.instance_id


def test_a_late_play_after_a_removal_changes_nothing(neighbours: Neighbours, tmp_path: Path) -> None:
    second = neighbours.second
    member = second.workers()[TAKEN]
    answer(second.variables, "op", "remove", second.instance_id, "--members", member["id"])
    ends(second.run(), 0)
    before = picture(second.fleet, TAKEN)
    fences = json.loads(second.on(TAKEN, "cat", "/run/gpuaas-slurm/fences.json"))["members"]
    assert fences[member["id"]]["number"] >= 1, "the number outlives the member"
    for number, first, code in ((fences[member["id"]]["number"], False, "not_a_member"), (0, True, "fenced")):
        claim = {"instance": second.instance_id, "member": member["id"], "number": number, "first": first}
        done = late(second, TAKEN, claim, tmp_path)
        assert done.returncode != 0 and code in done.stdout
    assert difference(before, picture(second.fleet, TAKEN)) == []


def rename(fleet: Fleet, host: str, name: str) -> None:
    """A container may not do it for itself."""
    container = next(one.container for one in fleet.hosts() if one.name == host)
    show = ["podman", "inspect", "--format", "{{.State.Pid}}", container]
    process = subprocess.run(show, capture_output=True, text=True, check=True).stdout.strip()
    subprocess.run(["nsenter", f"--uts=/proc/{process}/ns/uts", "hostname", name], check=True)


def group(cluster: Cluster) -> str:
    return f"instance_{cluster.instance_id.replace('-', '_')}"


def at(cluster: Cluster, host: str, temporary: Path) -> list[str]:
    """How a person reaches one host with plain ansible-playbook: an address, a user, and a known_hosts of their own."""
    address = next(one.address for one in cluster.fleet.hosts() if one.name == host)
    listed = cluster.api.get(f"/projects/{cluster.variables['GPUAAS_PROJECT_ID']}/allocations").json()["items"]
    user = next(one["connection"]["username"] for one in listed if one["name"] == host)
    fences = f"-o StrictHostKeyChecking=accept-new -o UserKnownHostsFile={temporary}/known_hosts"
    return ["-i", f"{address},", "-u", user, f"--ssh-common-args={fences}"]


def clean(cluster: Cluster, host: str, instance: str, temporary: Path) -> "subprocess.CompletedProcess[str]":
    """The documented command. The ssh key comes from exec's agent; a person has one of their own."""
    play = ["ansible-playbook", *at(cluster, host, temporary), "playbooks/clean_host.yml"]
    named = ["-e", f"gpuaas_clean_instance={instance}"]
    agent = ("gpuaas-slurm", *EXEC, "--read-only", "--instance", cluster.instance_id, "--")
    return by_hand(cluster, *agent, *play, *named)


def late(cluster: Cluster, host: str, claim: Doc, temporary: Path) -> "subprocess.CompletedProcess[str]":
    """One call of a changing module as a runner made it that was suspended since."""
    variables = {
        "gpuaas_app_instance_id": claim["instance"],
        "gpuaas_member_id": claim["member"],
        "gpuaas_fence": claim["number"],
        "gpuaas_first_play": claim["first"],
    }
    address = at(cluster, host, temporary)
    call = ["ansible", "all", *address, "-b", "-m", "converge_host", "-a", "owner=worker/munge packages=munge"]
    agent = ("gpuaas-slurm", *EXEC, "--read-only", "--instance", cluster.instance_id, "--")
    return by_hand(cluster, *agent, *call, "-e", json.dumps(variables))
