"""Package policy on real hosts: a denied package changes no host, and a private source leaves no trace.

One scenario on one cluster: a worker is denied, then its source wants another password, then another key, then all is
right and it joins, and moves with its cluster to a newer suite; at last it is removed.
"""

import base64
import json
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from sandbox.fleet.fleet import Fleet
from sandbox.fleet.hosts import HostSpec
from tests.commands import EXEC, ends
from tests.e2e.cluster import Cluster, by_hand, deploy, fleet_named
from tests.e2e.private_repository import USER, Repository, serve
from tests.platform_process import Doc
from tests.runner_process import COMMAND, answer

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("scenario", independent=True)]

RIGHT, WRONG = f"canary-right-{uuid.uuid4().hex}", f"canary-wrong-{uuid.uuid4().hex}"
CREDENTIALS = [RIGHT, WRONG, *(base64.b64encode(f"{USER}:{one}".encode()).decode() for one in (RIGHT, WRONG))]
WORKER, LOST = "gs-2", "slurm-client"
LEDGER = "/var/lib/gpuaas-slurm"
# A file and a line of the journal that every search has to find: one that finds neither does not look.
CONTROL_FILE, FILE_CONTROL, JOURNAL_CONTROL = "/var/tmp/control", f"file-{uuid.uuid4().hex}", f"line-{uuid.uuid4().hex}"

# Looks at every process of the host, and at the login's file, until the file /run/enough exists. What it looks for
# comes by stdin, so that it does not find itself.
WATCH = """
import json, pathlib, sys
needles = [line.encode() for line in sys.stdin.read().split()]
looks, found, seen = 0, set(), set()
while not pathlib.Path("/run/enough").exists():
    looks += 1
    for path in pathlib.Path("/proc").glob("[0-9]*/*"):
        if path.name in ("cmdline", "environ"):
            try:
                data = path.read_bytes()
            except OSError:
                continue
            found |= {str(path) for one in needles if one in data}
    try:
        for path in pathlib.Path("/run/gpuaas-slurm/source/auth.conf.d").iterdir():
            at = path.lstat()
            seen.add((oct(at.st_mode & 0o777), at.st_uid, path.name))
    except OSError:
        pass
print(json.dumps([looks, sorted(found), sorted(seen)]))
"""


