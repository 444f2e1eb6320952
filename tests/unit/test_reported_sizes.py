"""Whatever hosts report, each record fits what the platform takes and keeps what the runner goes by."""

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.model.instance_notes import Reason
from runner.model.limits import RECORD_BYTES, size
from runner.slurm import detail, reports
from runner.slurm.fitting import CUT_FIRST, DECIDED_BY, fitted
from runner.slurm.lifecycle_notes import notable_partitions
from runner.translate import RunResult, add_event, parse_event
from tests.unit import hostile
from tests.unit.host_reports import MEMBERS, STEERING, WORKER, report, snapshot_of
from tests.unit.worlds import controller, instance

thorough = settings(derandomize=True, max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("letter", ["x", '"', "\u00e9", "\U0001f600"])
def test_records_fit_however_long_the_texts_of_a_snapshot_are(letter: str) -> None:
    long = letter * 9000
    texts = ("hostname", "munge", "slurmctld", "slurmdbd", "mariadb", "cluster_name", "config_version")
    versions = ("slurm_version", "slurmdbd_version", "package_version")
    node = {"state": long, "flags": [f"{number}{long}" for number in range(50)], "reason": long}
    seen = snapshot_of(
        controller=dict.fromkeys((*texts, *versions), long) | {"ping": "UP"},
        nodes={f"w{number}": {**node, "slurm_version": f"{number}{long}"} for number in range(30)},
        partitions={f"{'p' * 58}{number}": "UP" for number in range(500)} | {long: "UP", "main": long},
    )
    assert seen is not None and seen.partitions is not None
    assert size(fitted("controller", detail.filled(controller()) | detail.of_controller(seen))) <= RECORD_BYTES
    assert size(fitted("worker", detail.of_worker(seen, "w1"))) <= RECORD_BYTES // 4
    reasons = [Reason(code="worker_down", message="x" * 400, health="degraded")] * 30
    made = detail.of_instance(instance(), seen, [], reasons, seen.observed_at)
    note = {"operation_id": str(WORKER), "verb": "stop", "partitions": notable_partitions(seen.partitions)}
    assert size({**made, "lifecycle": note}) <= RECORD_BYTES


def test_states_of_the_controllers_daemons_are_cut_from_a_too_large_record() -> None:
    stored = {"munge_state": "m" * 9000, "mariadb_state": "d" * 9000, "leave": {"verdict": None}}
    made = fitted("controller", stored)
    assert size(made) <= RECORD_BYTES and made["leave"] == stored["leave"]


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
    reported = draw(st.dictionaries(keys, hostile.anything | long | st.just(float("nan")), max_size=12))
    host = draw(st.sampled_from(sorted(MEMBERS)))
    return report(host, phase=draw(hostile.anything), detail=reported, snapshot=draw(st.none() | hostile.anything))


@thorough
@given(st.lists(hostile_reports(), max_size=12))
def test_whatever_hosts_report_each_record_can_be_sent_and_fits(events: list[dict[str, Any]]) -> None:
    run = RunResult()
    for event in events:
        run = add_event(run, parse_event(event, MEMBERS))
    for member in MEMBERS.values():
        outcome = run.outcomes.get(member.id)
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
