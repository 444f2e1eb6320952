"""What is wrong with a cluster is in the API within one tick, with its reason, and gone once it is over.

Each trouble is caused for real on a cluster of one controller and two workers, looked at with self-repair switched off,
and then either put right by the next tick or over by itself. In order, each test leaves the cluster healthy. Over 300
lines, because each trouble needs the cluster as the one before it left it.
"""

import contextlib
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.commands import ends
from tests.e2e.cluster import Cluster, deploy, fleet_named, until
from tests.e2e.conftest import SUITES
from tests.platform_process import Doc

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("patient")]

CONTROLLER, WITNESS, OTHER = "gs-1", "gs-2", "gs-3"
STATE = "/var/lib/slurm/slurmctld"
SKEW = "import time; real = time.time; time.time = lambda: real() + 600"
DROPIN = "/etc/systemd/system/slurmd.service.d/gpuaas-slurm.conf"


@dataclass
class Patient:
    cluster: Cluster
    suite: str

    def on(self, host: str, script: str) -> str:
        return self.cluster.on(host, "sh", "-c", script)

    # -- what the runner does --

    def look(self, **changes: str) -> tuple[str, dict[str, Doc]]:
        """One tick that repairs nothing: the health, and the reasons by their code."""
        return self._tick(GPUAAS_REPAIR="false", **changes)

    def mend(self, **changes: str) -> tuple[str, dict[str, Doc]]:
        """One tick as it is."""
        return self._tick(**changes)

    def _tick(self, **changes: str) -> tuple[str, dict[str, Doc]]:
        ran = self.cluster.run(**changes)
        ends(ran, 0)
        instance = self.cluster.instance()
        assert instance["status"] == "running"
        assert instance["health"] != "progressing"
        reasons = instance["status_detail"]["reasons"]
        assert all(reason["message"] and reason["class"] for reason in reasons)
        return instance["health"], {reason["code"]: reason for reason in reasons}

    def is_healthy(self) -> bool:
        return self.look() == ("healthy", {})

    def mended(self) -> None:
        """One tick puts it right. A slurmctld that was just started may not have an answer of every worker yet."""
        assert self.mend() == ("healthy", {}) or until(self.is_healthy, 60, "it is healthy", every=1)

    # -- what it reports about members --

    def repair(self, host: str) -> Doc:
        member = self.cluster.controller() if host == CONTROLLER else self.cluster.workers()[host]
        note: Doc = member["adapter_detail"].get("repair") or {}
        return note

    def state(self, host: str) -> str:
        return self.cluster.on(CONTROLLER, "sinfo", "--noheader", f"--nodes={host}", "--format=%T")

    # -- what runs --

    def processes(self) -> dict[str, str]:
        ours = [(CONTROLLER, "slurmctld"), (WITNESS, "slurmd"), (OTHER, "slurmd")]
        return {f"{host} {unit}": self.cluster.process(host, unit) for host, unit in ours}

    def job_runs(self, job: str) -> bool:
        return self.cluster.on(CONTROLLER, "squeue", "--noheader", f"--jobs={job}", "--format=%T") == "RUNNING"


@contextlib.contextmanager
def small_disk(cluster: Cluster) -> Iterator[None]:
    """The state directory on a file system of its own that is filled until less is left than must be.

    A host may not mount; this machine does it for the host.
    """
    container = next(host.container for host in cluster.fleet.hosts() if host.name == CONTROLLER)

    def privileged(script: str) -> None:
        subprocess.run(["podman", "exec", "--privileged", container, "sh", "-ec", script], check=True)

    privileged(
        f"mkdir /mnt/small; mount -t tmpfs -o size=1100m tmpfs /mnt/small; cp -a {STATE}/. /mnt/small;"
        f" mount --move /mnt/small {STATE}; fallocate --length 200M {STATE}/filler"
    )
    try:
        yield
    finally:
        privileged(
            f"rm {STATE}/filler; cp -a {STATE}/. /mnt/small; umount {STATE};"
            f" cp -a /mnt/small/. {STATE}; rm -r /mnt/small"
        )


