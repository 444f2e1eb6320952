"""Faults of hosts, each caused for real: what is on record while they last, and the right end once they are over.

One cluster whose hosts are named after what is done to them, many at a time in one tick. A scenario in order: workers
join, serve, drain and leave, each in trouble of its own. On one Debian only: none of this depends on which.

Over 300 lines, because it is one scenario whose steps depend on each other.
"""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from sandbox.fleet.hosts import LOGIN_USER, HostSpec
from tests.commands import ends, fails
from tests.e2e.cluster import Cluster, deploy, fleet_named, log_lines, nothing_is_claimed, until
from tests.platform_process import ROOT, Doc
from tests.runner_process import answer

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("ward")]

SUITE = "trixie"
CONTROLLER, WITNESS, LATE = "controller", "witness", "late"
# Reported at once and not tried again: a person has to put something right, and then adds the worker anew.
FOR_A_PERSON = {
    "nosudo": ("not_root", "intervention", "deploy/sudoers.d"),
    "fullkeys": ("disk_full", "intervention", "Free space"),
    "fullvar": ("disk_full", "intervention", "MiB free"),
    "otherkey": ("munge_mismatch", "repairable", "Compare clocks and keys"),
    "masked": ("unit_masked", "intervention", "systemctl unmask munge"),
    "clock": ("clock_skew", "intervention", "s ahead of the controller's"),
}
# May pass by itself, so it is tried again.
MAY_PASS = {
    "refused": "Connection refused",
    "hole": "Connection timed out",
    "cut": "ssh to the host failed",
    "frozen": "ssh to the host failed",
    "rebooted": "ssh to the host failed",
    "destroyed": "ssh to the host failed",
}
HUNG_UP = "hungup"
IN_THE_MIDDLE = ("cut", "frozen", "rebooted", "destroyed", HUNG_UP)
HOSTS = (CONTROLLER, WITNESS, LATE, *FOR_A_PERSON, *MAY_PASS, HUNG_UP)

LOCKS = "/run/gpuaas-slurm"
SUDOERS = ROOT / "deploy" / "sudoers.d" / "gpuaas-slurm"
SKEW = "import time; real = time.time; time.time = lambda: real() + 600"
CLOCK = "/etc/python$(python3 -c 'import sys; print(*sys.version_info[:2], sep=chr(46))')/sitecustomize.py"


