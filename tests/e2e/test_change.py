"""A cluster that runs is changed: another configuration, another version, and back. In order, on both suites.

One job runs from the beginning to the end, whatever is changed, refused or taken back under it.
"""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from sandbox.fleet.hosts import HostSpec
from tests.commands import ends
from tests.e2e.cluster import Cluster, deploy, fleet_named, until
from tests.e2e.conftest import SUITES
from tests.e2e.private_repository import serve_openly, use
from tests.platform_process import Doc, our_manifest
from tests.runner_process import answer

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("scenario")]

HOSTS = ("gs-1", "gs-2")
OLDER = "gs-3"
HELD = "until [ -e /tmp/go ]; do sleep 0.2; done; rm /tmp/go"
CACHE = "/var/lib/slurm/slurmd/conf-cache/slurm.conf"
OURS = "dpkg-query -W -f '${source:Package} ${Package} ${Version}\\n' | awk '$1 == \"slurm-wlm\" {print $2, $3}'"


@dataclass
class Scenario:
    suite: str
    cluster: Cluster
    # The newest version that the hosts' sources offer, and the one that is installed.
    offered: tuple[str, str]
    job: str = ""

    def slurm(self, *argv: str) -> str:
        return self.cluster.on("gs-1", *argv)

    def setting(self, key: str) -> str:
        found = re.search(rf"^{key}\s+= (.*?)\s*$", self.slurm("scontrol", "show", "config"), re.MULTILINE)
        return found.group(1) if found else ""

    def configure(self, *options: str) -> None:
        answer(self.cluster.variables, "configure", self.cluster.instance_id, *options)

    def ask(self, verb: str, *options: str) -> Doc:
        asked: Doc = answer(self.cluster.variables, "op", verb, self.cluster.instance_id, *options)
        return asked

    def outcome(self, asked: Doc) -> Doc:
        found: Doc = self.cluster.api.get(f"{self.cluster.path}/operations/{asked['id']}").json()
        return found

    def packages(self) -> dict[str, set[str]]:
        return {
            host: {line.split()[1] for line in self.cluster.on(host, "sh", "-c", OURS).splitlines()} for host in HOSTS
        }

    def untouched(self) -> tuple[object, ...]:
        """What a refusal must leave as it is: the live files themselves, and every daemon's process."""
        files = self.slurm("stat", "--format=%n %i %Y %s", "/etc/slurm/slurm.conf", "/etc/slurm/cgroup.conf")
        daemons = [self.cluster.process("gs-1", unit) for unit in ("slurmctld", "slurmdbd")]
        return files, *daemons, self.cluster.process("gs-2", "slurmd"), self.packages()

    def job_runs_on(self) -> None:
        """The same job, started when it was: neither lost nor requeued."""
        assert self.slurm("squeue", "--noheader", "--format=%i %T %S %N") == self.job

    def reasons(self) -> list[str]:
        return [reason["code"] for reason in self.cluster.instance()["status_detail"]["reasons"]]

    def every_host_runs_the_config_on_disk(self) -> None:
        served = self.slurm("sha256sum", "/etc/slurm/slurm.conf").split()[0][:16]
        assert self.cluster.on("gs-2", "sha256sum", CACHE).split()[0][:16] == served
        reported = {one["adapter_detail"]["config_version"] for one in self.cluster.members()}
        assert reported == {f"sha256:{served}", self.cluster.instance()["status_detail"]["config_version"]}


@pytest.fixture(scope="module", params=SUITES)
def scenario(request: pytest.FixtureRequest) -> Iterator[Scenario]:
    """gs-1 with the worker gs-2, which runs a job from the beginning; on Debian 13 also a spare host of Debian 12."""
    with fleet_named(f"e2e-change-{request.param}") as fleet:
        older = [HostSpec(OLDER, "bookworm", warm=True)] if request.param == "trixie" else []
        fleet.ensure([*(HostSpec(name, request.param, warm=True) for name in HOSTS), *older])
        repository = serve_openly(fleet, "gs-1", {"all": ["", "+private2"]})
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda host: use(fleet, host, repository, "all"), HOSTS))
        offered = (f"{repository.base}+private2", repository.base)
        cluster = deploy(fleet, "gs-1", "gs-2", GPUAAS_RETRY_SECONDS="0")
        ends(cluster.run(), 0)
        one = Scenario(request.param, cluster, offered)
        job = one.slurm("sbatch", "--parsable", "--output=/dev/null", "--wrap", HELD)
        until(lambda: "RUNNING" in one.slurm("squeue", "-ho", "%T", "-j", job), 60, "the job runs")
        one.job = one.slurm("squeue", "--noheader", "--format=%i %T %S %N")
        yield one


@pytest.fixture(autouse=True)
def the_job_never_notices(scenario: Scenario) -> Iterator[None]:
    yield
    if scenario.job:
        scenario.job_runs_on()


