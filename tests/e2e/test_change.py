"""A cluster that runs is changed: another configuration, another version, and back. A story in order, on both suites.

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

pytestmark = [pytest.mark.e2e, pytest.mark.story("story")]

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

    def everybody_runs_what_is_on_disk(self) -> None:
        served = self.slurm("sha256sum", "/etc/slurm/slurm.conf").split()[0][:16]
        assert self.cluster.on("gs-2", "sha256sum", CACHE).split()[0][:16] == served
        told = {one["adapter_detail"]["config_version"] for one in self.cluster.members()}
        assert told == {f"sha256:{served}", self.cluster.instance()["status_detail"]["config_version"]}


@pytest.fixture(scope="module", params=SUITES)
def story(request: pytest.FixtureRequest) -> Iterator[Scenario]:
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
def the_job_never_notices(story: Scenario) -> Iterator[None]:
    yield
    if story.job:
        story.job_runs_on()


def test_three_versions_are_distinguished(story: Scenario) -> None:
    versions = story.cluster.instance()["status_detail"]["versions"]
    (installed,) = story.packages()["gs-1"]
    running = installed.partition("-")[0]
    assert versions == {
        "app": our_manifest()["version"],
        "package": installed,
        "slurmdbd": running,
        "slurmctld": running,
        "slurmd": [running],
    }
    for member in story.cluster.members():
        told = member["adapter_detail"]
        assert (told["package_version"], told["slurm_version"]) == (installed, running)


def test_a_changed_setting_goes_live_on_every_host_under_a_running_job(story: Scenario) -> None:
    assert story.setting("MinJobAge") != "123 sec"
    story.configure("--slurm", "MinJobAge=123", "--slurm", "MaxJobCount=12345")
    ends(story.cluster.run(), 0)
    assert (story.setting("MinJobAge"), story.setting("MaxJobCount")) == ("123 sec", "12345")
    assert (story.setting("HASH_VAL"), story.cluster.instance()["health"]) == ("Match", "healthy")
    story.everybody_runs_what_is_on_disk()


def test_a_setting_that_slurm_refuses_changes_nothing_and_quotes_slurm(story: Scenario) -> None:
    before = story.untouched()
    story.configure("--slurm", "PriorityType=priority/nonsense")
    ends(story.cluster.run(), 0)
    instance = story.cluster.instance()
    (reason,) = instance["status_detail"]["reasons"]
    assert (instance["status"], instance["health"], reason["code"]) == ("running", "degraded", "config_refused")
    assert "cannot find priority plugin for priority/nonsense" in reason["message"]
    assert story.untouched() == before
    steps = answer(story.cluster.variables, "plan", "--instance", story.cluster.instance_id)
    assert [step for step in steps if "deploy" in step["step"]] == [], "it is not tried again"


def test_an_upgrade_that_carries_a_refused_config_fails_with_slurms_words(story: Scenario) -> None:
    before = story.untouched()
    asked = story.ask("upgrade")
    ends(story.cluster.run(), 1)
    ended = story.outcome(asked)
    assert (ended["status"], ended["error"]["code"]) == ("failed", "config_refused")
    assert "cannot find priority plugin for priority/nonsense" in ended["error"]["message"]
    assert story.untouched() == before
    assert story.reasons() == ["config_refused"]


def test_a_withdrawn_config_change_heals_without_a_change(story: Scenario) -> None:
    before = story.untouched()
    story.configure("--unset", "PriorityType")
    ends(story.cluster.run(), 0)
    assert (story.cluster.instance()["health"], story.reasons()) == ("healthy", [])
    assert story.untouched() == before


def test_a_version_outside_the_window_is_refused_before_anything_is_touched(story: Scenario) -> None:
    before = story.untouched()
    asked = story.ask("upgrade", "--slurm-version", {"bookworm": "24.11", "trixie": "22.05"}[story.suite])
    ends(story.cluster.run(), 1)
    ended = story.outcome(asked)
    assert (ended["status"], ended["error"]["code"]) == ("failed", "version_outside_window")
    assert story.untouched() == before
    assert (story.cluster.instance()["health"], story.reasons()) == ("healthy", [])


def test_an_upgrade_whose_controller_does_not_come_up_goes_back_by_itself(story: Scenario) -> None:
    if story.suite != "trixie":
        pytest.skip("how packages go back does not depend on the Debian; one of them shows it")
    packages = story.packages()
    # A slurmctld that will not start once its package is the new one.
    dropin = "/etc/systemd/system/slurmctld.service.d/zz-refuse.conf"
    refuse = f"[Service]\\nExecStartPre=/bin/sh -c '! dpkg-query -W slurmctld | grep -qF {story.offered[0]}'\\n"
    story.slurm("sh", "-c", f'printf "{refuse}" > {dropin}; systemctl daemon-reload')
    asked = story.ask("upgrade")
    ends(story.cluster.run(), 1)
    story.slurm("sh", "-c", f"rm {dropin}; systemctl daemon-reload")
    ended = story.outcome(asked)
    assert (ended["status"], ended["error"]["code"]) == ("failed", "upgrade_taken_back")
    assert story.packages() == packages
    assert (story.cluster.instance()["health"], story.reasons()) == ("healthy", [])


def test_an_upgrade_moves_every_host_in_order(story: Scenario) -> None:
    (installed,) = story.packages()["gs-1"]
    asked = story.ask("upgrade")
    ends(story.cluster.run(), 0)
    ended = story.outcome(asked)
    assert (ended["status"], ended["result"]["from"]) == ("succeeded", installed)
    assert ended["result"]["to"] == story.offered[0]
    assert story.packages() == {host: {story.offered[0]} for host in HOSTS}
    units = [("gs-1", "slurmdbd"), ("gs-1", "slurmctld"), ("gs-2", "slurmd")]
    started = [_started(story, host, unit) for host, unit in units]
    assert started == sorted(started), "slurmdbd, slurmctld, slurmd"
    told = {one["adapter_detail"]["package_version"] for one in story.cluster.members()}
    assert told == {story.offered[0]} == {story.cluster.instance()["status_detail"]["versions"]["package"]}
    kept = story.slurm("find", ended["result"]["backup"], "-type", "f", "-printf", "%f %m %u\n")
    assert sorted(kept.splitlines()) == [
        "complete 600 root",
        "manifest.json 600 root",
        "slurm_acct_db.sql.gz 600 root",
        "state.tar.gz 600 root",
    ]


def test_an_upgrade_that_finds_nothing_newer_changes_nothing(story: Scenario) -> None:
    if story.suite != "bookworm":
        pytest.skip("what is offered does not depend on the Debian; one of them shows it")
    before = story.untouched()
    asked = story.ask("upgrade")
    ends(story.cluster.run(), 0)
    ended = story.outcome(asked)
    assert (ended["status"], ended["result"]["from"], ended["result"]["to"]) == ("succeeded", *[story.offered[0]] * 2)
    assert story.untouched() == before


def test_a_rollback_returns_to_what_was_before_the_last_change(story: Scenario) -> None:
    asked = story.ask("rollback")
    ends(story.cluster.run(), 0)
    assert story.outcome(asked)["status"] == "succeeded"
    assert story.packages() == {host: {story.offered[1]} for host in HOSTS}
    assert (story.setting("MinJobAge"), story.reasons()) == ("123 sec", [])
    story.everybody_runs_what_is_on_disk()
    again = story.ask("rollback")
    ends(story.cluster.run(), 1)
    assert story.outcome(again)["error"]["code"] == "nothing_to_return_to"


def test_a_rollback_of_a_configuration_keeps_it_from_coming_back(story: Scenario) -> None:
    if story.suite != "bookworm":
        pytest.skip("what a rollback keeps from coming back does not depend on the Debian; one of them shows it")
    story.configure("--slurm", "MinJobAge=124")
    ends(story.cluster.run(), 0)
    assert story.setting("MinJobAge") == "124 sec"
    asked = story.ask("rollback")
    ends(story.cluster.run(), 0)
    assert story.outcome(asked)["status"] == "succeeded"
    # What is desired is not what is live, and stays so until it changes.
    assert story.setting("MinJobAge") == "123 sec"
    assert (story.cluster.instance()["health"], story.reasons()) == ("degraded", ["config_rolled_back"])
    story.everybody_runs_what_is_on_disk()
    story.configure("--slurm", "MinJobAge=123")
    ends(story.cluster.run(), 0)
    assert (story.cluster.instance()["health"], story.reasons()) == ("healthy", [])


def test_the_job_ends_well_and_its_node_is_free_again(story: Scenario) -> None:
    job, story.job = story.job.split()[0], ""
    story.cluster.on("gs-2", "touch", "/tmp/go")
    until(lambda: "COMPLETED" in story.slurm("sacct", "-XnPj", job, "--format=State"), 60, "the job completes")
    until(lambda: story.slurm("sinfo", "-ho", "%T") == "idle", 60, "the node is free")
    story.cluster.runs_a_job_on_every_worker()


def test_a_worker_whose_slurm_does_not_fit_is_named_until_it_is_removed(story: Scenario) -> None:
    if story.suite != "trixie":
        pytest.skip("a 22.05 worker is what a 24.11 controller does not take")
    story.cluster.add(OLDER)
    ends(story.cluster.run(), 1)
    # It is named for as long as it is there.
    ends(story.cluster.run(GPUAAS_OBSERVE_SECONDS="0", GPUAAS_REPAIR="false"), 0)
    instance = story.cluster.instance()
    (reason,) = instance["status_detail"]["reasons"]
    assert (instance["status"], instance["health"], reason["code"]) == ("running", "degraded", "version_incompatible")
    assert reason["class"]
    assert "22.05" in reason["message"] and "24.11" in reason["message"]
    member = story.cluster.workers()[OLDER]["id"]
    answer(story.cluster.variables, "op", "remove", story.cluster.instance_id, "--members", member)
    ends(story.cluster.run(GPUAAS_OBSERVE_SECONDS="0"), 0)
    assert (story.cluster.instance()["health"], story.reasons()) == ("healthy", [])


def _started(story: Scenario, host: str, unit: str) -> int:
    """By the kernel's own clock, which the hosts of a fleet share."""
    shown = story.cluster.on(host, "systemctl", "show", unit, "--property=ExecMainStartTimestampMonotonic", "--value")
    return int(shown)