@dataclass
class Ward:
    """The cluster, and what is done to its hosts."""

    cluster: Cluster
    witness: str = ""
    gone: set[str] = field(default_factory=set)

    def sh(self, host: str, script: str) -> str:
        return self.cluster.on(host, "sh", "-ec", script)

    def worker(self, host: str) -> Doc:
        return self.cluster.workers()[host]

    def ask(self, verb: str, *arguments: str) -> Doc:
        asked: Doc = answer(self.cluster.variables, "op", verb, self.cluster.instance_id, *arguments)
        return asked

    def operation(self, asked: Doc) -> Doc:
        return next(one for one in self.cluster.operations() if one["id"] == asked["id"])

    def nodes(self) -> dict[str, str]:
        lines = self.cluster.on(CONTROLLER, "sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
        return dict(line.split() for line in lines)

    def reasons(self) -> dict[str, str]:
        """Of the instance: which code each member has."""
        hosts = {one["id"]: host for host, one in self.cluster.workers().items()}
        listed = self.cluster.instance()["status_detail"]["reasons"]
        assert all(reason["message"] and reason["class"] for reason in listed)
        return {hosts.get(reason.get("member_id", ""), CONTROLLER): reason["code"] for reason in listed}

    # -- faults, and their ends --

    def _container(self, host: str) -> str:
        return next(one.container for one in self.cluster.fleet.hosts() if one.name == host)

    def privileged(self, host: str, script: str) -> None:
        """What a host may not do for itself in a container, this machine does for it."""
        subprocess.run(["podman", "exec", "--privileged", self._container(host), "sh", "-ec", script], check=True)

    def swallow(self, host: str) -> None:
        """Every packet to or from its ssh is dropped, without an ICMP error."""
        rules = "add table inet hole; add chain inet hole in { type filter hook input priority 0; };"
        self._net(host, f"{rules} add rule inet hole in tcp dport 22 drop")

    def let_through(self, host: str) -> None:
        self._net(host, "delete table inet hole")

    def _net(self, host: str, rules: str) -> None:
        show = ["podman", "inspect", "--format", "{{.State.Pid}}", self._container(host)]
        process = subprocess.run(show, capture_output=True, text=True, check=True).stdout.strip()
        subprocess.run(["nsenter", f"--net=/proc/{process}/ns/net", "nft", rules], check=True)

    def power_off(self, host: str) -> None:
        """At once; when it boots it has the address it had."""
        found = next(one for one in self.cluster.fleet.hosts() if one.name == host)
        network = f"gpuaas-slurm-{self.cluster.fleet.name}"
        for command in (
            ("stop", "--time", "0", found.container),
            ("network", "disconnect", network, found.container),
            ("network", "connect", "--ip", found.address, network, found.container),
        ):
            subprocess.run(["podman", *command], check=True, capture_output=True)

    def destroy(self, host: str) -> None:
        self.cluster.fleet.kill(host)
        self.gone.add(host)

    def all_up(self) -> None:
        """Whatever is frozen goes on, whatever is off boots, and all let people in; what is gone stays gone."""
        self.cluster.fleet.ensure([HostSpec(name, SUITE, warm=True) for name in HOSTS if name not in self.gone])

    def hold(self, host: str) -> None:
        """Whoever wants to change something on the host has to wait: it is in the middle of that as long as we like."""
        self.sh(
            host,
            f"mkdir -pm 0711 {LOCKS}; systemd-run --quiet --collect --unit=holder flock {LOCKS}/lock sleep infinity;"
            f" until ! flock --nonblock {LOCKS}/lock true; do sleep 0.05; done",
        )

    def in_the_middle(self, *hosts: str) -> None:
        """A module waits for the lock on each of them: a Python process has the file open."""
        waiting = (
            f"find /proc -maxdepth 3 -path '*/fd/*' -lname {LOCKS}/lock 2>/dev/null"
            " | sed 's,/fd/.*,/comm,' | xargs -r cat 2>/dev/null | grep -q python"
        )
        for host in hosts:
            self.sh(host, f"tries=900; until {waiting}; do tries=$((tries - 1)); [ $tries -gt 0 ]; sleep 0.2; done")

    def let_go(self, host: str) -> None:
        self.sh(host, "systemctl stop holder")


def no_ssh(ward: Ward, host: str) -> None:
    ward.sh(host, "systemctl stop ssh.socket ssh.service 2>/dev/null || true; ! ss -Hltn | grep -q ':22 '")


def ssh_again(ward: Ward, host: str) -> None:
    ward.sh(host, "systemctl start ssh.service")


@pytest.fixture(scope="module")
def ward() -> Iterator[Ward]:
    settings = {"GPUAAS_RETRY_SECONDS": "0", "GPUAAS_MAX_ATTEMPTS": "2", "GPUAAS_OBSERVE_SECONDS": "0"}
    with fleet_named("e2e-faults") as fleet:
        fleet.ensure([HostSpec(name, SUITE, warm=True) for name in HOSTS])
        # A worker that does not answer for so long is given up, so that no test waits for minutes.
        cluster = deploy(fleet, CONTROLLER, WITNESS, "--slurm", "SlurmdTimeout=10", **settings)
        ends(cluster.run(), 0)
        yield Ward(cluster, cluster.process(WITNESS, "slurmd"))


@pytest.fixture(autouse=True)
def other_workers_are_unchanged(ward: Ward) -> Iterator[None]:
    yield
    assert ward.cluster.process(WITNESS, "slurmd") == ward.witness, "a daemon was restarted"
    until(lambda: ward.nodes()[WITNESS] == "idle", 60, "it has answered slurmctld since that was started")
    nothing_is_claimed(ward.cluster)


# -- workers that join ---------------------------------------------------------------------------------------


@dataclass
class Struck:
    """After the tick in which thirteen workers joined, each in trouble of its own."""

    ward: Ward
    for_a_person: Doc
    may_pass: Doc
    code: int
    log: str


@pytest.fixture(scope="module")
def struck(ward: Ward) -> Struck:
    no_ssh(ward, "refused")
    ward.swallow("hole")
    ward.sh("nosudo", "rm /etc/sudoers.d/*")
    ward.privileged(
        "fullkeys", "mount -t tmpfs -o size=64k,mode=0700 tmpfs /etc/munge; fallocate -l 64k /etc/munge/full"
    )
    ward.privileged("fullvar", "mount -t tmpfs -o size=100m tmpfs /var")
    ward.sh("otherkey", "echo 'OPTIONS=--key-file=/etc/munge/other.key' >>/etc/default/munge")
    ward.sh("otherkey", "head -c 128 /dev/urandom >/etc/munge/other.key; chown munge: /etc/munge/other.key")
    ward.sh("otherkey", "chmod 0400 /etc/munge/other.key")
    ward.sh("masked", "systemctl mask --now munge")
    ward.sh("clock", f"cp {CLOCK} /root/right; echo '{SKEW}' >{CLOCK}")
    for host in IN_THE_MIDDLE:
        ward.hold(host)
    for_a_person, may_pass = ward.cluster.add(*FOR_A_PERSON), ward.cluster.add(*MAY_PASS, HUNG_UP)
    runner = ward.cluster.start_run()
    ward.in_the_middle(*IN_THE_MIDDLE)
    ward.swallow("cut")
    ward.cluster.fleet.pause("frozen")
    ward.power_off("rebooted")
    ward.destroy("destroyed")
    ward.sh(HUNG_UP, f"pkill --signal KILL --full '[s]shd.*: {LOGIN_USER}'")
    ward.let_go(HUNG_UP)
    _, log = runner.communicate(timeout=300)
    return Struck(ward, for_a_person, may_pass, runner.returncode, log)


def test_what_needs_a_person_fails_at_once_with_the_next_step(struck: Struck) -> None:
    workers = struck.ward.cluster.workers()
    for host, (code, klass, expected) in FOR_A_PERSON.items():
        detail = workers[host]["adapter_detail"]
        error = detail["last_adapter_error"]
        assert (host, workers[host]["status"], detail["attempt"]) == (host, "failed", 1)
        assert (host, error["code"], error["class"]) == (host, code, klass), error
        assert expected in error["message"]
        assert error["host"] == f"worker-{workers[host]['id'][:8]}"
    ended = struck.ward.operation(struck.for_a_person)
    assert ended["status"] == "failed"
    results = {one["status"] for one in ended["result"]["members"].values()}
    assert results == {"failed"} and len(ended["result"]["members"]) == len(FOR_A_PERSON)


def test_what_may_pass_is_tried_again_and_its_operation_goes_on(struck: Struck) -> None:
    workers = struck.ward.cluster.workers()
    for host, expected in MAY_PASS.items():
        detail = workers[host]["adapter_detail"]
        error = detail["last_adapter_error"]
        assert (host, workers[host]["status"], detail["attempt"]) == (host, "reconciling", 1)
        assert (host, error["code"], error["class"]) == (host, "host_unreachable", "retryable"), error
        assert expected in error["message"] and "Check that it is up" in error["message"]
        assert detail["next_attempt_at"]
    assert struck.ward.operation(struck.may_pass)["status"] == "running"


def test_a_connection_that_breaks_in_the_middle_is_made_again_and_the_join_goes_on(struck: Struck) -> None:
    worker = struck.ward.worker(HUNG_UP)
    assert (worker["status"], worker["adapter_detail"]["last_adapter_error"]) == ("ready", None)


def test_one_play_serves_all_and_ends_by_itself_although_some_do_not_answer(struck: Struck) -> None:
    """Its runner has ended after less than 300 s, and a play is stopped after 1800 s."""
    plays = [line["playbook"] for line in log_lines(struck.log) if line["event"] == "play"]
    assert plays == ["add_worker"] and struck.code == 1, struck.log
    errors = [one["adapter_detail"]["last_adapter_error"] for one in struck.ward.cluster.workers().values()]
    assert len(errors) == 1 + len(FOR_A_PERSON) + len(MAY_PASS) + 1


def test_the_instance_is_degraded_and_names_each_worker_that_failed(struck: Struck) -> None:
    assert struck.ward.cluster.instance()["health"] == "degraded"
    assert struck.ward.reasons() == {host: code for host, (code, _, _) in FOR_A_PERSON.items()}


@pytest.fixture(scope="module")
def lifted(struck: Struck) -> Ward:
    """Every fault is over, except for the host that is gone; the worker without sudo gets our rule and no other."""
    ward = struck.ward
    ssh_again(ward, "refused")
    ward.let_through("hole")
    ward.let_through("cut")
    ward.all_up()
    for host in ("cut", "frozen"):
        ward.let_go(host)
    rule = SUDOERS.read_text()
    install = ["sh", "-c", "umask 0337; cat >/etc/sudoers.d/gpuaas-slurm"]
    ends(ward.cluster.fleet.exec("nosudo", install, stdin=rule), 0)
    ward.privileged("fullkeys", "umount /etc/munge")
    ward.privileged("fullvar", "umount --lazy /var")
    ward.sh("otherkey", "sed -i '/other.key/d' /etc/default/munge")
    ward.sh("masked", "systemctl unmask munge")
    ward.sh("clock", f"mv /root/right {CLOCK}")
    ward.cluster.add(*FOR_A_PERSON)
    ends(ward.cluster.run(), 1)
    return ward


def test_once_the_faults_are_over_all_workers_join(lifted: Ward, struck: Struck) -> None:
    there = {host: one["status"] for host, one in lifted.cluster.workers().items()}
    expected = dict.fromkeys((WITNESS, *FOR_A_PERSON, *MAY_PASS, HUNG_UP), "ready")
    assert there == expected | {"destroyed": "failed"}


def test_they_take_jobs(lifted: Ward) -> None:
    lifted.cluster.runs_a_job_on_every_worker()


def test_a_worker_joins_with_our_sudoers_rule_alone_and_nothing_else_is_allowed(lifted: Ward) -> None:
    lifted.sh("nosudo", "visudo --check")
    assert lifted.sh("nosudo", "ls /etc/sudoers.d") == "gpuaas-slurm"
    assert lifted.worker("nosudo")["status"] == "ready"
    for command in ("id", "/bin/sh -c id", "/usr/bin/python3 -c pass", "-u munge id", "systemctl stop munge"):
        refused = lifted.cluster.fleet.exec(
            "nosudo", ["runuser", "-u", LOGIN_USER, "--", "sh", "-c", f"sudo -n {command}"]
        )
        fails(refused)
        assert "uid=" not in refused.stdout, command


# -- a controller that does not run --------------------------------------------------------------------------


def test_a_dead_slurmctld_holds_up_join_and_drain_until_it_was_started_again(lifted: Ward) -> None:
    ward, before = lifted, set(lifted.nodes())
    join, drain = ward.cluster.add(LATE), ward.ask("drain", "--members", HUNG_UP)
    ward.sh(CONTROLLER, "systemctl stop slurmctld")
    ends(ward.cluster.run(), 0)
    worker = ward.worker(LATE)
    error = worker["adapter_detail"]["last_adapter_error"]
    assert (worker["status"], worker["adapter_detail"]["attempt"]) == ("reconciling", 1)
    assert (error["code"], error["class"]) == ("controller_silent", "retryable")
    assert ward.worker(HUNG_UP)["status"] == "draining"
    assert {ward.operation(one)["status"] for one in (join, drain)} == {"running"}
    repair = ward.cluster.controller()["adapter_detail"]["repair"]
    assert (repair["why"], repair["outcome"]) == ("slurmctld_not_active", "repaired")
    assert set(ward.nodes()) == before, "nothing was deleted"

    def both_done() -> bool:
        ends(ward.cluster.run(), 0)
        return {ward.operation(one)["status"] for one in (join, drain)} == {"succeeded"}

    until(both_done, 60, "the next ticks do what was asked", every=1)
    assert ward.worker(LATE)["status"] == "ready"
    assert ward.nodes()[HUNG_UP] == "drained"
    ward.cluster.runs_a_job_on_every_worker()


def test_a_worker_whose_host_is_gone_before_it_ever_joined_can_be_removed(lifted: Ward) -> None:
    never = lifted.worker("destroyed")["id"]
    remove = lifted.ask("remove", "--members", never, "--host-patience", "0")
    ends(lifted.cluster.run(), 0)
    assert lifted.operation(remove)["status"] == "succeeded"
    worker = lifted.worker("destroyed")
    assert (worker["status"], worker["adapter_detail"]["host_cleaned"]) == ("deleted", False)
    assert lifted.reasons() == {}


# -- workers that serve --------------------------------------------------------------------------------------


def test_workers_with_another_munge_key_or_a_dead_munged_are_named_and_repaired(lifted: Ward) -> None:
    ward, ill = lifted, ("otherkey", "masked")
    ward.sh("otherkey", "head -c 128 /dev/urandom >/etc/munge/munge.key; systemctl restart munge")
    ward.sh("masked", "systemctl stop munge")
    until(lambda: all("down" in ward.nodes()[host] for host in ill), 120, "Slurm gives them up", every=0.5)
    ends(ward.cluster.run(GPUAAS_REPAIR="false"), 0)
    assert ward.cluster.instance()["health"] == "degraded", ward.cluster.instance()["status_detail"]
    assert ward.reasons() == dict.fromkeys(ill, "worker_down")
    ends(ward.cluster.run(), 0)
    notes = {host: ward.worker(host)["adapter_detail"]["repair"] for host in ill}
    assert {(note["outcome"], note["attempts"]) for note in notes.values()} == {("repaired", 1)}
    assert ward.reasons() == {}
    ward.cluster.runs_a_job_on_every_worker()


# -- workers that leave --------------------------------------------------------------------------------------


def test_a_drain_is_complete_when_its_host_reboots_or_dies_in_the_middle(lifted: Ward) -> None:
    ward = lifted
    leaving = ("clock", "fullvar")
    jobs = [
        ward.cluster.on(
            CONTROLLER, *("sbatch", "--parsable", f"--nodelist={host}", "--no-requeue", "--output=/dev/null"),
            *("--wrap", "sleep 3600"),
        )
        for host in leaving
    ]  # fmt: skip
    until(lambda: {ward.nodes()[host] for host in leaving} <= {"mixed", "allocated"}, 60, "they run jobs")
    drain = ward.ask("drain", "--members", ",".join(leaving))
    ends(ward.cluster.run(), 0)
    for host in leaving:
        worker = ward.worker(host)
        assert (worker["status"], worker["adapter_detail"]["jobs_remaining"]) == ("draining", 1)
    ward.power_off("fullvar")
    ward.destroy("clock")

    def done() -> bool:
        ends(ward.cluster.run(), 0)
        return bool(ward.operation(drain)["status"] == "succeeded")

    until(done, 120, "the drain ends once Slurm has given the jobs up", every=1)
    output = ward.cluster.on(CONTROLLER, "sacct", "-XnPj", ",".join(jobs), "--format=State")
    assert set(output.split()) == {"NODE_FAIL"}
    assert {ward.worker(host)["adapter_detail"]["phase"] for host in leaving} == {"drained"}
    ward.all_up()


def test_a_removal_whose_hosts_fail_in_the_middle_waits_and_then_leaves_them_clean(lifted: Ward) -> None:
    ward = lifted
    held, doomed = ("cut", "frozen", "rebooted"), "fullkeys"
    for host in (*held, doomed):
        ward.hold(host)
    no_ssh(ward, "refused")
    remove = ward.ask("remove", "--members", ",".join((*held, "refused")))
    forget = ward.ask("remove", "--members", doomed, "--host-patience", "0")
    runner = ward.cluster.start_run()
    ward.in_the_middle(*held, doomed)
    ward.swallow("cut")
    ward.cluster.fleet.pause("frozen")
    ward.power_off("rebooted")
    ward.destroy(doomed)
    _, log = runner.communicate(timeout=300)
    assert runner.returncode == 0, log
    for host in (*held, "refused"):
        worker = ward.worker(host)
        error = worker["adapter_detail"]["last_adapter_error"]
        assert (host, worker["status"], error["code"]) == (host, "deleting", "host_unreachable")
        assert worker["adapter_detail"]["leave"]["unreachable_since"]
        assert host in ward.nodes(), "nothing is deleted before its host has stopped"
    assert ward.operation(remove)["status"] == "running"
    assert ward.operation(forget)["status"] == "succeeded"
    lost = ward.worker(doomed)
    assert (lost["status"], lost["adapter_detail"]["host_cleaned"]) == ("deleted", False)
    assert lost["adapter_detail"]["host_left"] and doomed not in ward.nodes()

    ward.let_through("cut")
    ssh_again(ward, "refused")
    ward.all_up()
    for host in ("cut", "frozen"):
        ward.let_go(host)
    ends(ward.cluster.run(), 0)
    assert ward.operation(remove)["status"] == "succeeded"
    for host in (*held, "refused"):
        worker = ward.worker(host)
        assert (host, worker["status"], worker["adapter_detail"]["host_cleaned"]) == (host, "deleted", True)
        assert host not in ward.nodes()
    ward.cluster.runs_a_job_on_every_worker()