def test_three_versions_are_distinguished(scenario: Scenario) -> None:
    versions = scenario.cluster.instance()["status_detail"]["versions"]
    (installed,) = scenario.packages()["gs-1"]
    running = installed.partition("-")[0]
    assert versions == {
        "app": our_manifest()["version"],
        "package": installed,
        "slurmdbd": running,
        "slurmctld": running,
        "slurmd": [running],
    }
    for member in scenario.cluster.members():
        detail = member["adapter_detail"]
        assert (detail["package_version"], detail["slurm_version"]) == (installed, running)


def test_a_changed_setting_goes_live_on_every_host_under_a_running_job(scenario: Scenario) -> None:
    assert scenario.setting("MinJobAge") != "123 sec"
    scenario.configure("--slurm", "MinJobAge=123", "--slurm", "MaxJobCount=12345")
    ends(scenario.cluster.run(), 0)
    assert (scenario.setting("MinJobAge"), scenario.setting("MaxJobCount")) == ("123 sec", "12345")
    assert (scenario.setting("HASH_VAL"), scenario.cluster.instance()["health"]) == ("Match", "healthy")
    scenario.every_host_runs_the_config_on_disk()


def test_a_setting_that_slurm_refuses_changes_nothing_and_quotes_slurm(scenario: Scenario) -> None:
    before = scenario.untouched()
    scenario.configure("--slurm", "PriorityType=priority/nonsense")
    ends(scenario.cluster.run(), 0)
    instance = scenario.cluster.instance()
    (reason,) = instance["status_detail"]["reasons"]
    assert (instance["status"], instance["health"], reason["code"]) == ("running", "degraded", "config_refused")
    assert "cannot find priority plugin for priority/nonsense" in reason["message"]
    assert scenario.untouched() == before
    steps = answer(scenario.cluster.variables, "plan", "--instance", scenario.cluster.instance_id)
    assert [step for step in steps if "deploy" in step["step"]] == [], "it is not tried again"


def test_an_upgrade_that_carries_a_refused_config_fails_with_slurms_message(scenario: Scenario) -> None:
    before = scenario.untouched()
    asked = scenario.ask("upgrade")
    ends(scenario.cluster.run(), 1)
    ended = scenario.outcome(asked)
    assert (ended["status"], ended["error"]["code"]) == ("failed", "config_refused")
    assert "cannot find priority plugin for priority/nonsense" in ended["error"]["message"]
    assert scenario.untouched() == before
    assert scenario.reasons() == ["config_refused"]


def test_a_withdrawn_config_change_heals_without_a_change(scenario: Scenario) -> None:
    before = scenario.untouched()
    scenario.configure("--unset", "PriorityType")
    ends(scenario.cluster.run(), 0)
    assert (scenario.cluster.instance()["health"], scenario.reasons()) == ("healthy", [])
    assert scenario.untouched() == before


def test_a_version_outside_the_window_is_refused_before_anything_is_touched(scenario: Scenario) -> None:
    before = scenario.untouched()
    asked = scenario.ask("upgrade", "--slurm-version", {"bookworm": "24.11", "trixie": "22.05"}[scenario.suite])
    ends(scenario.cluster.run(), 1)
    ended = scenario.outcome(asked)
    assert (ended["status"], ended["error"]["code"]) == ("failed", "version_outside_window")
    assert scenario.untouched() == before
    assert (scenario.cluster.instance()["health"], scenario.reasons()) == ("healthy", [])


def test_an_upgrade_whose_controller_does_not_come_up_goes_back_by_itself(scenario: Scenario) -> None:
    if scenario.suite != "trixie":
        pytest.skip("how packages go back does not depend on the Debian; one of them shows it")
    packages = scenario.packages()
    # A slurmctld that will not start once its package is the new one.
    dropin = "/etc/systemd/system/slurmctld.service.d/zz-refuse.conf"
    refuse = f"[Service]\\nExecStartPre=/bin/sh -c '! dpkg-query -W slurmctld | grep -qF {scenario.offered[0]}'\\n"
    scenario.slurm("sh", "-c", f'printf "{refuse}" > {dropin}; systemctl daemon-reload')
    asked = scenario.ask("upgrade")
    ends(scenario.cluster.run(), 1)
    scenario.slurm("sh", "-c", f"rm {dropin}; systemctl daemon-reload")
    ended = scenario.outcome(asked)
    assert (ended["status"], ended["error"]["code"]) == ("failed", "upgrade_taken_back")
    assert scenario.packages() == packages
    assert (scenario.cluster.instance()["health"], scenario.reasons()) == ("healthy", [])


