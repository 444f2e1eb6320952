"""What a controller reports of its cluster: impossible values are dropped or make the snapshot unreadable."""

from typing import Any

import pytest

from runner.model import host_data
from runner.model.plan import stamp
from runner.slurm.decide.workers import evict
from runner.slurm.notes import WorkerNotes
from runner.slurm.snapshot import Node, Snapshot
from runner.translate import translate
from tests.unit.host_reports import MEMBERS, SEEN, report, snapshot_of


def test_a_snapshot_has_finite_numbers_and_bounded_text() -> None:
    bad = {"state": "IDLE", "reason": "x" * 50_000 + "\ud800", "cpus": 1}
    given = {**SEEN, "controller": {"clock_skew_seconds": float("nan"), "ping": "UP"}, "nodes": {"w": bad}}
    run = translate([report("controller-1", phase="serving", snapshot=given)], MEMBERS)
    assert run.snapshot is not None and run.snapshot.nodes is not None
    assert run.snapshot.controller.clock_skew_seconds is None
    assert len(run.snapshot.nodes["w"].reason or "") <= host_data.OUTPUT_BYTES


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


@pytest.mark.parametrize(
    "given",
    [
        {"p_00000000000a": ["0123456789ab", "0123456789ac=ann:2000:2000"]},
        {},
        {"root": ["0123456789ab"]},
        {"p_00000000000a": ["0123456789ab=Ann:0:0"]},
        {"p_00000000000a": ["x 0123456789ab"]},
        {"p_00000000000a": "0123456789ab"},
        {"p_00000000000a": ["0123456789ab"] * 10_001},
        ["p_00000000000a"],
    ],
)
def test_users_that_slurm_remembers_are_of_the_form_or_not_known(given: Any) -> None:
    seen = snapshot_of(remembered=given)
    is_good = given in ({}, {"p_00000000000a": ["0123456789ab", "0123456789ac=ann:2000:2000"]})
    assert seen is not None and seen.remembered == (given if is_good else None)


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
def test_a_gpu_count_that_is_not_a_plain_number_counts_as_one(gres: str) -> None:
    assert Node(state="IDLE", gres=gres).gpus == 1