@contextlib.contextmanager
def wrong_clock(patient: Patient, host: str) -> Iterator[None]:
    """Ten minutes ahead. The hosts share this machine's clock, so what is set is that of the host's Python, by which
    the look and the preflight read it."""
    start = "/etc/python$(python3 -c 'import sys; print(*sys.version_info[:2], sep=chr(46))')/sitecustomize.py"
    patient.on(host, f"cp {start} /root/right; echo '{SKEW}' >{start}")
    try:
        yield
    finally:
        patient.on(host, f"mv /root/right {start}")


@pytest.fixture(scope="module", params=SUITES)
def patient(request: pytest.FixtureRequest) -> Iterator[Patient]:
    """Attempts are plenty here, since one controller is broken many times in a few minutes; one test lowers them."""
    with fleet_named(f"e2e-health-{request.param}") as fleet:
        fleet.up(hosts=3, suite=request.param, warm=True)
        often = {"GPUAAS_OBSERVE_SECONDS": "0", "GPUAAS_RETRY_SECONDS": "0", "GPUAAS_MAX_ATTEMPTS": "20"}
        # A worker that does not answer for so long is given up, so that no test waits for minutes.
        cluster = deploy(fleet, CONTROLLER, f"{WITNESS},{OTHER}", "--slurm", "SlurmdTimeout=10", **often)
        ends(cluster.run(), 0)
        yield Patient(cluster, request.param)


@pytest.fixture(scope="module")
def job(patient: Patient) -> str:
    """It runs while its controller is broken and mended."""
    wrapped = ("--output=/dev/null", f"--nodelist={WITNESS}", "--wrap", "sleep 3600")
    number = patient.cluster.on(CONTROLLER, "sbatch", "--parsable", *wrapped)
    until(lambda: patient.job_runs(number), 60, "the job runs")
    return number


def test_a_new_cluster_is_healthy_without_reasons(patient: Patient) -> None:
    assert patient.cluster.instance()["health"] == "healthy"
    assert patient.cluster.instance()["status_detail"]["reasons"] == []


def test_accounting_that_is_down_degrades_and_is_started_again_and_nothing_else_is(patient: Patient, job: str) -> None:
    before = patient.processes()
    patient.on(CONTROLLER, "systemctl stop slurmdbd mariadb")
    health, reasons = patient.look()
    assert (health, set(reasons)) == ("degraded", {"slurmdbd_not_active", "mariadb_not_active"})
    assert reasons["slurmdbd_not_active"]["class"] == "drift"
    assert "journalctl -u slurmdbd" in reasons["slurmdbd_not_active"]["message"]
    patient.mended()
    note = patient.repair(CONTROLLER)
    assert (note["attempts"], note["outcome"]) == (1, "repaired")
    assert set(note) == {"why", "attempts", "last_at", "next_at", "outcome"}
    assert patient.processes() == before and patient.job_runs(job)


def test_a_controller_that_is_down_is_unhealthy_and_comes_back_with_its_job(patient: Patient, job: str) -> None:
    patient.on(CONTROLLER, "systemctl stop slurmctld munge")
    health, reasons = patient.look()
    assert (health, set(reasons)) == ("unhealthy", {"slurmctld_not_active", "munge_not_active"})
    patient.mended()
    assert patient.repair(CONTROLLER)["outcome"] == "repaired"
    assert patient.job_runs(job)


def test_a_killed_slurmctld_that_systemd_brings_back_is_healthy_again_by_itself(patient: Patient, job: str) -> None:
    def process() -> str:
        return patient.on(
            CONTROLLER, "systemctl is-active --quiet slurmctld && systemctl show -P MainPID slurmctld || :"
        )

    before, note = process(), patient.repair(CONTROLLER)
    patient.on(CONTROLLER, "systemctl kill --signal=KILL slurmctld")
    until(lambda: process() not in ("", "0", before), 60, "systemd starts slurmctld again")
    until(patient.is_healthy, 60, "it is healthy by itself", every=1)
    assert patient.repair(CONTROLLER) == note, "nothing was there to repair"
    assert patient.job_runs(job)


