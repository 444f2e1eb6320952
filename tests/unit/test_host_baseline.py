"""What a host was like before its first change, and what of a cluster is left on it, on a scratch directory."""

import json
import shutil
from pathlib import Path

import pytest
from ansible.module_utils.host.baseline import left_behind, read_host_state
from ansible.module_utils.host.errors import AdapterError
from ansible.module_utils.host.ledger import Ledger, read
from ansible.module_utils.slurm.job_processes import end_jobs, running_jobs

STATUS = "Package: {}\nStatus: {}\nVersion: 1\n\n"
LISTENS = "  sl  local_address\n   0: 00000000:{:04X} 00000000:0000 {} 00000000:00000000\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("var/lib/dpkg", "etc/systemd/system/multi-user.target.wants", "proc/net", "proc/1", "etc/munge"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").write_text(
        STATUS.format("vim", "install ok installed") + STATUS.format("gone", "deinstall ok not-installed")
    )
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (tmp_path / "etc/group").write_text("root:x:0:\n")
    (tmp_path / "proc/net/tcp").write_text(LISTENS.format(22, "0A"))
    (tmp_path / "proc/1/comm").write_text("systemd\n")
    return tmp_path


def test_a_picture_has_what_is_there_and_nothing_that_is_not(root: Path) -> None:
    seen = read_host_state(root)
    assert seen["package"] == ["vim"] and seen["account"] == ["root"] and seen["port"] == ["22"]
    assert seen["path"] == ["/etc/munge"] and seen["process"] == [] and seen["unit"] == []


def test_what_came_with_a_cluster_is_named_and_what_a_person_added_is_not_ours(root: Path) -> None:
    before = read_host_state(root)
    with (root / "var/lib/dpkg/status").open("a") as status:
        status.write(
            STATUS.format("libmunge2", "deinstall ok config-files") + STATUS.format("htop", "install ok installed")
        )
    with (root / "etc/passwd").open("a") as passwd:
        passwd.write("slurm:x:64030:64030::/:/bin/false\nalice:x:1001:1001::/home/alice:/bin/sh\n")
    (root / "etc/systemd/system/multi-user.target.wants/slurmd.service").symlink_to("/lib/slurmd.service")
    (root / "proc/net/tcp6").write_text(
        LISTENS.format(6818, "0A") + LISTENS.format(6817, "01") + LISTENS.format(8080, "0A")
    )
    (root / "proc/77").mkdir()
    (root / "proc/77/comm").write_text("slurmstepd\n")
    (root / "var/lib/slurm").mkdir()
    assert left_behind(before, read_host_state(root)) == [
        "package libmunge2",
        "account slurm",
        "unit slurmd.service",
        "port 6818",
        "process slurmstepd",
        "path /var/lib/slurm",
    ]


def test_a_host_that_had_it_all_before_has_nothing_left_behind(root: Path) -> None:
    (root / "var/lib/slurm").mkdir()
    with (root / "etc/passwd").open("a") as passwd:
        passwd.write("munge:x:100:100::/:/bin/false\n")
    assert left_behind(read_host_state(root), read_host_state(root)) == []


def test_the_baseline_is_written_once_and_kept_for_a_second_member(tmp_path: Path) -> None:
    ledger = Ledger("worker/munge", tmp_path)
    ledger.note("path", "/a", {"kind": "absent"})
    ledger.save()
    saved = read(tmp_path / "ledger.json")
    assert saved and saved.baseline and saved.baseline["account"] and sorted(saved.entries) == ["path:/a"]
    (tmp_path / "ledger.json").write_text(
        json.dumps({"format": 1, "baseline": {"account": ["old"]}, "entries": saved.entries})
    )
    second = Ledger("controller/munge", tmp_path)
    second.note("path", "/b", {"kind": "absent"})
    second.save()
    again = read(tmp_path / "ledger.json")
    assert again and again.baseline == {"account": ["old"]} and sorted(again.entries) == ["path:/a", "path:/b"]


def test_a_ledger_that_cannot_be_read_is_an_error_and_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "ledger.json").write_text("{")
    with pytest.raises(AdapterError, match="cannot be read"):
        Ledger("worker/munge", tmp_path)


def process(proc: Path, pid: int, parent: int, name: str, line: str = "", state: str = "S") -> None:
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "comm").write_text(f"{name}\n")
    (proc / str(pid) / "cmdline").write_text(line.replace(" ", "\0"))
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) {state} {parent} 1 1")


def test_jobs_on_a_host_are_found_by_their_steps(tmp_path: Path) -> None:
    process(tmp_path, 10, 1, "slurmd")
    process(tmp_path, 11, 1, "slurmstepd", "slurmstepd: [12.batch]")
    process(tmp_path, 12, 1, "slurmstepd", "slurmstepd: [12.0]")
    process(tmp_path, 13, 1, "slurmstepd", "slurmstepd: [9.extern]", state="Z")
    process(tmp_path, 14, 1, "slurmstepd", "/usr/sbin/slurmstepd infinity")
    process(tmp_path, 15, 1, "bash", "bash slurmstepd")
    process(tmp_path, 16, 11, "bash", "bash job.sh")
    assert running_jobs(tmp_path) == ["12"]


def test_a_step_that_only_waits_to_report_to_its_controller_runs_nothing(tmp_path: Path) -> None:
    process(tmp_path, 20, 1, "slurmstepd", "slurmstepd: [7.batch]")
    assert running_jobs(tmp_path) == []
    process(tmp_path, 21, 20, "bash")
    assert running_jobs(tmp_path) == ["7"]


def test_ending_jobs_ends_what_they_started_children_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process(tmp_path, 20, 1, "slurmstepd", "slurmstepd: [7.batch]")
    process(tmp_path, 21, 20, "bash")
    process(tmp_path, 22, 21, "sleep")
    process(tmp_path, 23, 1, "sshd")
    ended: list[int] = []

    def kill(pid: int, _signal: int) -> None:
        ended.append(pid)
        shutil.rmtree(tmp_path / str(pid))

    monkeypatch.setattr("os.kill", kill)
    assert end_jobs(tmp_path) == ["job 7 ended"]
    assert ended == [22, 21, 20]
