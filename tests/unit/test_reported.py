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

from runner.intent import host_keys
from runner.model import host_data
from runner.model.limits import RECORD_BYTES, size
from runner.model.plan import stamp
from runner.slurm import detail, reports
from runner.slurm.decide.workers import evict
from runner.slurm.fitting import CUT_FIRST, DECIDED_BY, fitted
from runner.slurm.lifecycle_notes import notable_partitions
from runner.slurm.member_reports import MemberReports
from runner.slurm.notes import WorkerNotes
from runner.slurm.snapshot import Node, Snapshot
from runner.translate import OUR_CODES, MemberEvent, RunResult, add_event, parse_event, translate
from tests.unit import hostile
from tests.unit.worlds import controller, instance

ROOT = Path(__file__).resolve().parents[2]
thorough = settings(derandomize=True, max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
WORKER, CONTROLLER, OTHER = UUID(int=5), UUID(int=6), UUID(int=8)
MEMBERS = {
    "worker-1": MemberReports(WORKER, "worker", None, {"taken": OTHER}),
    "worker-2": MemberReports(OTHER, "worker", "taken"),
    "controller-1": MemberReports(CONTROLLER, "controller"),
}
SEEN = {"observed_at": "2026-01-02T03:04:05Z", "controller": {"ping": "UP"}, "nodes": {}}
# Everything in a record by which the runner goes, as this and other parts of it write.
STEERING = (
    *("leave", "claimed_by", "lease_expires_at", "fence", "operation_id", "repair", "change", "stopped", "attempt"),
    *("next_attempt_at", "wish_refused", "started_by", "superseded_by", "last_adapter_error", "role", "phase"),
    *(host_keys.PINNED, host_keys.CHANGED, "jobs", "node_state", "last_runtime_observed_at", "cut"),
)


def report(host: str, action: str = "member_report", **said: Any) -> dict[str, Any]:
    data = {"host": host, "task": "Report", "task_action": action, "res": {"member_report": said}}
    return {"event": "runner_on_ok", "event_data": data}


def failure(**error: Any) -> dict[str, Any]:
    data = {"host": "worker-1", "task": "t", "res": {"adapter_error": error, "msg": "m"}}
    return {"event": "runner_on_failed", "event_data": data}


def heard(event: dict[str, Any]) -> MemberEvent:
    found = parse_event(event, MEMBERS)
    assert isinstance(found, MemberEvent)
    return found


def test_the_clusters_snapshot_comes_from_the_controllers_member_alone() -> None:
    scenario = translate([report("worker-1", phase="serving", snapshot=SEEN)], MEMBERS)
    assert scenario.snapshot is None
    assert heard(report("worker-1", phase="serving", snapshot=SEEN)).dropped == ("snapshot",)
    scenario = translate([report("controller-1", phase="serving", snapshot=SEEN)], MEMBERS)
    assert scenario.snapshot is not None and scenario.snapshot.controller.ping == "UP"


def test_a_report_that_a_module_returned_is_not_one() -> None:
    for host, action in (("controller-1", "converge_host"), ("worker-1", "slurm_nodes"), ("worker-1", "")):
        assert parse_event(report(host, action, phase="serving", snapshot=SEEN), MEMBERS) is None
        failed = {**report(host, action, phase="owned", snapshot=SEEN), "event": "runner_on_failed"}
        assert (heard(failed).phase, heard(failed).snapshot) == (None, None)


def test_a_controller_whose_slurm_is_silent_still_shows_what_can_be_seen_without_it() -> None:
    failed = {**report("controller-1", "slurm_nodes", phase="controller", snapshot=SEEN), "event": "runner_on_failed"}
    assert translate([failed], MEMBERS).snapshot is not None


@pytest.mark.parametrize("component", ["controller", "worker"])
def test_no_key_by_which_the_runner_goes_can_come_from_a_host(component: str) -> None:
    assert not set(STEERING) & set(reports.DETAIL[component])
    kept, dropped = reports.read_detail(component, dict.fromkeys(STEERING, "owned"))
    assert (kept, set(dropped)) == ({}, set(STEERING))


def test_a_worker_says_nothing_that_only_a_controller_may() -> None:
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
        if isinstance(said := tasks.get("member_report"), dict):
            yield said.get("detail") or {}
        tasks = list(tasks.values())
    for one in tasks if isinstance(tasks, list) else []:
        yield from details_in(one)


def test_every_key_that_a_play_reports_is_on_the_list() -> None:
    known = {key for keys in reports.DETAIL.values() for key in keys}
    files = [*(ROOT / "playbooks").rglob("*.yml"), *(ROOT / "roles").glob("*/tasks/*.yml")]
    said = {key for path in files for detail in details_in(yaml.safe_load(path.read_text())) for key in detail}
    assert len(said) > 20 and said <= known


def test_null_is_a_value_for_every_key() -> None:
    for component, keys in reports.DETAIL.items():
        assert reports.read_detail(component, dict.fromkeys(keys)) == (dict.fromkeys(keys), [])


def test_what_honest_hosts_report_is_kept_as_it_is() -> None:
    said: dict[str, Any]
    moved = {"from": "22.05.8-4", "to": "22.05.8-5", "backup": "/var/lib/gpuaas-slurm/backups/x"}
    said = {"upgraded": moved, "services_left": ["mariadb"], "slurmctld_state": "active"}
    digest = "sha256:" + "a" * 64
    kept = {**said, "applied_config": digest, "users_version": digest}
    assert reports.read_detail("controller", kept) == (kept, [])
    assert reports.read_detail("controller", {**said, "wish": digest, "people_version": digest}) == (kept, [])
    said = {"worker_hostname": "gs-4", "residue": ["file /etc/x", "user slurm"], "switched_at": 1760000000.5, "cpus": 4}
    assert reports.read_detail("worker", said) == (said, [])


def test_a_worker_keeps_its_nodes_name_and_none_takes_anothers() -> None:
    def name(host: str, said: str) -> Any:
        return heard(report(host, phase="joining", detail={"worker_hostname": said})).detail.get("worker_hostname")

    assert name("worker-1", "fresh") == "fresh"
    assert name("worker-1", "taken") is None
    assert name("worker-2", "taken") == "taken"
    assert name("worker-2", "fresh") is None


def test_a_long_list_is_cut_and_says_how_much_is_missing() -> None:
    kept, _ = reports.read_detail("worker", {"residue": [f"file /etc/{number}" for number in range(10_000)]})
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
    assert len(error.message.encode()) <= host_data.MESSAGE_BYTES


def test_a_snapshot_has_finite_numbers_and_bounded_text() -> None:
    bad = {"state": "IDLE", "reason": "x" * 50_000 + "\ud800", "cpus": 1}
    given = {**SEEN, "controller": {"clock_skew_seconds": float("nan"), "ping": "UP"}, "nodes": {"w": bad}}
    scenario = translate([report("controller-1", phase="serving", snapshot=given)], MEMBERS)
    assert scenario.snapshot is not None and scenario.snapshot.nodes is not None
    assert scenario.snapshot.controller.clock_skew_seconds is None
    assert len(scenario.snapshot.nodes["w"].reason or "") <= host_data.OUTPUT_BYTES


def snapshot_of(created: str = "2026-01-02T03:04:06+00:00", **changes: Any) -> Snapshot | None:
    """What is taken of a controller's snapshot, with the time at which Ansible had it."""
    event = report("controller-1", phase="serving", snapshot={**SEEN, **changes}) | {"created": created}
    found: Snapshot | None = translate([event], MEMBERS).snapshot
    return found


@pytest.mark.parametrize(
    "when",
    [
        "2026-01-02T03:04:05",
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59-12:00",
        "2000-01-01T00:00:00+14:00",
        "2199-12-31T23:59:59-12:00",
        4e11,
        "x",
    ],
)
def test_a_snapshot_of_an_impossible_time_counts_as_unreadable(when: Any) -> None:
    assert snapshot_of(observed_at=when) is None


@pytest.mark.parametrize("when", ["2026-01-02T03:04:05", "0001-01-01T00:00:00Z", 4e11, "x", []])
def test_an_impossible_time_of_a_part_is_dropped_and_the_rest_is_kept(when: Any) -> None:
    seen = snapshot_of(
        controller={"ping": "UP", "started_at": when},
        nodes={"w": {"state": "IDLE", "slurmd_started_at": when}},
        jobs=[{"id": 7, "address": "7", "state": "RUNNING", "end_time": when}],
    )
    assert seen is not None and seen.nodes is not None and seen.jobs is not None
    assert (seen.controller.started_at, seen.nodes["w"].slurmd_started_at, seen.jobs[0].end_time) == (None, None, None)


def running(address: str) -> dict[str, Any]:
    job = {"id": 7, "address": address, "state": "RUNNING", "nodes": ["w2"]}
    return {"nodes": {"w2": {"state": "MIXED"}}, "jobs": [job]}


@pytest.mark.parametrize("address", ["", "0", "7;8", "7_[x]", "7 8", "7\n", "-7", "7_[?", "+1"])
def test_a_snapshot_with_a_wrong_address_of_a_job_counts_as_unreadable(address: str) -> None:
    """A record takes addresses only, and a tick must not end at one that it cannot write."""
    assert snapshot_of(**running(address)) is None


@pytest.mark.parametrize("address", ["7", "100_7", "100_[5-9,11]", "100_[?]", "200+1", f"100_[{'1,' * 5000}3]"])
def test_every_address_that_a_controller_reports_can_be_written(address: str) -> None:
    seen = snapshot_of(**running(address))
    assert seen is not None and seen.jobs is not None
    (written,) = WorkerNotes(jobs=evict.addresses(seen.jobs)).changes["jobs"]
    assert written[:40] == address[:40] or written.endswith("...]")


def test_times_of_a_snapshot_are_kept_in_utc() -> None:
    seen = snapshot_of(observed_at="2026-01-02T05:04:05+02:00")
    assert seen is not None and stamp(seen.observed_at) == "2026-01-02T03:04:05Z"


def test_a_snapshot_that_breaks_its_reading_counts_as_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (TypeError, ValueError, OverflowError):

        def broken(*_: object, error: type[Exception] = error) -> Snapshot:
            raise error("odd")

        monkeypatch.setattr(Snapshot, "timed", broken)
        assert snapshot_of() is None


@pytest.mark.parametrize("gres", ["gpu:\u00b2", "gpu:" + "9" * 5000, "gpu:a100:" + "9" * 7])
def test_a_count_of_gpus_that_is_no_plain_number_counts_as_one(gres: str) -> None:
    assert Node(state="IDLE", gres=gres).gpus == 1


@pytest.mark.parametrize("letter", ["x", '"', "\u00e9", "\U0001f600"])
def test_records_fit_however_long_the_words_of_a_snapshot_are(letter: str) -> None:
    long = letter * 9000
    words = ("hostname", "munge", "slurmctld", "slurmdbd", "mariadb", "cluster_name", "config_version")
    versions = ("slurm_version", "slurmdbd_version", "package_version")
    node = {"state": long, "flags": [f"{number}{long}" for number in range(50)], "reason": long}
    seen = snapshot_of(
        controller=dict.fromkeys((*words, *versions), long) | {"ping": "UP"},
        nodes={f"w{number}": {**node, "slurm_version": f"{number}{long}"} for number in range(30)},
        partitions={f"{'p' * 58}{number}": "UP" for number in range(500)} | {long: "UP", "main": long},
    )
    assert seen is not None and seen.partitions is not None
    assert size(fitted("controller", detail.filled(controller()) | detail.of_controller(seen))) <= RECORD_BYTES
    assert size(fitted("worker", detail.of_worker(seen, "w1"))) <= RECORD_BYTES // 4
    reasons = [{"code": "worker_down", "message": "x" * 400, "health": "degraded"}] * 30
    said = detail.of_instance(instance(), seen, [], reasons, seen.observed_at)
    note = {"operation_id": str(WORKER), "verb": "stop", "partitions": notable_partitions(seen.partitions)}
    assert size({**said, "lifecycle": note}) <= RECORD_BYTES


def test_states_of_the_controllers_daemons_are_cut_from_a_too_large_record() -> None:
    told = {"munge_state": "m" * 9000, "mariadb_state": "d" * 9000, "leave": {"verdict": None}}
    made = fitted("controller", told)
    assert size(made) <= RECORD_BYTES and made["leave"] == told["leave"]


# -- the whole record ----------------------------------------------------------------------------------------


def sendable(body: Any) -> None:
    """As our client sends it: JSON in UTF-8, without NaN."""
    httpx.Request("PATCH", "http://platform", json=body)
    json.dumps(body, allow_nan=False)


@st.composite
def hostile_reports(draw: st.DrawFn) -> dict[str, Any]:
    component = draw(st.sampled_from(sorted(reports.DETAIL)))
    long = st.sampled_from(["\U0001f4a3" * 4000, "y" * 20_000, ["z" * 900] * 900, {"from": "q" * 9000}])
    keys = st.sampled_from([*sorted(reports.DETAIL[component]), *STEERING])
    said = draw(st.dictionaries(keys, hostile.anything | long | st.just(float("nan")), max_size=12))
    host = draw(st.sampled_from(sorted(MEMBERS)))
    return report(host, phase=draw(hostile.anything), detail=said, snapshot=draw(st.none() | hostile.anything))


@thorough
@given(st.lists(hostile_reports(), max_size=12))
def test_whatever_hosts_report_each_record_can_be_sent_and_fits(events: list[dict[str, Any]]) -> None:
    scenario = RunResult()
    for event in events:
        scenario = add_event(scenario, parse_event(event, MEMBERS))
    for member in MEMBERS.values():
        outcome = scenario.outcomes.get(member.id)
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
    assert not set(CUT_FIRST) & DECIDED_BY
    assert set(CUT_FIRST) <= {"jobs", *reports.DETAIL["controller"], *reports.DETAIL["worker"]}