@dataclass
class Scenario:
    """What was observed at each step."""

    cluster: Cluster
    repository: Repository
    errors: dict[str, Doc] = field(default_factory=dict)
    left: dict[str, list[str]] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    by_hand: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    logs: str = ""
    watched: list[object] = field(default_factory=list)

    def on(self, *argv: str, stdin: str = "", codes: tuple[int, ...] = (0,)) -> str:
        return ends(self.cluster.fleet.exec(WORKER, argv, stdin), *codes).stdout.strip()

    def allow(self, password: str, **changes: str) -> None:
        """Only a private source, opened by a password."""
        control, credential = self.cluster.fleet.control(), str(uuid.uuid4())
        project = self.cluster.variables["GPUAAS_PROJECT_ID"]
        control.put_credential(project, credential, username=USER, password=password)
        source = self.repository.source(credential_id=credential, **changes)
        control.put_artifact_rule(
            "by-project", scope="project", owner_id=project, effect="allow", artifact="slurm", source=source
        )

    def join(self, turn: str, code: int) -> None:
        """Ask for the worker and let one tick work on it; then look at what is left on its host."""
        self.cluster.add(WORKER)
        ran = ends(self.cluster.run(GPUAAS_MAX_ATTEMPTS="1"), code)
        self.logs += ran.stdout + ran.stderr
        workers = [one for one in self.cluster.members() if one["component_key"] == "worker"]
        worker = max(workers, key=lambda one: str(one["created_at"]))
        self.errors[turn] = worker["adapter_detail"]["last_adapter_error"] or {}
        self.left[turn] = self.traces()

    def upgrade(self) -> None:
        """To what the newer suite has; the older one is not in it, so there is no way back."""
        answer(self.cluster.variables, "op", "upgrade", self.cluster.instance_id, "--accept-no-way-back")
        ran = ends(self.cluster.run(), 0)
        self.logs += ran.stdout + ran.stderr
        self.left["upgrade"] = self.traces()

    def converge_by_hand(self, turn: str) -> None:
        """A person converges the worker, which has lost one of Slurm's packages."""
        self.cluster.on(WORKER, "dpkg", "--remove", "--force-depends", LOST)
        instance = self.cluster.instance_id
        play = ("ansible-playbook", "-i", "gpuaas.yml", "playbooks/add_worker.yml", "--limit")
        group = f"instance_{instance.replace('-', '_')}"
        done = by_hand(self.cluster, COMMAND, *EXEC, "--instance", instance, "--", *play, group)
        there = self.on("dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", LOST, codes=(0, 1))
        self.by_hand[turn] = (done.returncode, done.stdout + done.stderr, there)

    def slurm(self, host: str) -> dict[str, str]:
        """Slurm's packages there, and munge."""
        listed = self.cluster.on(host, "dpkg-query", "-W", "-f", "${source:Package} ${Package} ${Version}\n")
        rows = [row.split() for row in listed.splitlines()]
        return {row[1]: row[2] for row in rows if "slurm-wlm" in row or row[1] == "munge"}

    def traces(self) -> list[str]:
        """Every file of the host with a credential in it, and all that a source could leave."""
        search = ["grep", "-rlF", "--devices=skip", "--exclude-dir=proc", "--exclude-dir=sys", "-f", "-", "/"]
        # 2: a file was gone before it was read. What was found is printed all the same, the control file too.
        found = self.on(*search, stdin="\n".join([FILE_CONTROL, *CREDENTIALS]), codes=(0, 2)).split()
        found.remove(CONTROL_FILE)
        journal = self.on("journalctl", "--no-pager", "--quiet")
        assert JOURNAL_CONTROL in journal
        found += ["journal" for one in CREDENTIALS if one in journal]
        left = "find /run -maxdepth 2 -path /run/gpuaas-slurm/source; find /var/lib/apt/lists -name '*_slurm_dists_*'"
        return found + self.on("sh", "-ec", f"{left}; find /var/cache/apt/archives -name '*private*'").split()

    def has_ledger(self) -> bool:
        return ends(self.cluster.fleet.exec(WORKER, ["test", "-e", LEDGER]), 0, 1).returncode == 0

    def packages(self) -> list[str]:
        """Of Slurm and munge, in any state that dpkg knows; exit code 1: a pattern matches none."""
        return self.on("dpkg-query", "-W", "-f", "${Package} ", "slurm*", "munge", codes=(0, 1)).split()

    def logins(self) -> list[str]:
        """Every login over ssh, as the host's journal has it."""
        journal = self.cluster.on(WORKER, "journalctl", "--no-pager", "--quiet")
        return [line for line in journal.splitlines() if "Accepted publickey" in line]

    def configuration(self) -> str:
        return self.on("sh", "-c", "find /etc/apt -type f -exec sha256sum {} + | sort")

    def watch(self) -> threading.Thread:
        def look() -> None:
            done = self.cluster.fleet.exec(WORKER, ["python3", "-c", WATCH], "\n".join(CREDENTIALS))
            self.watched[:] = json.loads(ends(done, 0).stdout)

        thread = threading.Thread(target=look)
        thread.start()
        return thread


@pytest.fixture(scope="module")
def scenario() -> Iterator[Scenario]:
    with fleet_named("artifacts") as fleet:
        fleet.ensure([HostSpec("gs-1", "trixie", warm=True), HostSpec(WORKER, "trixie")])
        yield run_scenario(fleet)


def run_scenario(fleet: Fleet) -> Scenario:
    cluster = deploy(fleet, "gs-1", "", GPUAAS_LOG_LEVEL="debug")
    ran = cluster.run()
    ends(ran, 0)
    scenario = Scenario(cluster, serve(fleet, "gs-1", RIGHT))
    scenario.on("sh", "-ec", f"cat >{CONTROL_FILE}; logger {JOURNAL_CONTROL}", stdin=FILE_CONTROL)
    before = scenario.configuration()
    assert before
    control = fleet.control()
    control.put_artifact_rule("no-slurm", scope="global", effect="deny", artifact="slurm", reason="recalled")
    scenario.join("denied", 1)
    scenario.errors["denied"]["host"] = scenario.logins()
    scenario.errors["denied"]["ledger"] = scenario.has_ledger()
    control.delete_artifact_rule("no-slurm")
    scenario.allow(WRONG)
    scenario.join("wrong password", 1)
    scenario.allow(RIGHT, signing_key=scenario.repository.wrong_key)
    scenario.join("wrong key", 1)
    scenario.allow(RIGHT)
    watching = scenario.watch()
    scenario.join("right", 0)
    scenario.on("touch", "/run/enough")
    watching.join()
    scenario.versions["joined"] = scenario.slurm(WORKER)
    # The looks of "denied" do find what is there.
    assert scenario.logins() and scenario.has_ledger()
    cluster.runs_a_job_on_every_worker()
    control.put_artifact_rule("no-slurm", scope="global", effect="deny", artifact="slurm", reason="recalled")
    scenario.converge_by_hand("denied")
    control.delete_artifact_rule("no-slurm")
    scenario.converge_by_hand("allowed")
    scenario.left["by hand"] = scenario.traces()
    scenario.allow(RIGHT, suite="newer")
    scenario.upgrade()
    scenario.errors["right"]["configuration"] = "as before" if scenario.configuration() == before else "changed"
    return scenario