def test_full_disk_changed_config_and_replaced_program_are_reported_until_fixed(patient: Patient, job: str) -> None:
    original = patient.on(CONTROLLER, "cat /etc/slurm/slurm.conf")
    patient.on(CONTROLLER, "echo 'MessageTimeout=77' >>/etc/slurm/slurm.conf")
    patient.on(CONTROLLER, "cd /usr/sbin && cp -p slurmctld slurmctld.new && mv slurmctld.new slurmctld")
    with small_disk(patient.cluster):
        health, reasons = patient.look()
        assert (health, set(reasons)) == ("degraded", {"config_changed", "version_differs", "disk_nearly_full"})
        full = reasons["disk_nearly_full"]["message"]
        assert STATE in full and "free some space" in full
        assert "slurmctld" in reasons["version_differs"]["message"]
    patient.on(CONTROLLER, "systemctl restart slurmctld")
    until(lambda: set(patient.look()[1]) == {"config_changed"}, 60, "only the config is left", every=1)
    patient.mended()
    assert patient.on(CONTROLLER, "cat /etc/slurm/slurm.conf") == original
    assert "HASH_VAL = Match" in " ".join(patient.on(CONTROLLER, "scontrol show config").split())
    assert patient.job_runs(job)
    patient.cluster.on(CONTROLLER, "scancel", job)


def test_a_controller_that_cannot_be_reached_is_unknown_until_it_answers(patient: Patient) -> None:
    patient.on(CONTROLLER, "systemctl stop ssh.socket ssh.service 2>/dev/null; systemctl is-active ssh || true")
    try:
        health, reasons = patient.mend()
        assert (health, set(reasons)) == ("unknown", {"controller_unknown"})
        assert "ssh to the host failed" in reasons["controller_unknown"]["message"]
    finally:
        patient.on(CONTROLLER, "systemctl start ssh.service")
    until(patient.is_healthy, 60, "it is known again", every=1)


def test_a_clock_that_is_off_is_named_in_seconds(patient: Patient) -> None:
    with wrong_clock(patient, CONTROLLER):
        health, reasons = patient.mend()
        assert (health, set(reasons)) == ("degraded", {"clock_skew"})
        assert re.search(r"\b(59|60)\d s ahead of the runner's", reasons["clock_skew"]["message"])
    assert patient.is_healthy()


def test_closed_partitions_are_shown_until_they_are_open_again(patient: Patient) -> None:
    patient.on(CONTROLLER, f"scontrol create PartitionName=debug Nodes={OTHER} State=INACTIVE")
    health, reasons = patient.mend()
    assert (health, set(reasons)) == ("degraded", {"partition_closed"})
    assert "debug is INACTIVE" in reasons["partition_closed"]["message"]
    patient.on(CONTROLLER, "scontrol update PartitionName=main State=DOWN")
    health, reasons = patient.mend()
    assert (health, set(reasons)) == ("unhealthy", {"no_partition_open"})
    assert "main is DOWN" in reasons["no_partition_open"]["message"]
    assert "State=DOWN" in patient.on(CONTROLLER, "scontrol show partition main"), "a person's closing is left alone"
    patient.on(CONTROLLER, "scontrol update PartitionName=main State=UP; scontrol delete PartitionName=debug")
    assert patient.is_healthy()


def test_one_of_two_workers_down_degrades_and_both_down_is_unhealthy(patient: Patient) -> None:
    patient.on(WITNESS, "systemctl stop slurmd")
    until(lambda: "down" in patient.state(WITNESS), 120, "Slurm gives the worker up", every=0.5)
    health, reasons = patient.look()
    assert (health, set(reasons)) == ("degraded", {"worker_down"})
    assert reasons["worker_down"]["member_id"] == patient.cluster.workers()[WITNESS]["id"]
    patient.cluster.fleet.pause(OTHER)
    try:
        until(lambda: patient.state(OTHER) == "down*", 120, "Slurm gives the other one up too", every=0.5)
        health, reasons = patient.look()
        assert (health, set(reasons)) == ("unhealthy", {"no_worker_serves", "worker_down"})
        listed = patient.cluster.instance()["status_detail"]["reasons"]
        down = sorted(reason["member_id"] for reason in listed if reason["code"] == "worker_down")
        assert down == sorted(worker["id"] for worker in patient.cluster.workers().values())
    finally:
        patient.cluster.fleet.unpause(OTHER)
    until(lambda: patient.state(OTHER) == "idle", 120, "the other one answers again by itself", every=0.5)