def test_an_upgrade_moves_every_host_in_order(scenario: Scenario) -> None:
    (installed,) = scenario.packages()["gs-1"]
    asked = scenario.ask("upgrade")
    ends(scenario.cluster.run(), 0)
    ended = scenario.outcome(asked)
    assert (ended["status"], ended["result"]["from"]) == ("succeeded", installed)
    assert ended["result"]["to"] == scenario.offered[0]
    assert scenario.packages() == {host: {scenario.offered[0]} for host in HOSTS}
    units = [("gs-1", "slurmdbd"), ("gs-1", "slurmctld"), ("gs-2", "slurmd")]
    started = [_started(scenario, host, unit) for host, unit in units]
    assert started == sorted(started), "slurmdbd, slurmctld, slurmd"
    reported = {one["adapter_detail"]["package_version"] for one in scenario.cluster.members()}
    assert reported == {scenario.offered[0]} == {scenario.cluster.instance()["status_detail"]["versions"]["package"]}
    kept = scenario.slurm("find", ended["result"]["backup"], "-type", "f", "-printf", "%f %m %u\n")
    assert sorted(kept.splitlines()) == [
        "complete 600 root",
        "manifest.json 600 root",
        "slurm_acct_db.sql.gz 600 root",
        "state.tar.gz 600 root",
    ]


def test_an_upgrade_that_finds_nothing_newer_changes_nothing(scenario: Scenario) -> None:
    if scenario.suite != "bookworm":
        pytest.skip("what is offered does not depend on the Debian; one of them shows it")
    before = scenario.untouched()
    asked = scenario.ask("upgrade")
    ends(scenario.cluster.run(), 0)
    ended = scenario.outcome(asked)
    assert (ended["status"], ended["result"]["from"], ended["result"]["to"]) == (
        "succeeded",
        *[scenario.offered[0]] * 2,
    )
    assert scenario.untouched() == before


def test_a_rollback_returns_to_what_was_before_the_last_change(scenario: Scenario) -> None:
    asked = scenario.ask("rollback")
    ends(scenario.cluster.run(), 0)
    assert scenario.outcome(asked)["status"] == "succeeded"
    assert scenario.packages() == {host: {scenario.offered[1]} for host in HOSTS}
    assert (scenario.setting("MinJobAge"), scenario.reasons()) == ("123 sec", [])
    scenario.every_host_runs_the_config_on_disk()
    again = scenario.ask("rollback")
    ends(scenario.cluster.run(), 1)
    assert scenario.outcome(again)["error"]["code"] == "nothing_to_return_to"


def test_a_rollback_of_a_configuration_keeps_it_from_coming_back(scenario: Scenario) -> None:
    if scenario.suite != "bookworm":
        pytest.skip("what a rollback keeps from coming back does not depend on the Debian; one of them shows it")
    scenario.configure("--slurm", "MinJobAge=124")
    ends(scenario.cluster.run(), 0)
    assert scenario.setting("MinJobAge") == "124 sec"
    asked = scenario.ask("rollback")
    ends(scenario.cluster.run(), 0)
    assert scenario.outcome(asked)["status"] == "succeeded"
    # What is desired is not what is live, and stays so until it changes.
    assert scenario.setting("MinJobAge") == "123 sec"
    assert (scenario.cluster.instance()["health"], scenario.reasons()) == ("degraded", ["config_rolled_back"])
    scenario.every_host_runs_the_config_on_disk()
    scenario.configure("--slurm", "MinJobAge=123")
    ends(scenario.cluster.run(), 0)
    assert (scenario.cluster.instance()["health"], scenario.reasons()) == ("healthy", [])


def test_the_job_ends_well_and_its_node_is_free_again(scenario: Scenario) -> None:
    job, scenario.job = scenario.job.split()[0], ""
    scenario.cluster.on("gs-2", "touch", "/tmp/go")
    until(lambda: "COMPLETED" in scenario.slurm("sacct", "-XnPj", job, "--format=State"), 60, "the job completes")
    until(lambda: scenario.slurm("sinfo", "-ho", "%T") == "idle", 60, "the node is free")
    scenario.cluster.runs_a_job_on_every_worker()


def test_a_worker_whose_slurm_does_not_fit_is_named_until_it_is_removed(scenario: Scenario) -> None:
    if scenario.suite != "trixie":
        pytest.skip("a 22.05 worker is what a 24.11 controller does not take")
    scenario.cluster.add(OLDER)
    ends(scenario.cluster.run(), 1)
    # It is named for as long as it is there.
    ends(scenario.cluster.run(GPUAAS_OBSERVE_SECONDS="0", GPUAAS_REPAIR="false"), 0)
    instance = scenario.cluster.instance()
    (reason,) = instance["status_detail"]["reasons"]
    assert (instance["status"], instance["health"], reason["code"]) == ("running", "degraded", "version_incompatible")
    assert reason["class"]
    assert "22.05" in reason["message"] and "24.11" in reason["message"]
    member = scenario.cluster.workers()[OLDER]["id"]
    answer(scenario.cluster.variables, "op", "remove", scenario.cluster.instance_id, "--members", member)
    ends(scenario.cluster.run(GPUAAS_OBSERVE_SECONDS="0"), 0)
    assert (scenario.cluster.instance()["health"], scenario.reasons()) == ("healthy", [])


def _started(scenario: Scenario, host: str, unit: str) -> int:
    """By the kernel's own clock, which the hosts of a fleet share."""
    shown = scenario.cluster.on(
        host, "systemctl", "show", unit, "--property=ExecMainStartTimestampMonotonic", "--value"
    )
    return int(shown)
