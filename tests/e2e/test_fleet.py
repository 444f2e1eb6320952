"""The sandbox on this machine: real containers, a real platform, and nothing left behind.

Over 300 lines, because its steps share one fleet and depend on each other.
"""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from sandbox.cli import app
from sandbox.fleet import places
from sandbox.fleet.errors import CannotRunError
from sandbox.fleet.fleet import Fleet
from sandbox.fleet.hosts import Hosts, HostSpec
from sandbox.fleet.images import ensure_image, recipe
from sandbox.fleet.keys import KeyPair
from sandbox.fleet.runtime import Podman
from sandbox.platform import process
from tests.commands import ends, fails
from tests.e2e.evidence import FleetEvidence
from tests.post_mortem import watched

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("fleet")]


@pytest.fixture(scope="module")
def podman() -> Podman:
    return Podman.detect()


@pytest.fixture(scope="module")
def foreign(podman: Podman) -> Iterator[str]:
    """A container of another owner, there before the fleet and untouched by all it does."""
    image = ensure_image(podman, recipe("bookworm", warm=False))
    identity = podman.run("run", "--detach", "--network", "none", *podman.limits, image, "sleep", "infinity").strip()
    yield identity
    podman.run("rm", "--force", "--time", "0", identity)


@pytest.fixture(scope="module")
def fleet(podman: Podman, foreign: str) -> Iterator[Fleet]:
    fleet = Fleet(f"t-{uuid.uuid4().hex[:8]}")
    with watched(FleetEvidence(fleet)):
        fleet.up(hosts=2, suite="bookworm")
        yield fleet


