"""A running cluster gets a new munge key: a scenario in order, on real hosts of both suites.

A batch job and an interactive one run from the beginning to the end. Whatever happens to the key, they go on, and no
Slurm daemon is restarted.
"""

import base64
import functools
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from runner import settings
from runner.act.vault import Vault
from runner.slurm.app import SLURM
from tests.canaries import Canaries, Watcher
from tests.commands import EXEC, ends, fails
from tests.e2e.cluster import Cluster, by_hand, until
from tests.e2e.conftest import SUITES
from tests.platform_process import Doc
from tests.runner_process import COMMAND, answer, own_processes

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("standing")]

HOSTS = ("gs-1", "gs-2", "gs-3")
LIVE, STAGED = "/etc/munge/munge.key", "/etc/munge/munge.key.next"
# Jobs that end once a file exists: no test waits for a clock.
HELD = "until [ -e /tmp/go ]; do sleep 0.2; done; rm /tmp/go; echo survived"
# Submits all the time until /tmp/stop exists, and records the result of each. One batch job, then one to wait for, so
# that no queue builds up; and bounded, whatever happens to the test.
SUBMIT = """
rm -f /tmp/stop /tmp/sbatch /tmp/srun; n=0
while [ ! -e /tmp/stop ] && [ $((n += 1)) -lt 500 ]; do
  sbatch --parsable --output=/dev/null --wrap true >>/tmp/sbatch 2>/tmp/why ||
    echo "refused $(tr '\\n' ' ' </tmp/why)" >>/tmp/sbatch
  timeout 200 srun true >/dev/null 2>/tmp/why && echo ran >>/tmp/srun ||
    echo "refused $(tr '\\n' ' ' </tmp/why)" >>/tmp/srun
done
"""


