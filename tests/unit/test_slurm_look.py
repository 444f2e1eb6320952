"""One look at a controller: it is fast, copes with daemons that are dead, and names them."""

import shutil
import subprocess
import time
from pathlib import Path

import pytest
from ansible.module_utils.slurm import commands as slurm_look

from tests.unit.recorded_slurm import recorded


class Host:
    """Answers commands as a controller would, and remembers what it was asked."""

    def __init__(self, **states: str) -> None:
        self.states = {"munge": "active", "slurmctld": "active", "slurmdbd": "active", "mariadb": "active"} | states
        self.asked: list[str] = []

    def ask(self, *command: str) -> str | None:
        self.asked.append(command[0])
        if command[0] == "systemctl":
            shown = [f"Id={name}.service\nActiveState={state}\nMainPID=0" for name, state in self.states.items()]
            return "\n\n".join(shown)
        if command[0] == "dpkg-query":
            return "installed 24.11.5-4"
        if command[0] == "sacctmgr":
            return "root|root\ndefault|ops\n"
        if command[:3] == ("scontrol", "show", "config"):
            return recorded("24.11", "idle", "config.txt")
        return None


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "slurm.conf"
    path.write_text(f"ClusterName=one\nStateSaveLocation={tmp_path}\n")
    return path


def looked(monkeypatch: pytest.MonkeyPatch, host: Host, config: Path) -> dict[str, object]:
    monkeypatch.setattr(slurm_look, "ask", host.ask)
    seen: dict[str, object] = slurm_look.look(("scontrol", "show", "nodes", "--json"), config)["controller"]
    return seen


def test_a_controller_in_order_reports_everything_at_once(monkeypatch: pytest.MonkeyPatch, config: Path) -> None:
    seen = looked(monkeypatch, Host(), config)
    assert (seen["ping"], seen["accounting_answers"], seen["submit_account"]) == ("UP", True, "default")
    assert (seen["config_loaded"], seen["config_intact"]) == (True, False)
    assert seen["package_version"] == "24.11.5-4"
    assert seen["outdated"] == []


@pytest.mark.parametrize("dead", ["slurmctld", "munge"])
def test_slurm_is_not_asked_when_a_daemon_it_needs_is_dead_and_the_daemon_is_named(
    monkeypatch: pytest.MonkeyPatch, config: Path, dead: str
) -> None:
    host = Host(**{dead: "failed"})
    seen = looked(monkeypatch, host, config)
    assert (seen[dead], seen["ping"]) == ("failed", "DOWN")
    assert not {"scontrol", "sinfo", "squeue"} & set(host.asked)


@pytest.mark.parametrize("dead", ["slurmdbd", "mariadb", "munge"])
def test_accounting_is_not_asked_when_a_daemon_it_needs_is_dead(
    monkeypatch: pytest.MonkeyPatch, config: Path, dead: str
) -> None:
    host = Host(**{dead: "inactive"})
    assert looked(monkeypatch, host, config)["accounting_answers"] is False
    assert "sacctmgr" not in host.asked


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("normal|Normal QOS default\np_00000000000a|g1,0123456789ab\n", {"p_00000000000a": ["0123456789ab"]}),
        ("normal\n", None),
        (None, None),
    ],
)
def test_a_shared_cluster_says_which_users_it_has_given_to_identities(
    monkeypatch: pytest.MonkeyPatch, config: Path, answer: str | None, found: dict[str, list[str]] | None
) -> None:
    host = Host()
    script = config.with_name("account-lists.sh")
    monkeypatch.setattr(slurm_look, "LISTS_SCRIPT", script)
    monkeypatch.setattr(slurm_look, "ask", lambda *it: answer if it == slurm_look.REMEMBERED else host.ask(*it))
    assert slurm_look.look(("scontrol", "show", "nodes", "--json"), config)["remembered"] is None
    script.touch()
    assert slurm_look.look(("scontrol", "show", "nodes", "--json"), config)["remembered"] == found


def test_a_daemon_that_reloads_runs(monkeypatch: pytest.MonkeyPatch, config: Path) -> None:
    assert looked(monkeypatch, Host(slurmctld="reloading"), config)["slurmctld"] == "active"


def test_space_is_listed_once_per_file_system_beginning_with_the_state_directory(
    monkeypatch: pytest.MonkeyPatch, config: Path
) -> None:
    disks = looked(monkeypatch, Host(), config)["disks"]
    assert isinstance(disks, list)
    assert disks[0]["path"] == str(config.parent)
    usage = shutil.disk_usage(config.parent)
    assert abs(disks[0]["free_mb"] - usage.free // 2**20) < 500
    assert len({Path(disk["path"]).stat().st_dev for disk in disks}) == len(disks)


def test_a_configuration_that_is_gone_is_unknown_and_breaks_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = looked(monkeypatch, Host(), tmp_path / "nowhere")
    assert (seen["config_version"], seen["config_intact"]) == (None, None)


def test_a_program_that_was_replaced_under_a_running_daemon_is_noticed(tmp_path: Path) -> None:
    program = tmp_path / "daemon"
    shutil.copy("/bin/sleep", program)
    time.sleep(0.05)  # file systems count time in coarse steps
    started = time.monotonic()
    daemon = subprocess.Popen([program, "60"])
    try:
        command = Path(f"/proc/{daemon.pid}/cmdline")
        deadline = time.monotonic() + 10
        while str(program) not in command.read_text() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not slurm_look._was_replaced(str(daemon.pid), started)
        time.sleep(0.05)
        shutil.copy("/bin/sleep", tmp_path / "newer")
        (tmp_path / "newer").replace(program)
        assert slurm_look._was_replaced(str(daemon.pid), started)
        program.unlink()
        assert slurm_look._was_replaced(str(daemon.pid), started)
    finally:
        daemon.kill()
        daemon.wait()
    assert not slurm_look._was_replaced("0", started)
