"""What hosts report goes into records by type and size: allow-list, limits, and who may speak of what."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner import detail, hostkeys, reported
from runner.fitting import CUT_FIRST, GONE_BY, fitted
from runner.limits import RECORD_BYTES, size
from runner.translate import OUR_CODES, Heard, Played, Story, hear, tell, translate
from tests.unit import hostile

ROOT = Path(__file__).resolve().parents[2]
thorough = settings(derandomize=True, max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
WORKER, CONTROLLER, OTHER = UUID(int=5), UUID(int=6), UUID(int=8)
MEMBERS = {
    "worker-1": Played(WORKER, "worker", None, {"taken": OTHER}),
    "worker-2": Played(OTHER, "worker", "taken"),
    "controller-1": Played(CONTROLLER, "controller"),
}
SEEN = {"observed_at": "2026-01-02T03:04:05Z", "controller": {"ping": "UP"}, "nodes": {}}
# Everything in a record by which the runner goes, as this and other parts of it write.
STEERING = (
    *("leave", "claimed_by", "lease_expires_at", "fence", "operation_id", "repair", "change", "stopped", "attempt"),
    *("next_attempt_at", "wish_refused", "started_by", "superseded_by", "last_adapter_error", "role", "phase"),
    *(hostkeys.PINNED, hostkeys.CHANGED, "jobs", "node_state", "last_runtime_observed_at", "cut"),
)


def report(host: str, action: str = "member_report", **said: Any) -> dict[str, Any]:
    data = {"host": host, "task": "Report", "task_action": action, "res": {"member_report": said}}
    return {"event": "runner_on_ok", "event_data": data}


def failure(**error: Any) -> dict[str, Any]:
    data = {"host": "worker-1", "task": "t", "res": {"adapter_error": error, "msg": "m"}}
    return {"event": "runner_on_failed", "event_data": data}


def heard(event: dict[str, Any]) -> Heard:
    found = hear(event, MEMBERS)
    assert isinstance(found, Heard)
    return found


def test_the_clusters_snapshot_comes_from_the_controllers_member_alone() -> None:
    story = translate([report("worker-1", phase="serving", snapshot=SEEN)], MEMBERS)
    assert story.snapshot is None
    assert heard(report("worker-1", phase="serving", snapshot=SEEN)).dropped == ("snapshot",)
    story = translate([report("controller-1", phase="serving", snapshot=SEEN)], MEMBERS)
    assert story.snapshot is not None and story.snapshot.controller.ping == "UP"


def test_a_report_that_a_module_returned_is_not_one() -> None:
    for host, action in (("controller-1", "converge_host"), ("worker-1", "slurm_nodes"), ("worker-1", "")):
        assert hear(report(host, action, phase="serving", snapshot=SEEN), MEMBERS) is None
        failed = {**report(host, action, phase="owned", snapshot=SEEN), "event": "runner_on_failed"}
        assert (heard(failed).phase, heard(failed).snapshot) == (None, None)


def test_a_controller_whose_slurm_is_silent_still_shows_what_can_be_seen_without_it() -> None:
    failed = {**report("controller-1", "slurm_nodes", phase="controller", snapshot=SEEN), "event": "runner_on_failed"}
    assert translate([failed], MEMBERS).snapshot is not None


@pytest.mark.parametrize("component", ["controller", "worker"])
def test_no_key_by_which_the_runner_goes_can_come_from_a_host(component: str) -> None:
    assert not set(STEERING) & set(reported.DETAIL[component])
    kept, dropped = reported.read_detail(component, dict.fromkeys(STEERING, "owned"))
    assert (kept, set(dropped)) == ({}, set(STEERING))


def test_a_worker_says_nothing_that_only_a_controller_may() -> None:
    kept, dropped = reported.read_detail("worker", {"wish": "sha256:1", "cluster_name": "x", "cpus": 2})
    assert kept == {"cpus": 2} and set(dropped) == {"wish", "cluster_name"}
    assert reported.read_detail("tachyon", {"cpus": 2}) == ({}, ["cpus"])


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
    kept, dropped = reported.read_detail("worker", {key: value, "gpus": 4})
    assert (kept, dropped) == ({"gpus": 4}, [key])


def details_in(tasks: Any) -> Iterator[dict[str, Any]]:
    """The detail of each member_report in a file of tasks or plays."""
    if isinstance(tasks, dict):
        if isinstance(said := tasks.get("member_report"), dict):
            yield said.get("detail") or {}
        tasks = list(tasks.values())
    for one in tasks if isinstance(tasks, list) else []:
        yield from details_in(one)


def test_every_key_that_a_play_reports_is_on_the_list() -> None:
    known = {key for keys in reported.DETAIL.values() for key in keys}
    files = [*(ROOT / "playbooks").rglob("*.yml"), *(ROOT / "roles").glob("*/tasks/*.yml")]
    said = {key for path in files for detail in details_in(yaml.safe_load(path.read_text())) for key in detail}
    assert len(said) > 20 and said <= known


def test_null_is_a_value_for_every_key() -> None:
    for component, keys in reported.DETAIL.items():
        assert reported.read_detail(component, dict.fromkeys(keys)) == (dict.fromkeys(keys), [])


def test_what_honest_hosts_report_is_kept_as_it_is() -> None:
    said: dict[str, Any]
    moved = {"from": "22.05.8-4", "to": "22.05.8-5", "backup": "/var/lib/gpuaas-slurm/backups/x"}
    said = {"upgraded": moved, "services_left": ["mariadb"], "wish": "sha256:" + "a" * 64, "slurmctld_state": "active"}
    assert reported.read_detail("controller", said) == (said, [])
    said = {"worker_hostname": "gs-4", "residue": ["file /etc/x", "user slurm"], "switched_at": 1760000000.5, "cpus": 4}
    assert reported.read_detail("worker", said) == (said, [])


def test_a_worker_keeps_its_nodes_name_and_none_takes_anothers() -> None:
    def name(host: str, said: str) -> Any:
        return heard(report(host, phase="joining", detail={"worker_hostname": said})).detail.get("worker_hostname")

    assert name("worker-1", "fresh") == "fresh"
    assert name("worker-1", "taken") is None
    assert name("worker-2", "taken") == "taken"
    assert name("worker-2", "fresh") is None


def test_a_long_list_is_cut_and_says_how_much_is_missing() -> None:
    kept, _ = reported.read_detail("worker", {"residue": [f"file /etc/{number}" for number in range(10_000)]})
    assert size(kept) < 5000 and kept["residue"][-1].startswith("and ")
    assert len(kept["residue"]) - 1 + int(kept["residue"][-1].split()[1]) == 10_000


@pytest.mark.parametrize("code", ["", "Bad", "a-b", "a" * 65, "1a", "x\ny", None, 7, ["a"], *sorted(OUR_CODES)])
def test_a_code_of_another_form_or_of_our_own_is_not_taken_from_a_host(code: Any) -> None:
    error = heard(failure(code=code, message="m")).error
    assert error is not None and (error.code, error.klass) == ("task_failed", "intervention")


def test_an_error_of_a_host_is_one_bounded_printable_line() -> None:
    error = heard(
        failure(code="munge_failed", message="a\nb\x1b[2J\ud800" + "\U0001f4a3" * 5000, **{"class": "drift"})
    ).error
    assert error is not None and (error.code, error.klass) == ("munge_failed", "drift")
    assert error.message.isprintable() and error.message.startswith("a b?[2J?")
    assert len(error.message.encode()) <= reported.MESSAGE_BYTES


def test_a_snapshot_has_finite_numbers_and_bounded_text() -> None:
    bad = {"state": "IDLE", "reason": "x" * 50_000 + "\ud800", "cpus": 1}
    given = {**SEEN, "controller": {"clock_skew_seconds": float("nan"), "ping": "UP"}, "nodes": {"w": bad}}
    story = translate([report("controller-1", phase="serving", snapshot=given)], MEMBERS)
    assert story.snapshot is not None and story.snapshot.nodes is not None
    assert story.snapshot.controller.clock_skew_seconds is None
    assert len(story.snapshot.nodes["w"].reason or "") <= reported.OUTPUT_BYTES


# -- the whole record ----------------------------------------------------------------------------------------


def sendable(body: Any) -> None:
    """As our client sends it: JSON in UTF-8, without NaN."""
    httpx.Request("PATCH", "http://platform", json=body)
    json.dumps(body, allow_nan=False)


@st.composite
def reports(draw: st.DrawFn) -> dict[str, Any]:
    component = draw(st.sampled_from(sorted(reported.DETAIL)))
    long = st.sampled_from(["\U0001f4a3" * 4000, "y" * 20_000, ["z" * 900] * 900, {"from": "q" * 9000}])
    keys = st.sampled_from([*sorted(reported.DETAIL[component]), *STEERING])
    said = draw(st.dictionaries(keys, hostile.anything | long | st.just(float("nan")), max_size=12))
    host = draw(st.sampled_from(sorted(MEMBERS)))
    return report(host, phase=draw(hostile.anything), detail=said, snapshot=draw(st.none() | hostile.anything))


@thorough
@given(st.lists(reports(), max_size=12))
def test_whatever_hosts_report_each_record_can_be_sent_and_fits(events: list[dict[str, Any]]) -> None:
    story = Story()
    for event in events:
        story = tell(story, hear(event, MEMBERS))
    for member in MEMBERS.values():
        outcome = story.outcomes.get(member.id)
        if outcome is None:
            continue
        assert not set(outcome.detail) & set(STEERING)
        made = {**detail.blank(member.component), **outcome.detail, "phase": outcome.phase}
        sendable(made)
        assert size(made) <= RECORD_BYTES // 2, "there is room for what the runner writes"


def full_record(component: str) -> dict[str, Any]:
    own = {"leave": {"operation_id": "x", "verb": "drain"}, "claimed_by": "me", "fence": 7, "repair": {"why": "y"}}
    return {**detail.blank(component), **own}


def test_a_record_within_the_limit_is_written_as_it_is() -> None:
    made = {**full_record("worker"), "residue": ["a"]}
    assert fitted("worker", made) == made


def test_a_record_over_the_limit_loses_only_reported_keys_in_order() -> None:
    own = full_record("worker")
    room = dict.fromkeys(("slurmd_state", "config_version"), "v" * 5000)
    made = fitted("worker", {**own, **room, "residue": ["r" * 5000], "drain_reason": "d" * 5000, "jobs": [1] * 9000})
    assert size(made) <= RECORD_BYTES
    assert made["cut"] == ["residue", "jobs"], "in the order of CUT_FIRST, and no more than needed"
    assert (made["residue"], made["jobs"], made["drain_reason"]) == (None, None, "d" * 5000)
    assert {key: made[key] for key in ("leave", "claimed_by", "fence", "repair")} == {
        key: own[key] for key in ("leave", "claimed_by", "fence", "repair")
    }
    assert "cut" not in fitted("worker", {**made, "slurmd_state": "active"}), "it fits again"


def test_a_record_that_is_too_large_by_the_runners_own_keys_is_not_emptied_of_them() -> None:
    made = fitted("worker", {**full_record("worker"), "leave": {"did": "x" * 20_000}, "worker_hostname": "gs-4"})
    assert made["leave"] == {"did": "x" * 20_000} and made["worker_hostname"] == "gs-4"


def test_what_may_be_cut_is_reported_and_what_the_runner_goes_by_is_not_cut() -> None:
    assert not set(CUT_FIRST) & GONE_BY
    assert set(CUT_FIRST) <= {"jobs", *reported.DETAIL["controller"], *reported.DETAIL["worker"]}