def test_a_deny_names_its_rule_and_the_host_is_not_even_logged_in_to(scenario: Scenario) -> None:
    error = scenario.errors["denied"]
    assert (error["code"], error["class"]) == ("artifact_denied", "intervention")
    assert "global rule no-slurm" in error["message"] and "recalled" in error["message"]
    assert (error["host"], error["ledger"]) == ([], False)
    operation = sorted(scenario.cluster.operations(), key=lambda one: one["created_at"])[0]
    assert (operation["status"], operation["error"]["code"]) == ("failed", "artifact_denied")
    assert "no-slurm" in str(answer(scenario.cluster.variables, "explain", operation["correlation_id"]))


def test_wrong_password_and_wrong_key_have_different_codes_and_leave_nothing(scenario: Scenario) -> None:
    denied, untrusted = scenario.errors["wrong password"], scenario.errors["wrong key"]
    assert (denied["code"], denied["class"]) == ("package_source_denied", "retryable")
    assert (untrusted["code"], untrusted["class"]) == ("package_source_untrusted", "intervention")
    assert (scenario.left["wrong password"], scenario.left["wrong key"]) == ([], [])


def test_a_worker_gets_slurm_from_the_private_source_and_the_rest_from_its_own(scenario: Scenario) -> None:
    assert scenario.errors["right"].get("code") is None
    versions = dict(scenario.versions["joined"])
    assert versions.pop("munge") != "99", "the private source is for Slurm alone"
    assert {"slurmd", "slurm-client"} <= set(versions)
    assert all(one.endswith("~private1") for one in versions.values()), versions


def test_a_deny_holds_for_a_play_by_hand_and_an_allow_uses_its_source(scenario: Scenario) -> None:
    code, output, there = scenario.by_hand["denied"]
    assert code == 2 and "artifact_denied" in output and "rule no-slurm" in output
    assert not there.startswith("installed")
    code, output, there = scenario.by_hand["allowed"]
    assert code == 0 and there.startswith("installed ") and there.endswith("~private1"), output
    assert [one for one in CREDENTIALS if one in output] == [] and scenario.left["by hand"] == []


def test_an_upgrade_moves_all_to_what_the_private_source_has(scenario: Scenario) -> None:
    operations = scenario.cluster.api.get(f"{scenario.cluster.path}/operations").json()["items"]
    assert [(one["operation"], one["status"]) for one in operations] == [("upgrade", "succeeded")], operations
    for host in ("gs-1", WORKER):
        versions = scenario.slurm(host)
        assert versions.pop("munge") != "99"
        assert all(one.endswith("+private2") for one in versions.values()), versions
    scenario.cluster.runs_a_job_on_every_worker()


def test_the_credential_is_nowhere_on_the_host_afterwards_nor_in_a_process_meanwhile(scenario: Scenario) -> None:
    looks, found, seen = scenario.watched
    assert isinstance(looks, int) and looks > 10
    assert found == []
    assert seen == [["0o600", 0, "00-gpuaas-slurm.conf"]], "it was there for a while, for root alone"
    assert (scenario.left["right"], scenario.left["upgrade"]) == ([], [])
    assert scenario.errors["right"]["configuration"] == "as before"


def test_the_credential_is_in_no_log_and_nowhere_in_the_api(scenario: Scenario) -> None:
    control = scenario.cluster.fleet.control()
    text = json.dumps(
        [scenario.logs, scenario.cluster.members(), scenario.cluster.operations(), scenario.cluster.events()]
    )
    text += json.dumps([control.requests(), control.audit()])
    assert [one for one in CREDENTIALS if one in text] == []


def test_a_removed_worker_has_neither_the_source_nor_what_a_killed_call_left(scenario: Scenario) -> None:
    place = "/run/gpuaas-slurm/source/auth.conf.d"
    scenario.on("sh", "-c", f"mkdir -p {place} && cat >{place}/x", stdin=RIGHT)
    assert set(scenario.traces()) == {f"{place}/x", "/run/gpuaas-slurm/source"}, "the search finds what is there"
    assert {"slurmd", "munge"} <= set(scenario.packages())
    answer(scenario.cluster.variables, "op", "remove", scenario.cluster.instance_id, "--members", WORKER)
    ends(scenario.cluster.run(), 0)
    workers = [one["status"] for one in scenario.cluster.members() if one["component_key"] == "worker"]
    assert set(workers) == {"deleted"}
    assert scenario.traces() == []
    assert scenario.packages() == []
