"""What came to a host during a cluster's life: with the cluster, and it goes, or with others, and it stays."""

import pwd
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.host.errors import AdapterError
from ansible.module_utils.host.restore import accounts
from ansible.module_utils.host.restore import packages as restore_packages
from ansible.module_utils.host.restore.server import ServerPlan

from plugins.modules import restore_host

EMPTY: dict[str, list[str]] = {kind: [] for kind in ("package", "account", "group", "unit", "port", "process", "path")}
GONE = ServerPlan(stays=False, keeps_running=False)
STAYS = ServerPlan(stays=True, keeps_running=True)


def ledger(*brought: str, found: tuple[str, ...] = (), **kinds: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Entries of a worker that brought some packages and found others."""
    before: dict[str, dict[str, Any]] = {f"package:{name}": {"installed": name in found} for name in (*brought, *found)}
    before |= {f"{kind}:{name}": {} for kind, names in kinds.items() for name in names}
    return {key: {"owners": ["worker/slurmd"], "before": one} for key, one in before.items()}


WORKER = ledger("munge", "libmunge2", "slurmd", "slurm-client", unit=("munge", "slurmd"))
CONTROLLER = WORKER | ledger("mariadb-server", "mysql-common", "slurmctld", unit=("mariadb", "slurmctld"))


class Host:
    """Accounts and packages in memory. `busy` accounts have a process."""

    def __init__(self, *packages: str) -> None:
        self.accounts = {"munge", "mysql", "slurm"}
        self.groups = {"munge", "mysql", "slurm"}
        self.busy: set[str] = set()
        self.commands: list[tuple[str, ...]] = []
        self.now = EMPTY | {"package": list(packages)}

    def command(self, *command: str) -> None:
        self.commands.append(command)
        if command[0] == "userdel" and command[-1] not in self.busy:
            self.accounts.discard(command[-1])
        if command[0] == "groupdel" and command[-1] not in self.accounts:
            self.groups.discard(command[-1])

    def exists(self, find: Any, name: str) -> bool:
        return name in (self.accounts if find is pwd.getpwnam else self.groups)

    def installed(self, monkeypatch: pytest.MonkeyPatch) -> "Host":
        monkeypatch.setattr(accounts, "_command", self.command)
        monkeypatch.setattr(accounts, "_exists", self.exists)
        monkeypatch.setattr(restore_host, "read_host_state", lambda: self.now)
        monkeypatch.setattr(restore_host, "statuses", lambda names: {n: "" for n in names if n in self.now["package"]})
        monkeypatch.setattr(restore_host, "still_needed", lambda _names: [])
        return self


# -- accounts -------------------------------------------------------------------------------------------------


def test_the_account_of_a_database_that_others_installed_on_a_worker_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host("mariadb-server").installed(monkeypatch)
    changes, left = restore_host.remove_package_accounts(WORKER, EMPTY, "worker")
    assert changes == ["user munge", "group munge", "user slurm", "group slurm"] and left == []
    assert host.accounts == {"mysql"}
    assert not [one for one in host.commands if one[0] == "pkill" or "--force" in one or "mysql" in one]


@pytest.mark.parametrize(
    ("entries", "packages", "stay"),
    [
        (CONTROLLER, (), set()),
        (CONTROLLER, ("mariadb-server",), {"mysql"}),  # it stays, because others have databases in it
        (CONTROLLER, ("mysql-server-8.0",), {"mysql"}),  # others put theirs in its place
        (CONTROLLER, ("slurm-client",), {"slurm"}),  # others need it
        (WORKER, (), {"mysql"}),
        (ledger(found=("munge", "slurmd", "mariadb-server")), (), {"munge", "mysql", "slurm"}),
    ],
)
def test_an_account_goes_with_the_packages_of_ours_that_made_it(
    monkeypatch: pytest.MonkeyPatch, entries: dict[str, Any], packages: tuple[str, ...], stay: set[str]
) -> None:
    host = Host(*packages).installed(monkeypatch)
    assert restore_host.remove_package_accounts(entries, EMPTY, "worker")[1] == []
    assert host.accounts == host.groups == stay


def test_an_account_from_before_us_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host().installed(monkeypatch)
    restore_host.remove_package_accounts(CONTROLLER, EMPTY | {"account": ["slurm"], "group": ["munge"]}, "worker")
    assert host.accounts == {"munge", "slurm"}


def test_the_first_of_two_members_takes_only_accounts_that_the_other_does_not_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = {"package:mariadb-server": {"owners": ["controller/slurmdbd"], "before": {"installed": False}}}
    host = Host().installed(monkeypatch)
    restore_host.remove_package_accounts(WORKER | server, EMPTY, "controller")
    assert host.accounts == {"munge", "slurm"}
    restore_host.remove_package_accounts(WORKER, EMPTY, "worker")
    assert host.accounts == set()


def test_a_process_of_a_daemons_account_is_not_killed_and_the_account_is_residue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = Host().installed(monkeypatch)
    host.busy = {"mysql"}
    changes, left = restore_host.remove_package_accounts(CONTROLLER, EMPTY, "worker")
    assert not {"user mysql", "group mysql"} & set(changes) and left == ["account mysql", "group mysql"]
    assert not [one for one in host.commands if one[0] == "pkill"]


def test_processes_of_a_user_that_we_made_are_ended_before_the_user_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host().installed(monkeypatch)
    host.accounts, host.groups = {"alice"}, set()
    assert accounts.remove_users(["alice"]) == ["user alice"]
    assert [one[0] for one in host.commands] == ["pkill", "userdel"]


# -- residue --------------------------------------------------------------------------------------------------


def compare(
    monkeypatch: pytest.MonkeyPatch, entries: dict[str, Any], fate: Any = GONE, **now: list[str]
) -> tuple[list[str], list[str]]:
    Host().installed(monkeypatch)
    monkeypatch.setattr(restore_host, "read_host_state", lambda: EMPTY | now)
    ours, others = restore_host.compare_with_baseline(entries, EMPTY, "worker", fate)
    assert all(one.endswith("by others while the cluster existed") for one in others)
    return ours, [one.partition(":")[0] for one in others]


def test_a_database_that_others_installed_on_a_worker_is_not_residue(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, others = compare(
        monkeypatch,
        WORKER,
        package=["mariadb-client", "mariadb-server"],
        account=["mysql"],
        group=["mysql"],
        unit=["mariadb.service"],
        port=["3306"],
        process=["mariadbd"],
        path=["/etc/mysql", "/run/mysqld", "/var/lib/mysql"],
    )
    assert ours == [] and len(others) == 10, others


def test_a_drop_in_of_others_for_a_server_that_stays_is_not_residue(monkeypatch: pytest.MonkeyPatch) -> None:
    dropins = "/etc/systemd/system/mariadb.service.d"
    ours, others = compare(monkeypatch, CONTROLLER, STAYS, path=[dropins, "/var/lib/mysql"], port=["3306"])
    assert (ours, others) == ([], [f"path {dropins}"])


def test_what_our_packages_and_units_leave_is_residue(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {
        "package": ["libmunge2", "slurm-client"],
        "account": ["munge", "mysql", "slurm"],
        "unit": ["mariadb.service", "munge.service", "slurmd.service"],
        "port": ["3306", "6817", "6818"],
        "process": ["mariadbd", "munged", "slurmstepd"],
        "path": ["/etc/munge", "/etc/mysql", "/etc/slurm", "/run/gpuaas-slurm/source", "/var/spool/slurmd"],
    }
    ours, others = compare(monkeypatch, CONTROLLER, **now)
    assert others == [] and len(ours) == sum(map(len, now.values()))


def test_what_a_daemon_that_was_installed_before_us_leaves_is_residue(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = ledger(found=("munge", "slurmd"), unit=("munge", "slurmd"))
    ours, others = compare(monkeypatch, entries, process=["slurmd"], port=["6818"], path=["/run/munge"])
    assert others == [] and sorted(ours) == ["path /run/munge", "port 6818", "process slurmd"]


def test_a_directory_that_the_ledger_has_is_residue(monkeypatch: pytest.MonkeyPatch) -> None:
    dropins = "/etc/systemd/system/slurmd.service.d"
    noted = ledger(path=(f"{dropins}/gpuaas-slurm.conf",), tree=("/var/lib/slurm/slurmd",))
    assert compare(monkeypatch, noted, path=[dropins, "/var/lib/slurm"]) == (
        [f"path {dropins}", "path /var/lib/slurm"],
        [],
    )


def test_a_drop_in_of_ours_that_no_ledger_has_is_residue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dropins = tmp_path / "munge.service.d"
    dropins.mkdir()
    (dropins / "override.conf").touch()
    assert compare(monkeypatch, WORKER, path=[str(dropins)]) == ([], [f"path {dropins}"])
    (dropins / "gpuaas-slurm.conf").touch()
    assert compare(monkeypatch, WORKER, path=[str(dropins)]) == ([f"path {dropins}"], [])


# -- the order ------------------------------------------------------------------------------------------------


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A clean-up that is cut off where the server's fate is asked, with the steps before it."""
    done: list[Any] = []

    def plan_server(*_noted: object) -> None:
        done.append("fate")
        raise InterruptedError

    monkeypatch.setattr(restore_host, "repair_packages", lambda names: done.append(sorted(names)))
    monkeypatch.setattr(restore_host, "plan_server", plan_server)
    return done


@pytest.mark.parametrize(
    ("in_use", "settled"),
    [
        (False, ["mariadb-server", "munge", "slurmd"]),
        (True, ["munge", "slurmd"]),  # a server with databases of others is never taken out by force
    ],
)
def test_an_interrupted_install_is_settled_before_apt_is_asked_who_needs_the_server(
    steps: list[Any], monkeypatch: pytest.MonkeyPatch, in_use: bool, settled: list[str]
) -> None:
    monkeypatch.setattr(restore_host, "in_use", lambda _databases: in_use)
    entries = ledger("munge", "slurmd", "mariadb-server", found=("slurm-client",))
    with pytest.raises(InterruptedError):
        restore_host.clean(entries, EMPTY, "worker", remove_homes=False)
    assert steps == [settled, "fate"]


def test_settling_restores_the_policy_and_forces_out_what_cannot_be_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    present, ran = {"munge": "installed", "slurmd": "half-installed"}, []

    def finish() -> None:
        ran.append("finish")
        if "slurmd" in present:
            raise AdapterError("package_install_failed", "slurmd", "retryable")

    def run(command: list[str], _doing: str) -> str:
        ran.append(" ".join([command[0], command[-1]]))
        present.pop(command[-1])
        return ""

    monkeypatch.setattr(restore_packages, "restore_policy", lambda: ran.append("policy"))
    monkeypatch.setattr(restore_packages, "finish_interrupted_install", finish)
    monkeypatch.setattr(restore_packages, "run_apt", run)
    monkeypatch.setattr(restore_packages, "statuses", lambda names: {n: present[n] for n in names if n in present})
    assert restore_packages.repair_packages(["munge", "slurmd"]) == {"munge": "installed"}
    assert ran == ["policy", "finish", "dpkg slurmd", "finish"]
