"""A cluster with planted secrets, which are searched for at every step until it is gone: a scenario in order.

Searched are arguments and environments of all processes, hosts' included, the files that the runner and Ansible write
while they work, everything they print at the highest verbosity, every body of the API, and in the end whole file
systems and journals. On one Debian only: none of this depends on which.
"""

import functools
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from runner.act.vault import Vault
from runner.settings import Settings
from runner.slurm.app import SLURM
from tests.canaries import Canaries, Found, Watcher, here, privately
from tests.commands import EXEC, ends, fails
from tests.e2e.cluster import Cluster, by_hand, fleet_named
from tests.platform_process import ROOT, ApiClient
from tests.runner_process import COMMAND, answer, own_processes

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("scenario")]

HOSTS = ("gs-1", "gs-2", "gs-3", "gs-4", "gs-5")
# The right place of each kind.
PLACES = {
    "munge_key": ["/etc/munge/munge.key"],
    "slurmdbd_password": ["/etc/slurm/slurmdbd.conf"],
    "jwt_key": ["/etc/slurm/jwt_hs256.key"],
}
ON_THE_CONTROLLER = {kind: PLACES[kind] for kind in SLURM.runtime_secrets}
ON_EVERY_HOST = {"munge_key": PLACES["munge_key"]}
BREAK_MARIADB = (
    "printf '[mysqld]\\nno-such-option=1\\n' >/etc/mysql/mariadb.conf.d/99-broken.cnf; systemctl stop mariadb"
)


@dataclass
class Scenario:
    cluster: Cluster
    canaries: Canaries
    vault: Vault
    home: Path
    watcher: Watcher

    def plant_what_is_known(self) -> None:
        for name in SLURM.runtime_secrets:
            self.canaries.plant(name, self.vault.runtime_secret(UUID(self.cluster.instance_id), name))
        self.canaries.plant_from(self.calls())

    def calls(self) -> list[dict[str, object]]:
        found: list[dict[str, object]] = self.cluster.fleet.control().requests()["requests"]
        return [one for one in found if "body" in one]

    def nothing_shows(self, done: "subprocess.CompletedProcess[str]") -> None:
        """In the command's output, and in what is left on the runner's disk."""
        self.plant_what_is_known()
        assert self.canaries.seen_in(done.stdout + done.stderr) == set()
        assert self.canaries.on_disk(here, str(self.home)) == {}
        assert not list((self.home / "tmp").iterdir())

    def on(self, host: str) -> Found:
        """Where on a host, by kind."""
        return self.canaries.on_disk(functools.partial(self.cluster.fleet.exec, host))

    def playbook(self, name: str, *hosts: str) -> "subprocess.CompletedProcess[str]":
        """By hand, at Ansible's highest verbosity."""
        command = ("ansible-playbook", "-vvvv", "-i", "gpuaas.yml", f"playbooks/{name}.yml", "--limit", ",".join(hosts))
        return by_hand(self.cluster, COMMAND, *EXEC, "--instance", self.cluster.instance_id, "--", *command)


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenario]:
    """gs-1 with worker gs-2; on gs-3 the key has no room, on gs-4 sudo is refused, gs-5 does not answer."""
    settings = tmp_path_factory.mktemp("settings") / "settings.toml"
    with fleet_named("e2e-canary") as fleet, tempfile.TemporaryDirectory(prefix="canary-") as home:
        fleet.up(hosts=len(HOSTS), suite="bookworm", warm=True)
        fleet.control().keep_bodies(keep=True)
        given, canaries = fleet.env(), Canaries()
        for kind in ("GPUAAS_CLIENT_SECRET", "GPUAAS_OPERATOR_TOKEN", "VAULT_SECRET_ID"):
            canaries.plant(kind.removeprefix("GPUAAS_").lower(), given[kind])
        own = {name: given[name] for name in ("VAULT_ADDR", "VAULT_ROLE_ID", "VAULT_SECRET_ID")}
        vault_settings = Settings(base_url=given["GPUAAS_BASE_URL"], project_id=given["GPUAAS_PROJECT_ID"], **own)  # type: ignore[arg-type]
        vault = Vault(vault_settings, SLURM.runtime_secrets)
        with own_processes(), Watcher(Path(home)) as watcher:
            variables = privately(given, settings, Path(home))
            made = answer(variables, "deploy", "--controller", "gs-1", "--workers", "gs-2")
            cluster = Cluster(fleet, made["id"], {**variables, "GPUAAS_LOG_FORMAT": "json"})
            cluster.api = ApiClient(given["GPUAAS_BASE_URL"], given["GPUAAS_OPERATOR_TOKEN"])
            one = Scenario(cluster, canaries, vault, Path(home), watcher)
            one.plant_what_is_known()
            yield one


def test_a_deploy_leaves_each_secret_in_its_right_place_and_nowhere_else(scenario: Scenario) -> None:
    ran = scenario.cluster.run()
    ends(ran, 0)
    scenario.nothing_shows(ran)
    assert scenario.on("gs-1") == ON_THE_CONTROLLER
    assert scenario.on("gs-2") == ON_EVERY_HOST
    for host, place in (("gs-1", "/etc/slurm/slurmdbd.conf"), ("gs-2", "/etc/munge/munge.key")):
        assert scenario.cluster.on(host, "stat", "-c", "%a", place) in ("400", "600")