@dataclass
class Scenario:
    cluster: Cluster
    suite: str
    processes: dict[str, str] = field(default_factory=dict)
    jobs: tuple[str, ...] = ()
    began: str = ""

    def slurm(self, *argv: str) -> str:
        return self.cluster.on("gs-1", *argv)

    def digests(self) -> dict[str, str]:
        return {host: self.cluster.on(host, "sha256sum", LIVE).split()[0] for host in HOSTS}

    def key(self, host: str = "gs-1") -> bytes:
        return base64.b64decode(self.cluster.on(host, "base64", "--wrap=0", LIVE))

    def rotate(self, **changes: str) -> tuple[Doc, str]:
        """Asked for and carried out: the operation as it ended, and the runner's log."""
        asked: Doc = answer(self.cluster.variables, "op", "rotate-credentials", self.cluster.instance_id)
        ran = self.cluster.run(**changes)
        ended = self.operation(asked["id"])
        ends(ran, 0 if ended["status"] == "succeeded" else 1)
        return ended, ran.stdout + ran.stderr

    def play(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """What a person types, with the instance's own ssh key."""
        return by_hand(self.cluster, COMMAND, *EXEC, "--instance", self.cluster.instance_id, "--", *command)

    @property
    def group(self) -> str:
        return f"instance_{self.cluster.instance_id.replace('-', '_')}"

    def operation(self, one: str) -> Doc:
        listed: Doc = self.cluster.api.get(f"{self.cluster.path}/operations").json()
        return next(found for found in listed["items"] if found["id"] == one)

    def name_of(self, host: str) -> str:
        return f"worker-{self.cluster.workers()[host]['id'][:8]}"

    def remember(self) -> None:
        batch = self.slurm("sbatch", "--parsable", "-w", "gs-2", "--output=/tmp/held", "--wrap", HELD)
        interactive = f"nohup srun -w gs-3 sh -c '{HELD}' >/tmp/interactive 2>&1 </dev/null & echo started"
        assert self.slurm("sh", "-c", interactive) == "started"
        until(lambda: len(self.slurm("squeue", "-ht", "R", "-o", "%i").split()) == 2, 60, "both jobs run")
        self.jobs = (batch, *(set(self.slurm("squeue", "-ho", "%i").split()) - {batch}))
        self.began = self.running()
        self.processes = self.now_running()

    def running(self) -> str:
        """Ids, nodes and start times of the two jobs that run since the beginning."""
        return "\n".join(
            sorted(self.slurm("squeue", "-ht", "R", "-j", ",".join(self.jobs), "-o", "%i %N %S").split("\n"))
        )

    def now_running(self) -> dict[str, str]:
        daemons = {f"{unit} gs-1": self.cluster.process("gs-1", unit) for unit in ("slurmctld", "slurmdbd")}
        return daemons | {f"slurmd {host}": self.cluster.process(host, "slurmd") for host in ("gs-2", "gs-3")}

    def in_the_vault(self) -> dict[str, object]:
        given = {
            "base_url": self.cluster.variables["GPUAAS_BASE_URL"],
            "VAULT_ADDR": self.cluster.variables["VAULT_ADDR"],
        }
        given |= {name: self.cluster.variables[name] for name in ("VAULT_ROLE_ID", "VAULT_SECRET_ID")}
        vault_settings = settings.Settings(project_id=self.cluster.variables["GPUAAS_PROJECT_ID"], **given)  # type: ignore[arg-type]
        vault = Vault(vault_settings, SLURM.runtime_secrets)
        vault._login()
        return vault._read(self.cluster.instance()["id"])[1]


@pytest.fixture(scope="module")
def scenario(standing: Cluster) -> Scenario:
    """gs-1 with workers gs-2 and gs-3, on each of which a job runs."""
    changes = {"GPUAAS_LOG_LEVEL": "debug", "GPUAAS_MAX_ATTEMPTS": "1", "GPUAAS_LEASE_SECONDS": "10"}
    one = Scenario(standing.changed(**changes), standing.suite)
    one.remember()
    return one


def test_a_host_that_cannot_be_prepared_stops_the_rotation_on_all_hosts(scenario: Scenario) -> None:
    before = scenario.digests()
    scenario.cluster.on("gs-3", "mkdir", STAGED)
    try:
        ended, _ = scenario.rotate()
        assert (ended["status"], ended["error"]["code"]) == ("failed", "rotation_not_prepared")
        assert scenario.name_of("gs-3") in ended["error"]["message"] and "path_in_the_way" in ended["error"]["message"]
        done = scenario.play("ansible-playbook", "-i", "gpuaas.yml", "playbooks/rotate.yml", "--limit", scenario.group)
        ends(done, 2)
        # The recap has a line for each host; none came through without a message that nothing was changed.
        recap = {line.split()[0]: line for line in done.stdout.partition("PLAY RECAP")[2].splitlines() if ":" in line}
        names = {
            f"controller-{scenario.cluster.controller()['id'][:8]}",
            scenario.name_of("gs-2"),
            scenario.name_of("gs-3"),
        }
        assert set(recap) == names
        assert all("failed=0" not in line and "unreachable=0" in line for line in recap.values()), recap
    finally:
        scenario.cluster.on("gs-3", "rmdir", STAGED)
    assert scenario.digests() == before
    for host in HOSTS:
        assert scenario.cluster.on(host, "find", "/etc/munge", "-name", "*.next") == ""
    assert set(scenario.in_the_vault()) == {"jwt_key", "munge_key", "slurmdbd_password"}


def test_a_rotation_under_load_loses_no_job_restarts_no_daemon_and_leaks_no_key(
    scenario: Scenario, record_property: Callable[[str, object], None]
) -> None:
    before, old = scenario.digests(), scenario.key()
    stale = scenario.cluster.on("gs-2", "munge", "--no-input")
    submitting = threading.Thread(target=lambda: scenario.cluster.on("gs-1", "sh", "-c", SUBMIT), daemon=True)
    submitting.start()
    try:
        until(
            lambda: scenario.slurm("sh", "-c", "cat /tmp/sbatch /tmp/srun 2>/dev/null || true"),
            60,
            "jobs are submitted",
        )
        count = "grep -c '^[0-9]' /tmp/sbatch || true"
        earlier = int(scenario.slurm("sh", "-c", count))
        with own_processes(), Watcher() as watcher:
            ended, log = scenario.rotate()
        assert int(scenario.slurm("sh", "-c", count)) > earlier, "nothing was submitted meanwhile"
    finally:
        scenario.slurm("touch", "/tmp/stop")
        submitting.join(300)
    assert not submitting.is_alive()
    assert ended["status"] == "succeeded", (ended, log)

    # One key everywhere, and not the one before.
    after = scenario.digests()
    assert len(set(after.values())) == 1 and set(after.values()) != set(before.values())
    assert len(ended["result"]["rotated"]) == len(HOSTS) and ended["result"]["missed"] == {}
    for host in HOSTS:
        assert scenario.cluster.on(host, "stat", "-c", "%U %a", LIVE) == "munge 400"
        assert scenario.cluster.on(host, "find", "/etc/munge", "-type", "f") == LIVE
        # What the old key made is worth nothing any more.
        refused = scenario.cluster.fleet.exec(host, ["unmunge"], stdin=stale)
        fails(refused)
        assert "Invalid credential" in refused.stdout + refused.stderr, refused.stderr
    assert scenario.in_the_vault()["munge_key"] == base64.b64encode(scenario.key()).decode()

    # Nothing was restarted, and what ran runs.
    assert scenario.now_running() == scenario.processes
    assert scenario.running() == scenario.began

    # What was accepted was done.
    submitted = [line for line in scenario.slurm("cat", "/tmp/sbatch").splitlines() if line.isdigit()]
    refusals = [line for line in scenario.slurm("cat", "/tmp/sbatch", "/tmp/srun").splitlines() if "refused" in line]
    ran = scenario.slurm("grep", "-c", "ran", "/tmp/srun")
    moments = sorted(float(one) for one in ended["result"]["rotated"].values())
    # For who wants to know (docs/usage/rotation.md has a table of these); no test depends on how fast a machine is.
    record_property(
        "rotation",
        f"{scenario.suite}: hosts changed within {moments[-1] - moments[0]:.3f} s; {len(submitted)} sbatch and"
        f" {ran} srun meanwhile, {len(refusals)} refused: {sorted(set(refusals))}",
    )
    assert len(submitted) > earlier

    def states() -> set[str]:
        listed = scenario.slurm("sacct", "-XnPj", ",".join(submitted), "--format=State").splitlines()
        return {line.split(" ")[0] for line in listed} if len(listed) == len(submitted) else {"PENDING"}

    # One whose launch met the switch after all is held back two minutes by Slurm itself.
    until(lambda: not states() & {"PENDING", "RUNNING", "COMPLETING", "REQUEUED"}, 400, "every job ends", every=1)
    assert states() == {"COMPLETED"}
    _shows_neither(scenario, watcher, log, (old, scenario.key()))
    scenario.cluster.runs_a_job_on_every_worker()


def _shows_neither(scenario: Scenario, watcher: Watcher, log: str, keys: tuple[bytes, ...]) -> None:
    """No key, raw or encoded, where it does not belong."""
    one, canaries = scenario.cluster, Canaries()
    for key in keys:
        canaries.plant("munge_key", base64.b64encode(key).decode())
    api = str([one.instance(), one.members(), one.operations(), one.events(), one._get("/operations")])
    assert canaries.seen_in(log + api) == set()
    assert watcher.leaks(canaries) == []
    assert len(watcher.seen) > 100, "the watcher saw too little"
    for host in HOSTS:
        found = canaries.on_disk(functools.partial(one.fleet.exec, host))
        assert found == {"munge_key": [LIVE]}, host


def test_a_person_rotates_by_hand_in_one_run(scenario: Scenario) -> None:
    if scenario.suite != SUITES[0]:
        pytest.skip("does not depend on the version of Slurm")
    before = scenario.digests()
    done = scenario.play("ansible-playbook", "-i", "gpuaas.yml", "playbooks/rotate.yml", "--limit", scenario.group)
    ends(done, 0)
    after = scenario.digests()
    assert len(set(after.values())) == 1 and set(after.values()) != set(before.values())
    assert scenario.in_the_vault()["munge_key"] == base64.b64encode(scenario.key()).decode()
    assert base64.b64encode(scenario.key()).decode() not in done.stdout + done.stderr
    assert scenario.now_running() == scenario.processes and scenario.running() == scenario.began


def test_what_ran_all_the_while_ends_as_it_would_have(scenario: Scenario) -> None:
    for host in ("gs-2", "gs-3"):
        scenario.cluster.on(host, "touch", "/tmp/go")
    until(lambda: scenario.slurm("squeue", "-h") == "", 180, "both jobs end")
    # Srun may have printed before that it waits for its node.
    assert scenario.slurm("tail", "-n1", "/tmp/interactive") == "survived"
    assert scenario.cluster.on("gs-2", "cat", "/tmp/held") == "survived"
    # Slurmctld sends the end of a job to slurmdbd a moment after squeue has dropped the job.
    state = functools.partial(scenario.slurm, "sacct", "-XnPj", scenario.jobs[0], "--format=State")
    until(lambda: state() != "RUNNING", 60, "slurmdbd has the end of the first job", seen=state)
    assert state() == "COMPLETED"


def test_an_unreachable_worker_is_named_and_the_next_deploy_play_brings_it_the_key(scenario: Scenario) -> None:
    scenario.cluster.fleet.pause("gs-3")
    try:
        ended, _ = scenario.rotate()
    finally:
        scenario.cluster.fleet.unpause("gs-3")
    assert (ended["status"], ended["error"]["code"]) == ("failed", "rotation_partly")
    assert ended["result"]["missed"] == {scenario.name_of("gs-3"): "host_unreachable"}
    assert scenario.name_of("gs-3") in ended["error"]["message"]
    digests = scenario.digests()
    assert digests["gs-1"] == digests["gs-2"] != digests["gs-3"]

    ping = ("ansible", "-i", "gpuaas.yml", scenario.name_of("gs-3"), "-m", "ansible.builtin.ping")
    until(lambda: scenario.play(*ping).returncode == 0, 120, "the host answers again")
    limit = f"controller-{scenario.cluster.controller()['id'][:8]},{scenario.name_of('gs-3')}"
    deploys = ("ansible-playbook", "-i", "gpuaas.yml", "playbooks/deploy.yml", "--limit", limit)
    # slurmctld may give the node up in the very seconds in which the play runs, which the next one puts right.
    until(lambda: scenario.play(*deploys).returncode == 0, 300, "the deploy play brings it the key")
    assert len(set(scenario.digests().values())) == 1
    scenario.cluster.runs_a_job_on_every_worker()
