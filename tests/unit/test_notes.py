"""Notes in a member's record: read in every form there was, left alone if they cannot be read, and never lost."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.model.limits import size
from runner.model.member_notes import ChangedKey, Leave, MemberNotes, PinnedKeys, Stopped
from runner.model.plan import AdapterError, Refuse, SetMember, Wait
from runner.model.platform import Member
from runner.model.records import TEXT_CHARS, Attempts, NotedError, Record, RecordError, pause
from runner.model.times import stamp
from runner.model.world import World
from runner.slurm import detail, notes
from runner.slurm.decide import decide
from runner.slurm.notes import (
    ConfigTrial,
    ControllerNotes,
    RefusedConfig,
    Repair,
    RotationLeftOut,
    SlurmNotes,
    WorkerLeave,
    WorkerNotes,
)
from tests.unit.lifecycle import ask, cluster, serving, the
from tests.unit.worlds import NOW, of_kind, settle

OPERATION = UUID(int=77)
LEAVE_1 = {"operation_id": str(OPERATION), "verb": "drain", "since": "2026-01-02T03:04:05Z", "verdict": None}

times = st.datetimes(datetime(2000, 1, 2), datetime(2199, 12, 30), timezones=st.just(UTC)).map(
    lambda time: time.replace(microsecond=0)
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
counts = st.integers(0, 2**40)
ATTEMPTS: dict[str, st.SearchStrategy[Any]] = {
    "count": counts,
    "next_at": st.none() | times,
    "last_at": st.none() | times,
    "last_error": st.none() | texts,
}
attempts = st.builds(Attempts, **ATTEMPTS)
errors = st.builds(
    NotedError,
    code=texts,
    message=texts,
    klass=st.sampled_from([None, "retryable", "drift", "repairable", "intervention"]),
    host=st.none() | texts,
    task=st.none() | texts,
    at=st.none() | times,
    instance=st.none() | st.uuids(),
)
results = st.sampled_from([None, "done", "failed", "cancelled"])
EXAMPLES: dict[type[Record], st.SearchStrategy[Any]] = {
    Attempts: attempts,
    NotedError: errors,
    Leave: st.builds(Leave, operation_id=st.uuids(), result=results),
    WorkerLeave: st.builds(
        WorkerLeave,
        operation_id=st.uuids(),
        verb=st.sampled_from(["drain", "resume", "remove", "decommission"]),
        started_at=times,
        result=results,
        error=st.none() | errors,
        announced_eviction=st.none() | texts,
        unreachable_since=st.none() | times,
        attempts=attempts,
        untouched=st.booleans(),
        tried_for=st.none() | texts,
    ),
    Stopped: st.builds(Stopped, was=texts, phase=st.none() | texts),
    PinnedKeys: st.builds(PinnedKeys, keys=st.lists(texts, min_size=1, max_size=5), at=texts, address=texts),
    ChangedKey: st.builds(ChangedKey, expected=texts, at=texts),
    Repair: st.builds(Repair, **ATTEMPTS, outcome=st.none() | texts),
    ConfigTrial: st.builds(ConfigTrial, **ATTEMPTS, digest=texts, unsure=st.none() | st.booleans(), begun_at=times),
    RefusedConfig: st.builds(RefusedConfig, digest=texts, code=texts, message=texts, at=st.none() | times),
    RotationLeftOut: st.builds(RotationLeftOut, operation_id=st.uuids(), code=texts),
}


@pytest.mark.parametrize("record", EXAMPLES)
def test_a_record_is_read_as_it_was_written(record: type[Record]) -> None:
    @settings(derandomize=True, max_examples=40, deadline=None)
    @given(EXAMPLES[record])
    def round_trip(one: Record) -> None:
        assert record.read("note", json.loads(json.dumps(one.stored()))) == one
        if record is not PinnedKeys:  # strict, since it is what a host is trusted by
            later = {**one.stored(), "later": {"deep": [1]}}
            assert record.read("note", later).stored() == later, "a field of a later version is kept"

    round_trip()


def test_a_leave_note_of_version_1_0_is_read() -> None:
    error = {"code": "x", "message": "y", "class": "drift", "host": None, "task": None, "at": "2026-01-02T03:04:05Z"}
    former = LEAVE_1 | {"verdict": "failed", "did": "cancel of job 7", "attempts": 2, "error": error}
    read = WorkerLeave.read("leave", former)
    assert (read.result, read.announced_eviction, read.attempts.count) == ("failed", "cancel of job 7", 2)
    assert read.started_at == NOW and read.error and read.error.stored() == error
    assert Leave.read("leave", former).result == "failed"
    assert read.stored()["format"] == 2 and not {"verdict", "did", "since"} & set(read.stored())


def test_the_outcome_of_a_repair_is_read_under_its_former_name() -> None:
    assert Repair.read("repair", {"why": "munge_not_active", "attempts": 1, "outcome": "mended"}).outcome == "repaired"


def test_notes_of_version_1_0_are_read_under_their_former_names() -> None:
    refused = {"digest": "sha256:1", "code": "config_refused", "message": "no", "at": "2026-01-02T03:04:05Z"}
    former = {"wish": "sha256:0", "wish_refused": refused, "people_version": "sha256:2", "change": None}
    read = ControllerNotes.read(former)
    assert (read.applied_config, read.users_version, read.problems) == ("sha256:0", "sha256:2", ())
    assert read.config_refused and read.config_refused.stored() == refused


def test_a_write_leaves_no_note_under_its_former_name() -> None:
    former = {"wish": "sha256:0", "wish_refused": None, "other": 1}
    member = serving(1, component_key="controller").model_copy(update={"adapter_detail": former})
    assert detail.filled(member)["applied_config"] == "sha256:0"
    written = detail.filled(member) | ControllerNotes(applied_config="sha256:1").changes
    assert (written["applied_config"], written["config_refused"], written["other"]) == ("sha256:1", None, 1)
    assert not {"wish", "wish_refused", "people_version"} & set(written)


def test_a_wrong_type_is_an_error_where_it_is_written() -> None:
    with pytest.raises(ValueError, match="cpus"):
        WorkerNotes(cpus="two")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="verb"):
        WorkerLeave(operation_id=OPERATION, verb="explode", started_at=NOW)  # type: ignore[arg-type]


def test_one_formula_gives_every_pause() -> None:
    tried = Attempts()
    waited = []
    for _ in range(8):
        tried = tried.failed(NOW, "x", 30)
        assert tried.next_at is not None
        waited.append((tried.next_at - NOW) // timedelta(seconds=30))
    assert waited == [1, 2, 4, 8, 16, 32, 32, 32] and pause(30, 2) == timedelta(seconds=60)
    assert tried.not_due(NOW) == f"the next attempt is due at {stamp(tried.next_at)}"  # type: ignore[arg-type]
    assert tried.not_due(tried.next_at) is None and Attempts().not_due(NOW) is None  # type: ignore[arg-type]
    assert tried.is_spent(8) and not tried.is_spent(9)


def test_a_repair_and_a_trial_are_attempts_under_their_documented_names() -> None:
    at, due = "2026-01-02T03:04:05Z", "2026-01-02T03:04:35Z"
    repair = Repair().failed(NOW, "slurmdbd_not_active", 30).but(outcome="trying")
    documented = {"why": "slurmdbd_not_active", "attempts": 1, "last_at": at, "next_at": due, "outcome": "trying"}
    assert repair.stored() == documented and Repair.read("repair", documented) == repair
    assert repair.failed(NOW, "config_changed", 30).count == 2
    trial = ConfigTrial.read("change", {"digest": "sha256:1", "attempt": 1, "next_attempt_at": at})
    assert (trial.count, trial.not_due(NOW)) == (1, None)
    again = trial.failed(NOW, "host_unreachable", 15).stored()
    assert (again["digest"], again["attempt"], again["next_attempt_at"]) == ("sha256:1", 2, due)
    assert MemberNotes.tried(Attempts(count=2, next_at=NOW)).changes == {"attempt": 2, "next_attempt_at": at}


def removal(**recorded: Any) -> tuple[World, Member, Member]:
    """A removal of one worker whose record has these notes, beside one whose record is in order."""
    bad, good = serving(2, adapter_detail=recorded), serving(3)
    return cluster(bad, good, operations=(ask("remove", bad),)), bad, good


NEWER = {"format": 99, "operation_id": str(OPERATION), "verb": "drain", "later": [1, {"a": None}]}


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("leave", NEWER, "note_newer"),
        ("leave", {"format": "two"}, "note_unreadable"),
        ("leave", {**LEAVE_1, "since": "yesterday"}, "note_unreadable"),
        ("leave", "draining", "note_unreadable"),
        ("repair", {"attempts": "many"}, "note_unreadable"),
        ("stopped", ["ready"], "note_unreadable"),
        ("operation_id", "not an id", "note_unreadable"),
        ("worker_hostname", "-oProxyCommand=x", "note_unreadable"),
        ("next_attempt_at", "soon", "note_unreadable"),
        ("fence", "seven", "fence_unreadable"),
        ("host_keys_pinned", {"format": 2, "keys": ["ssh-ed25519 AAAA"], "signed": True}, "note_newer"),
        ("host_key_changed", {"format": 2, "expected": "SHA256:x", "seen": "SHA256:y"}, "note_newer"),
    ],
)
def test_a_note_that_cannot_be_read_is_reported_and_left_as_it_is(name: str, value: Any, code: str) -> None:
    now, bad, good = removal(**{name: value})
    before = json.dumps(value)
    now, steps, play = settle(now, decide)
    after = the(now, bad)
    assert (after.status, json.dumps(after.adapter_detail[name])) == ("ready", before)
    error = after.notes.last_adapter_error
    assert error and (error.code, error.klass) == (code, "intervention") and name in error.message
    assert not of_kind(steps, Refuse) and (play is None or play.playbook == "observe")
    assert [one for one in of_kind(steps, SetMember) if one.member.id == good.id] == []

    mended = "w2" if name == "worker_hostname" else None
    healed = now.with_member(after.model_copy(update={"adapter_detail": after.adapter_detail | {name: mended}}))
    now, _, play = settle(healed, decide)
    assert the(now, bad).notes.error_code is None
    assert the(now, bad).status == "draining" and play and play.playbook == "drain_worker", "the removal goes on"


def test_the_rest_of_the_instance_goes_on_beside_a_note_that_cannot_be_read() -> None:
    bad, good = serving(2, adapter_detail={"leave": "?"}), serving(3)
    now, _, play = settle(cluster(bad, good, operations=(ask("drain", good),)), decide)
    assert play and play.playbook == "drain_worker" and the(now, good).status == "draining"
    assert the(now, bad).status == "ready"


def test_an_add_waits_for_a_worker_with_an_unreadable_note_on_its_allocation() -> None:
    """The worker may have been made by that very operation."""
    bad = serving(2, adapter_detail={"operation_id": 5}, status="reconciling")
    now, steps, play = settle(cluster(bad, operations=(ask("add", allocations=(2,)),)), decide)
    assert play is None and len(now.members) == 2
    assert "note_unreadable" in " ".join(one.why for one in of_kind(steps, Wait))


def test_a_fact_of_a_wrong_type_is_unknown_and_not_an_error() -> None:
    member = serving(2, adapter_detail={"cpus": "two", "slurm_version": 7, "jobs": {}})
    read = notes.worker(member)
    assert (read.cpus, read.slurm_version, read.jobs, read.problems) == (None, None, None, ())


def test_a_copy_of_a_member_reads_its_own_detail() -> None:
    member = serving(2)
    assert notes.worker(member) is notes.worker(member)
    changed = member.written("ready", WorkerNotes(phase="draining").changes)
    assert (notes.worker(changed).phase, notes.worker(member).phase) == ("draining", "serving")
    assert notes.worker(member.model_copy(update={"status": "failed"})) is notes.worker(member)


def test_the_largest_leave_note_fits_into_a_record() -> None:
    long = "x" * 2000
    error = NotedError(code="x" * 64, message=long, klass="drift", host="h" * 253, task="t" * 253, at=NOW)
    note = WorkerLeave(
        operation_id=OPERATION, verb="remove", started_at=NOW, error=error, announced_eviction=long, tried_for="x" * 36
    )
    assert size(note.stored()) < 6000


def test_an_error_with_a_message_that_is_too_long_is_cut() -> None:
    noted = AdapterError("x", "y" * 10_000).as_note(NOW)
    assert len(noted.message) == TEXT_CHARS and MemberNotes(last_adapter_error=noted).changes


def test_what_is_not_an_object_is_not_a_record() -> None:
    wrongs: tuple[Any, ...] = ("x", [], 7, True)
    for wrong in wrongs:
        with pytest.raises(RecordError):
            WorkerLeave.read("leave", wrong)
    assert SlurmNotes.read({"leave": None}).problems == ()