def command(*args: str) -> tuple[int, str]:
    """A sandbox command as a person types it, in its own process."""
    done = subprocess.run(
        [sys.executable, "-c", "from sandbox.cli import app; app()", *args], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


def running_since(podman: Podman, identity: str) -> str:
    return podman.run("inspect", identity, "--format", "{{.State.Status}} {{.State.StartedAt}}").strip()


def output_of(fleet: Fleet, host: str, *argv: str) -> str:
    return fleet.exec(host, argv).stdout.strip()


def offered(fleet: Fleet) -> dict[str, dict[str, object]]:
    """The allocations of the project by id, read as an operator reads them."""
    env = fleet.env()
    answer = httpx.get(
        f"{env['GPUAAS_BASE_URL']}/api/v1/projects/{env['GPUAAS_PROJECT_ID']}/allocations",
        headers={"Authorization": f"Bearer {env['GPUAAS_OPERATOR_TOKEN']}"},
    )
    answer.raise_for_status()
    return {item["id"]: item for item in answer.json()["items"]}


def test_hosts_boot_like_machines_and_lack_slurm(fleet: Fleet) -> None:
    for host in fleet.hosts():
        assert output_of(fleet, host.name, "systemctl", "is-system-running") == "running"
        assert output_of(fleet, host.name, "hostname") == host.name
        fails(fleet.exec(host.name, ["dpkg", "--status", "slurmd"]))


def test_each_host_has_its_own_host_key_and_shows_the_one_on_record(fleet: Fleet) -> None:
    hosts = fleet.hosts()
    shown = [output_of(fleet, host.name, "cat", "/etc/ssh/ssh_host_ed25519_key.pub") for host in hosts]
    assert shown == [host.host_key for host in hosts]
    assert len(set(shown)) == len(hosts)
    assert len({output_of(fleet, host.name, "cat", "/etc/machine-id") for host in hosts}) == len(hosts)


def test_hosts_reach_each_other_by_address_and_not_by_name(fleet: Fleet) -> None:
    first, second = fleet.hosts()
    connect = "import socket, sys; print(socket.create_connection((sys.argv[1], 22), 5).recv(4).decode())"
    assert output_of(fleet, first.name, "python3", "-c", connect, second.address) == "SSH-"
    for name in (second.name, second.container):
        fails(fleet.exec(first.name, ["getent", "hosts", name]))


def test_every_host_is_offered_as_an_active_allocation_with_its_host_key(fleet: Fleet) -> None:
    allocations = offered(fleet)
    for host in fleet.hosts():
        allocation = allocations[fleet.allocation_id(host.name)]
        assert allocation["status"] == "active"
        connection = allocation["connection"]
        assert isinstance(connection, dict)
        assert (connection["host"], connection["port"]) == (host.address, 22)
        assert connection["username"] == "ops"
        assert connection["host_keys"] == [host.host_key]


def test_the_key_in_the_platforms_custody_is_the_one_every_host_lets_in(fleet: Fleet) -> None:
    env = fleet.env()
    account = {
        "service_account_id": env["GPUAAS_SERVICE_ACCOUNT_ID"],
        "key_id": env["GPUAAS_KEY_ID"],
        "client_secret": env["GPUAAS_CLIENT_SECRET"],
    }
    with httpx.Client(base_url=env["GPUAAS_BASE_URL"]) as api:
        token = api.post("/api/v1/auth/service-account/token", json=account).json()["access_token"]
        credential = (
            f"/api/v1/projects/{env['GPUAAS_PROJECT_ID']}/access-credentials/{env['GPUAAS_ACCESS_CREDENTIAL_ID']}"
        )
        headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": str(uuid.uuid4())}
        delivery = api.post(f"{credential}/deliveries", headers=headers).json()
        wrapped = {"X-Vault-Token": delivery["wrapping_token"]}
        secret = api.post("/v1/sys/wrapping/unwrap", headers=wrapped).json()["data"]
    assert secret["username"] == "ops"
    public = KeyPair.load(secret["private_key"].encode()).public
    for host in fleet.hosts():
        assert output_of(fleet, host.name, "cat", "/home/ops/.ssh/authorized_keys") == public


def test_no_private_login_key_stays_in_the_sandboxs_own_files(fleet: Fleet) -> None:
    kept = [path for path in places.state_dir(fleet.name).iterdir() if path.is_file()]
    assert kept
    for path in kept:
        assert "PRIVATE KEY" not in path.read_text()
        assert path.stat().st_mode & 0o077 == 0


def test_up_again_changes_nothing(fleet: Fleet) -> None:
    before = (fleet.hosts(), fleet.env(), offered(fleet))
    fleet.up(hosts=2, suite="bookworm")
    assert (fleet.hosts(), fleet.env(), offered(fleet)) == before


def test_up_starts_stopped_hosts_and_a_dead_platform_and_offers_them_again(fleet: Fleet, podman: Podman) -> None:
    before = fleet.env()
    podman.run("stop", "--time", "5", fleet.hosts()[0].container)
    process.stop(places.state_dir(fleet.name) / "platform", kill=True)
    assert fleet.status()["platform"]["running"] is False
    fleet.up(hosts=2, suite="bookworm")
    assert fleet.env() == before
    allocations = offered(fleet)
    for host in fleet.hosts():
        assert host.status == "running"
        connection = allocations[fleet.allocation_id(host.name)]["connection"]
        assert isinstance(connection, dict)
        assert connection["host"] == host.address


def test_a_lost_host_comes_back_as_another_machine_with_another_allocation(fleet: Fleet) -> None:
    lost, kept = fleet.hosts()
    old = fleet.allocation_id(lost.name)
    fleet.kill(lost.name)
    assert [host.name for host in fleet.hosts()] == [kept.name]
    fleet.up(hosts=2, suite="bookworm")
    assert fleet.hosts()[0].host_key != lost.host_key
    allocations = offered(fleet)
    assert fleet.allocation_id(lost.name) != old
    assert allocations[old]["status"] == "released"
    assert allocations[fleet.allocation_id(lost.name)]["status"] == "active"


def test_more_hosts_make_the_fleet_grow_and_leave_the_others_alone(fleet: Fleet) -> None:
    before = fleet.hosts()
    fleet.up(hosts=3, suite="bookworm")
    after = fleet.hosts()
    assert after[:2] == before
    assert [host.name for host in after] == ["gs-1", "gs-2", "gs-3"]


def test_up_after_being_killed_while_making_a_host_replaces_the_unfinished_one(fleet: Fleet, podman: Podman) -> None:
    gone = fleet.hosts()[-1]
    fleet.kill(gone.name)
    image = ensure_image(podman, recipe("bookworm", warm=False))
    labels = {
        "gpuaas-slurm.fleet": fleet.name,
        "gpuaas-slurm.host": gone.name,
        "gpuaas-slurm.suite": "bookworm",
        "gpuaas-slurm.warm": "no",
        "gpuaas-slurm.host-key": "never written",
    }
    podman.create_host(image, gone.container, gone.name, f"gpuaas-slurm-{fleet.name}", labels)
    fleet.up(hosts=3, suite="bookworm")
    assert output_of(fleet, gone.name, "cat", "/etc/ssh/ssh_host_ed25519_key.pub") == fleet.hosts()[-1].host_key


def test_another_suite_under_a_taken_name_is_refused_and_touches_nothing(fleet: Fleet) -> None:
    before = fleet.hosts()
    with pytest.raises(CannotRunError, match="already has gs-1=bookworm"):
        fleet.up(hosts=2, suite="trixie")
    assert fleet.hosts() == before


def test_a_paused_host_stops_answering_and_goes_on_when_unpaused(fleet: Fleet) -> None:
    host = fleet.hosts()[0]
    fleet.pause(host.name)
    assert fleet.status()["hosts"][0]["status"] == "paused"
    fleet.unpause(host.name)
    assert output_of(fleet, host.name, "hostname") == host.name


def test_exec_passes_the_exit_code_and_output_through(fleet: Fleet) -> None:
    assert command("exec", "--name", fleet.name, "gs-1", "--", "sh", "-c", "hostname; exit 7") == (7, "gs-1\n")


def test_a_command_on_a_host_has_what_podman_exec_gives(fleet: Fleet, podman: Podman) -> None:
    look = (
        "printenv | sort; id; umask; pwd; ulimit -n; ulimit -p; cat /proc/self/cgroup; cat;"
        " grep -E '^(Cap|Groups|NoNewPrivs)' /proc/self/status; readlink /proc/self/ns/*"
    )
    host = fleet.hosts()[0]
    shown = podman.run("exec", "--interactive", host.container, "sh", "-c", look, stdin=b"given\n")
    assert fleet.exec(host.name, ["sh", "-c", look], stdin="given\n").stdout == shown


@pytest.mark.parametrize(
    ("argv", "code"), [(["nosuch"], 127), (["/etc/passwd"], 126), (["sh", "-c", "kill -9 $$"], 137)]
)
def test_a_command_that_cannot_run_or_is_killed_has_its_exit_code(fleet: Fleet, argv: list[str], code: int) -> None:
    assert fleet.exec("gs-1", argv).returncode == code


def test_what_a_command_leaves_running_goes_on_and_is_not_waited_for(fleet: Fleet) -> None:
    pid = output_of(fleet, "gs-1", "sh", "-c", "sleep 600 & echo $!")
    assert output_of(fleet, "gs-1", "ps", "-o", "ppid=,args=", pid).split() == ["1", "sleep", "600"]
    fleet.exec("gs-1", ["kill", pid])


def test_a_command_on_a_paused_stopped_or_restarted_host(fleet: Fleet, podman: Podman) -> None:
    host = fleet.hosts()[0]
    before = output_of(fleet, host.name, "stat", "--format=%Y", "/proc/1")
    fleet.pause(host.name)
    assert fleet.exec(host.name, ["true"]).returncode == 125
    fleet.unpause(host.name)
    podman.run("stop", "--time", "5", host.container)
    assert "running containers" in fleet.exec(host.name, ["true"]).stderr
    fleet.up(hosts=3, suite="bookworm")
    assert int(output_of(fleet, host.name, "stat", "--format=%Y", "/proc/1")) > int(before)


def test_status_and_env_show_the_same(fleet: Fleet) -> None:
    code, shown = command("status", "--name", fleet.name, "--json")
    assert code == 0
    assert json.loads(shown) == fleet.status()
    code, exports = command("env", "--name", fleet.name)
    assert code == 0
    read_back = subprocess.run(
        ["sh", "-c", f'{exports}\nprintf %s "$GPUAAS_CLIENT_SECRET"'], capture_output=True, text=True, check=True
    )
    assert read_back.stdout == fleet.env()["GPUAAS_CLIENT_SECRET"]


def test_logs_show_a_hosts_journal_and_the_platforms_log(fleet: Fleet) -> None:
    code, journal = command("logs", "--name", fleet.name, "gs-1", "--lines", "1000")
    assert code == 0
    assert "systemd" in journal
    assert command("logs", "--name", fleet.name)[0] == 0


def test_an_unknown_host_is_an_error_that_lists_the_known_ones(fleet: Fleet) -> None:
    result = CliRunner().invoke(app, ["exec", "--name", fleet.name, "gs-9", "--", "true"])
    assert result.exit_code == 1
    assert "gs-1, gs-2, gs-3" in result.stderr


def test_down_removes_all_of_ours_and_nothing_of_others(podman: Podman, foreign: str) -> None:
    before = running_since(podman, foreign)
    fleet = Fleet(f"t-{uuid.uuid4().hex[:8]}")
    fleet.up(hosts=1, suite="bookworm")
    url = fleet.url
    assert fleet.name in podman.fleets() & places.known_fleets()
    fleet.down()
    fleet.down()
    assert fleet.hosts() == []
    assert fleet.name not in podman.fleets() | places.known_fleets()
    assert list(places.state_root().glob(f"*{fleet.name}*")) == []
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)
    assert running_since(podman, foreign) == before


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_a_warm_host_has_the_packages_with_every_service_off_and_no_key(podman: Podman, suite: str) -> None:
    hosts = Hosts(f"t-{uuid.uuid4().hex[:8]}", podman)
    try:
        hosts.ensure([HostSpec("warm", suite, warm=True)], KeyPair.generate().public)

        def output(*argv: str) -> str:
            return hosts.exec("warm", argv).stdout.strip()

        assert output("systemctl", "is-system-running") == "running"
        units = ["munge", "slurmctld", "slurmdbd", "slurmd", "mariadb"]
        assert output("systemctl", "is-enabled", *units).split() == ["disabled"] * len(units)
        assert output("systemctl", "is-active", *units).split() == ["inactive"] * len(units)
        assert output("ls", "/etc/munge") == ""
    finally:
        hosts.remove_all()


