"""What hosts report goes into records by type: an allow-list, and which host may report what."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.model import host_data
from runner.model.limits import size
from runner.slurm import reports
from runner.translate import MemberEvent, parse_event, translate
from tests.unit.host_reports import MEMBERS, SEEN, STEERING, report

ROOT = Path(__file__).resolve().parents[2]


def failure(**error: Any) -> dict[str, Any]:
    data = {"host": "worker-1", "task": "t", "res": {"adapter_error": error, "msg": "m"}}
    return {"event": "runner_on_failed", "event_data": data}


def parsed(event: dict[str, Any]) -> MemberEvent:
    found = parse_event(event, MEMBERS)
    assert isinstance(found, MemberEvent)
    return found


def test_the_clusters_snapshot_comes_from_the_controllers_member_alone() -> None:
    run = translate([report("worker-1", phase="serving", snapshot=SEEN)], MEMBERS)
    assert run.snapshot is None
    assert parsed(report("worker-1", phase="serving", snapshot=SEEN)).dropped == ("snapshot",)
    run = translate([report("controller-1", phase="serving", snapshot=SEEN)], MEMBERS)
    assert run.snapshot is not None and run.snapshot.controller.ping == "UP"


def test_a_report_that_a_module_returned_is_not_one() -> None:
    for host, action in (("controller-1", "converge_host"), ("worker-1", "slurm_nodes"), ("worker-1", "")):
        assert parse_event(report(host, action, phase="serving", snapshot=SEEN), MEMBERS) is None
        failed = {**report(host, action, phase="owned", snapshot=SEEN), "event": "runner_on_failed"}
        assert (parsed(failed).phase, parsed(failed).snapshot) == (None, None)


def test_a_controller_whose_slurm_does_not_answer_shows_what_needs_no_slurm() -> None:
    failed = {**report("controller-1", "slurm_nodes", phase="controller", snapshot=SEEN), "event": "runner_on_failed"}
    assert translate([failed], MEMBERS).snapshot is not None


@pytest.mark.parametrize("component", ["controller", "worker"])
def test_no_key_by_which_the_runner_goes_can_come_from_a_host(component: str) -> None:
    assert not set(STEERING) & set(reports.DETAIL[component])
    kept, dropped = reports.read_detail(component, dict.fromkeys(STEERING, "owned"))
    assert (kept, set(dropped)) == ({}, set(STEERING))


def test_a_worker_reports_nothing_that_only_a_controller_may() -> None:
    reported = {"applied_config": "sha256:1", "wish": "sha256:1", "cluster_name": "x", "cpus": 2}
    kept, dropped = reports.read_detail("worker", reported)
    assert kept == {"cpus": 2} and set(dropped) == {"applied_config", "wish", "cluster_name"}
    assert reports.read_detail("tachyon", {"cpus": 2}) == ({}, ["cpus"])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cpus", float("nan")),
        ("cpus", float("inf")),
        ("cpus", True),
        ("cpus", "2"),
        ("cpus", -1),
        ("cpus", 2**60),
        ("memory_mb", {"deep": [1]}),
        ("registered_in_controller", "yes"),
        ("registered_in_controller", 1),
        ("residue", "not a list"),
        ("switched_at", float("nan")),
        ("switched_at", True),
        ("drain_held_by", "owned"),
        ("slurmd_state", "x" * 200),
        ("slurmd_state", "a\nb"),
        ("config_version", ["a"]),
        ("worker_hostname", "a.b"),
        ("worker_hostname", "-a"),
        ("worker_hostname", "{{ x }}"),
        ("worker_hostname", ""),
        ("drain_reason", 7),
    ],
)
def test_a_value_of_another_type_or_size_is_dropped_and_the_others_stay(key: str, value: Any) -> None:
    kept, dropped = reports.read_detail("worker", {key: value, "gpus": 4})
    assert (kept, dropped) == ({"gpus": 4}, [key])


def details_in(tasks: Any) -> Iterator[dict[str, Any]]:
    """The detail of each member_report in a file of tasks or plays."""
    if isinstance(tasks, dict):
        if isinstance(reported := tasks.get("member_report"), dict):
            yield reported.get("detail") or {}
        tasks = list(tasks.values())
    for one in tasks if isinstance(tasks, list) else []:
        yield from details_in(one)


def test_every_key_that_a_play_reports_is_on_the_list() -> None:
    reportable = {key for keys in reports.DETAIL.values() for key in keys}
    files = [*(ROOT / "playbooks").rglob("*.yml"), *(ROOT / "roles").glob("*/tasks/*.yml")]
    reported = {key for path in files for detail in details_in(yaml.safe_load(path.read_text())) for key in detail}
    assert len(reported) > 20 and reported <= reportable


def test_null_is_a_value_for_every_key() -> None:
    for component, keys in reports.DETAIL.items():
        assert reports.read_detail(component, dict.fromkeys(keys)) == (dict.fromkeys(keys), [])


def test_what_honest_hosts_report_is_kept_as_it_is() -> None:
    reported: dict[str, Any]
    moved = {"from": "22.05.8-4", "to": "22.05.8-5", "backup": "/var/lib/gpuaas-slurm/backups/x"}
    reported = {"upgraded": moved, "services_left": ["mariadb"], "slurmctld_state": "active"}
    digest = "sha256:" + "a" * 64
    kept = {**reported, "applied_config": digest, "users_version": digest}
    assert reports.read_detail("controller", kept) == (kept, [])
    assert reports.read_detail("controller", {**reported, "wish": digest, "people_version": digest}) == (kept, [])
    reported = {
        "worker_hostname": "gs-4",
        "residue": ["file /etc/x", "user slurm"],
        "switched_at": 1760000000.5,
        "cpus": 4,
    }
    assert reports.read_detail("worker", reported) == (reported, [])


def test_a_worker_keeps_its_nodes_name_and_none_takes_anothers() -> None:
    def name(host: str, hostname: str) -> Any:
        return parsed(report(host, phase="joining", detail={"worker_hostname": hostname})).detail.get("worker_hostname")

    assert name("worker-1", "fresh") == "fresh"
    assert name("worker-1", "taken") is None
    assert name("worker-2", "taken") == "taken"
    assert name("worker-2", "fresh") is None


def test_a_long_list_is_cut_and_shows_how_much_is_missing() -> None:
    kept, _ = reports.read_detail("worker", {"residue": [f"file /etc/{number}" for number in range(10_000)]})
    assert size(kept) < 5000 and kept["residue"][-1].startswith("and ")
    assert len(kept["residue"]) - 1 + int(kept["residue"][-1].split()[1]) == 10_000


OURS = ["host_key_mismatch", "host_unreachable", "play_stalled", "play_timeout", "task_failed"]


@pytest.mark.parametrize("code", ["", "Bad", "a-b", "a" * 65, "1a", "x\ny", None, 7, ["a"], *OURS])
def test_a_code_of_another_form_or_of_our_own_is_not_taken_from_a_host(code: Any) -> None:
    error = parsed(failure(code=code, message="m")).error
    assert error is not None and (error.code, error.klass) == ("task_failed", "intervention")


def test_an_error_of_a_host_is_one_bounded_printable_line() -> None:
    error = parsed(
        failure(code="munge_failed", message="a\nb\x1b[2J\ud800" + "\U0001f4a3" * 5000, **{"class": "drift"})
    ).error
    assert error is not None and (error.code, error.klass) == ("munge_failed", "drift")
    assert error.message.isprintable() and error.message.startswith("a b?[2J?")
    assert len(error.message.encode()) <= host_data.MESSAGE_BYTES