def test_a_dead_worker_is_started_again_and_the_other_one_is_left_alone(patient: Patient) -> None:
    before = patient.cluster.process(OTHER, "slurmd")
    with wrong_clock(patient, WITNESS):
        health, reasons = patient.mend()
        assert (health, set(reasons)) == ("degraded", {"worker_down", "worker_clock_skew"})
        assert patient.repair(WITNESS)["outcome"] == "clock_skew"
        assert "ahead" in reasons["worker_clock_skew"]["message"]
    patient.mended()
    assert (patient.repair(WITNESS)["attempts"], patient.repair(WITNESS)["outcome"]) == (2, "repaired")
    assert patient.repair(OTHER) == {} and patient.cluster.process(OTHER, "slurmd") == before
    patient.cluster.runs_a_job_on_every_worker()


def test_a_worker_that_slurm_finds_invalid_is_reported_and_not_repaired(patient: Patient) -> None:
    def join_anew(edit: str) -> None:
        patient.on(WITNESS, "systemctl stop slurmd")
        patient.on(CONTROLLER, f"scontrol delete nodename={WITNESS}")
        patient.on(WITNESS, f"sed -i '{edit}' {DROPIN}; systemctl daemon-reload; systemctl start slurmd")

    before = patient.repair(WITNESS)
    join_anew("s/Feature=worker/Feature=worker RealMemory=9999999/")
    until(lambda: "inval" in patient.state(WITNESS), 60, "Slurm finds it invalid", every=0.5)
    health, reasons = patient.mend()
    assert (health, set(reasons)) == ("degraded", {"worker_invalid"})
    assert "RealMemory" in reasons["worker_invalid"]["message"]
    assert patient.repair(WITNESS) in ({}, before), "a person's business"
    join_anew("s/ RealMemory=9999999//")
    until(lambda: patient.state(WITNESS) == "idle", 60, "it is as it was", every=0.5)
    assert patient.is_healthy()


def test_repair_stays_away_from_a_persons_drain_and_ends_when_its_tries_are_spent(patient: Patient) -> None:
    if patient.suite != SUITES[0]:
        pytest.skip("policy, which knows no version: shown on one suite")
    patient.on(CONTROLLER, f"scontrol update nodename={OTHER} state=drain reason='bad fan'")
    patient.on(OTHER, "systemctl stop slurmd")
    until(lambda: "*" in patient.state(OTHER), 120, "it does not answer", every=0.5)
    health, reasons = patient.mend()
    assert (health, set(reasons), patient.repair(OTHER)) == ("healthy", {"worker_held_by_person"}, {})
    assert patient.cluster.fleet.exec(OTHER, ["systemctl", "is-active", "slurmd"]).stdout.strip() == "inactive"
    patient.on(OTHER, "systemctl start slurmd")
    patient.on(CONTROLLER, f"scontrol update nodename={OTHER} state=resume")

    spent = patient.repair(CONTROLLER).get("attempts", 0)
    last = {"GPUAAS_MAX_ATTEMPTS": str(spent + 1)}
    patient.on(CONTROLLER, "systemctl stop slurmdbd; systemctl mask --runtime slurmdbd")
    try:
        assert patient.mend(**last)[1]["slurmdbd_not_active"]["repair"]["outcome"] == "unit_masked"
        health, reasons = patient.mend(**last)
        assert health == "degraded" and patient.repair(CONTROLLER)["attempts"] == spent + 1
        assert "Nothing more is tried" in reasons["slurmdbd_not_active"]["message"]
    finally:
        patient.on(CONTROLLER, "systemctl unmask --runtime slurmdbd; systemctl start slurmdbd")
    until(patient.is_healthy, 60, "what a person put right is healthy", every=1)