def test_bare_hosts_can_be_entered_with_the_key_they_come_with(tmp_path: Path) -> None:
    name, out = f"t-{uuid.uuid4().hex[:8]}", tmp_path / "hosts.json"
    create = [
        sys.executable,
        "-m",
        "sandbox.fleet",
        "create",
        "--name",
        name,
        "--host",
        "one=bookworm",
        "--out",
        str(out),
    ]
    try:
        for _ in range(2):
            subprocess.run(create, check=True)
        answer = json.loads(out.read_text())
        one = answer["hosts"]["one"]
        known_hosts = tmp_path / "known_hosts"
        known_hosts.write_text(f"{one['address']} {one['host_key']}\n")
        login = subprocess.run(
            [
                *("ssh", "-F", "none", "-i", answer["private_key_file"], "-p", str(one["port"])),
                *("-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-o", "StrictHostKeyChecking=yes"),
                *(
                    "-o",
                    f"UserKnownHostsFile={known_hosts}",
                    f"{one['user']}@{one['address']}",
                    "sudo -n id -u; id -un",
                ),
            ],
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": os.environ["PATH"]},
        )
        assert ends(login, 0).stdout == "0\nops\n", login.stderr
    finally:
        for _ in range(2):
            subprocess.run([sys.executable, "-m", "sandbox.fleet", "destroy", "--name", name], check=True)
    assert not Path(answer["private_key_file"]).exists()