def test_a_leak_on_a_host_would_have_been_found(scenario: Scenario) -> None:
    """The search itself is tried: in the journal, packed, and in a home directory."""
    control = scenario.canaries.plant("control", f"planted-{uuid4().hex}")
    for command in ("logger", "gzip >/var/log/old.log.1.gz", "cat >/home/ops/.bash_history"):
        done = scenario.cluster.fleet.exec("gs-5", ["sh", "-c", command], stdin=f"a line\n{control}\n")
        ends(done, 0)
    found = scenario.on("gs-5")
    assert found.keys() == {"control"}
    assert {"/home/ops/.bash_history", "/var/log/old.log.1.gz", "the journal"} <= set(found["control"])


def test_a_new_munge_key_replaces_the_old_one_everywhere_and_shows_nowhere_else(scenario: Scenario) -> None:
    answer(scenario.cluster.variables, "op", "rotate-credentials", scenario.cluster.instance_id)
    ran = scenario.cluster.run()
    ends(ran, 0)
    scenario.nothing_shows(ran)
    assert scenario.on("gs-1") == ON_THE_CONTROLLER
    assert scenario.on("gs-2") == ON_EVERY_HOST


def test_hosts_that_fail_show_no_secret_and_get_none(scenario: Scenario) -> None:
    cluster = scenario.cluster
    cluster.on("gs-3", "mkdir", "-p", "/etc/munge/munge.key/in-the-way")
    cluster.on("gs-4", "mv", "/etc/sudoers.d/ops", "/root/ops")
    cluster.on("gs-5", "systemctl", "stop", "ssh")
    cluster.add("gs-3", "gs-4", "gs-5")
    ran = cluster.run(GPUAAS_MAX_ATTEMPTS="1")
    ends(ran, 1)
    scenario.nothing_shows(ran)
    workers = cluster.workers()
    codes = {host: workers[host]["adapter_detail"]["last_adapter_error"]["code"] for host in HOSTS[2:]}
    assert (codes["gs-3"], codes["gs-5"]) == ("path_in_the_way", "host_unreachable"), codes
    assert {workers[host]["status"] for host in HOSTS[2:]} == {"failed"}
    for host in HOSTS[2:]:
        assert scenario.on(host).keys() <= {"control"}, host
    cluster.on("gs-4", "mv", "/root/ops", "/etc/sudoers.d/ops")
    cluster.on("gs-5", "systemctl", "start", "ssh")


def test_plays_by_hand_at_the_highest_verbosity_show_no_secret(scenario: Scenario) -> None:
    cluster = scenario.cluster
    limit = (f"controller-{cluster.controller()['id'][:8]}", f"worker-{cluster.workers()['gs-2']['id'][:8]}")
    cluster.on("gs-1", "sh", "-c", BREAK_MARIADB)
    failed = scenario.playbook("deploy", *limit)
    fails(failed)
    assert "mariadb.service did not come up" in failed.stdout, failed.stdout[-3000:]
    scenario.nothing_shows(failed)
    cluster.on("gs-1", "rm", "/etc/mysql/mariadb.conf.d/99-broken.cnf")
    done = scenario.playbook("deploy", *limit)
    ends(done, 0)
    assert "ESTABLISH SSH CONNECTION" in done.stdout, done.stdout[-3000:]
    scenario.nothing_shows(done)
    checkout = (str(one) for one in ROOT.iterdir() if one.name not in (".venv", ".git"))
    assert scenario.canaries.on_disk(here, *checkout) == {}
    for arguments in (("status", "--json"), ("explain", cluster.instance()["correlation_id"]), ("access", "--json")):
        scenario.nothing_shows(cluster.command(*arguments))
    assert scenario.on("gs-1") == ON_THE_CONTROLLER
    assert scenario.on("gs-2") == ON_EVERY_HOST
    cluster.runs_a_job_on_every_worker()


def test_after_a_decommission_no_host_holds_any(scenario: Scenario) -> None:
    answer(scenario.cluster.variables, "op", "decommission", scenario.cluster.instance_id)
    # Planted before: the vault forgets them now.
    scenario.plant_what_is_known()
    ran = scenario.cluster.run()
    ends(ran, 0)
    assert scenario.canaries.seen_in(ran.stdout + ran.stderr) == set()
    assert scenario.cluster.instance()["status"] == "deleted"
    for host in HOSTS:
        assert scenario.on(host).keys() <= {"control"}, host


def test_no_process_file_or_call_held_a_secret_that_it_does_not_need(scenario: Scenario) -> None:
    scenario.watcher.__exit__()
    scenario.canaries.plant_from(scenario.calls())
    short_lived = {"access_token", "wrapping_token", "client_token", "private_key"}
    assert set(scenario.canaries.pieces) >= {
        *SLURM.runtime_secrets,
        *short_lived,
        "client_secret",
        "operator_token",
        "vault_secret_id",
    }
    assert scenario.canaries.in_calls(scenario.calls()) == []
    # The watcher did look where it matters: at the play's own files, at Ansible, ssh and the hosts' processes.
    places = " ".join(scenario.watcher.seen.values())
    for looked_at in ("job_events", "ansible-playbook", "ssh-agent", "ssh -", "slurmctld", "munged"):
        assert looked_at in places, looked_at
    assert scenario.watcher.leaks(scenario.canaries) == []
