"""Notes of instance operations: every version is read or left alone, and one that cannot be read is reported.

Over 300 lines, because the table of fields has a row for each field of each verb.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from runner.loop.dry_run import dry_run
from runner.model.instance_notes import OperationNote, Reason
from runner.model.limits import RECORD_BYTES, size
from runner.model.plan import Finish, ForgetSecrets, Play, Refuse, SetInstance, SetMember, Step, stamp
from runner.model.platform import InstanceStatus, Operation
from runner.model.records import Attempts, NotedError
from runner.model.world import World
from runner.slurm import lifecycle_notes
from runner.slurm.app import SLURM
from runner.slurm.decide import VERBS, decide
from runner.slurm.lifecycle_notes import (
    NOTES,
    DecommissionNote,
    RestartNote,
    RotationNote,
    StartNote,
    StopNote,
    UpgradeNote,
    VerbNote,
)
from runner.slurm.notes import Conversion, InstanceNotes, Versions
from tests.unit import hostile
from tests.unit.lifecycle import ask_whole, both_ready, cluster, note_of, playbooks, reported, tick, two_workers
from tests.unit.worlds import NOW, claimed_by_us, of_kind, settle

OPERATION = UUID(int=88)
AT = "2026-01-02T03:04:05Z"
FORMER: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "fixtures" / "notes" / "a605804_operations.json").read_text()
)


def with_note(note: Any, now: World | None = None, **instance: Any) -> World:
    found = now or cluster(*both_ready())
    detail = {**(found.instance.status_detail or {}), "lifecycle": note}
    return found.later(instance=found.instance.model_copy(update={"status_detail": detail, **instance}))


def read(note: Any) -> OperationNote:
    found = lifecycle_notes.of_instance(with_note(note).instance)
    assert found is not None
    return found


def running(verb: str, **changes: Any) -> Operation:
    return claimed_by_us(ask_whole(verb, id=OPERATION, **changes))


# -- notes of version 1.0 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMER)
def test_a_former_note_is_read_and_written_in_the_present_format(name: str) -> None:
    note = read(FORMER[name])
    assert isinstance(note, NOTES[note.verb])
    stored = note.stored()
    assert stored["format"] == 2 and read(stored) == note
    former = {"since", "verdict", "attempt", "tried_at", "next_attempt_at", "did", "without", "waits_for"}
    assert not former & set(stored)


def test_former_notes_keep_their_meaning() -> None:
    stop, waiting, rotation = (read(FORMER[name]) for name in ("stop stopping", "stop waiting", "rotate staging"))
    failed = Attempts(count=1, next_at="2026-01-02T03:05:05Z", last_at=AT, last_error="host_unreachable")  # type: ignore[arg-type]
    assert stop.attempts == failed and stop.started_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert isinstance(waiting, StopNote) and waiting.partitions == {"main": "UP", "night": "DOWN"}
    assert (waiting.jobs, waiting.announced_eviction) == (["7"], "cancel of job 7")
    assert (rotation.attempts.count, rotation.waiting) == (2, "worker-20000000: host_unreachable")
    upgrade = read(FORMER["upgrade"])
    assert isinstance(upgrade, UpgradeNote) and upgrade.package_version_before == "22.05.8-4"
    assert (upgrade.attempts.count, upgrade.attempts.last_error) == (1, "host_unreachable")
    switching = read(FORMER["rotate switching"])
    assert isinstance(switching, RotationNote) and switching.left_out == {"worker-30000000": "host_unreachable"}
    dropping, done = read(FORMER["rotate dropping"]), read(FORMER["rotate done"])
    assert isinstance(dropping, RotationNote) and dropping.error and dropping.error.code == "rotation_not_prepared"
    assert done.result == "done" and done.operation_result() == {
        "rotated": {"controller-c0000000": "1767323045.1"},
        "missed": {},
    }
    restart, cancelled = read(FORMER["restart"]), read(FORMER["restart cancelled"])
    assert isinstance(restart, RestartNote) and restart.excused == ["worker-30000000"] and restart.after
    assert (cancelled.phase, cancelled.result) == ("cancelled", "cancelled")
    decommission = read(FORMER["decommission"])
    assert isinstance(decommission, DecommissionNote) and decommission.terms_of == OPERATION
    assert decommission.keep_logs and stamp(decommission.controller_silent_since or NOW) == AT


UNDER_WAY = {
    "stop closing": "quiesce",
    "stop waiting": "quiesce",
    "stop stopping": "stop",
    "stop reopening": "quiesce",
    "restart looking": "observe",
    "restart": "restart",
    "upgrade": "upgrade",
    "rollback": "rollback",
    "rotate staging": "rotate",
    "rotate switching": "rotate",
    "rotate dropping": "rotate",
}


@pytest.mark.parametrize(("name", "playbook"), UNDER_WAY.items())
def test_an_operation_that_version_1_0_began_is_continued_where_it_was(name: str, playbook: str) -> None:
    now = with_note(FORMER[name], cluster(*both_ready(), whole=(running(FORMER[name]["verb"]),)))
    later = now.later(now=read(FORMER[name]).attempts.next_at or now.now)
    _, _, play = settle(later, decide)
    assert play is not None and play.playbook == playbook


def test_a_decommission_that_version_1_0_began_keeps_its_terms() -> None:
    operation = running("decommission", parameters={"deadline_seconds": 60, "on_deadline": "cancel"})
    now = with_note(FORMER["decommission"], cluster(*both_ready(), whole=(operation,)), status="deleting")
    after, _, _ = tick(now, two_workers())
    note = read(note_of(after))
    assert isinstance(note, DecommissionNote)
    assert (note.operation_id, note.keep_logs, stamp(note.terms_since)) == (OPERATION, True, AT)


# -- to storage and back -------------------------------------------------------------------------------------

TIMES = st.datetimes(datetime(2000, 1, 2), datetime(2199, 12, 30)).map(lambda at: at.replace(microsecond=0, tzinfo=UTC))
TEXTS = st.text(max_size=30)
HOSTS = st.text(max_size=20)
COUNTS = st.integers(0, 1000)
ERRORS = st.builds(lambda code, message: NotedError(code=code, message=message), TEXTS, TEXTS)
RESULTS = st.sampled_from(["done", "failed", "cancelled"])
STATES = st.sampled_from(["UP", "DOWN", "DRAIN", "INACTIVE"])
SAMPLES = st.dictionaries(HOSTS, TEXTS, max_size=3)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "operation_id": st.uuids(),
    "started_at": TIMES,
    "result": st.none() | RESULTS,
    "waiting": st.none() | TEXTS,
    "error": st.none() | ERRORS,
    "attempts": st.builds(lambda n, at, code: Attempts(count=n, next_at=at, last_error=code), COUNTS, TIMES, TEXTS),
    "partitions": st.none() | st.dictionaries(st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True), STATES),
    "jobs": st.lists(TEXTS, max_size=3),
    "jobs_left": COUNTS,
    "jobs_end_by": st.none() | TIMES,
    "announced_eviction": st.none() | TEXTS,
    "failure": st.none() | ERRORS,
    "not_reached": SAMPLES,
    "not_reached_count": COUNTS,
    "after": st.none() | TIMES,
    "left": st.none() | st.lists(HOSTS, max_size=3),
    "excused": st.lists(HOSTS, max_size=3),
    "excused_count": COUNTS,
    "missing": SAMPLES,
    "not_restarted": SAMPLES,
    "package_version_before": st.none() | TEXTS,
    "conversion": st.none() | st.builds(lambda n, line: Conversion(seconds=n, last_line=line), COUNTS, TEXTS),
    "summary": st.dictionaries(TEXTS, st.integers() | TEXTS, max_size=3),
    "left_out": SAMPLES,
    "left_out_count": COUNTS,
    "result_once_dropped": RESULTS,
    "terms_of": st.uuids(),
    "terms_since": TIMES,
    "keep_logs": st.booleans(),
    "controller_silent_since": st.none() | TIMES,
    "secrets_forgotten": st.booleans(),
}


@st.composite
def notes(draw: st.DrawFn) -> VerbNote:
    verb = draw(st.sampled_from(sorted(NOTES)))
    kind = NOTES[verb]
    phases = kind.model_fields["phase"].annotation.__args__  # type: ignore[union-attr]
    fields = {name: draw(FIELDS[name]) for name in kind.model_fields if name not in ("verb", "phase")}
    unknown = draw(st.dictionaries(st.sampled_from(["later_field", "x"]), st.integers() | TEXTS, max_size=2))
    return kind.model_validate(unknown | fields | {"verb": verb, "phase": draw(st.sampled_from(phases))})


@settings(max_examples=300, deadline=None)
@given(notes())
def test_every_note_comes_back_from_storage_as_it_was(note: VerbNote) -> None:
    assert read(json.loads(json.dumps(note.stored()))) == note


def test_a_field_of_another_version_is_kept_when_the_note_is_written_again() -> None:
    note = StartNote.begin(running("start"), NOW, from_a_later_version={"a": 1})
    assert read(note.but(waiting="for a worker").stored()).stored()["from_a_later_version"] == {"a": 1}


def test_a_long_message_makes_no_note_too_large() -> None:
    stop = StopNote.begin(running("stop"), NOW, waiting="é" * 50_000)
    assert size(stop.stored()) < RECORD_BYTES // 4


# -- notes that cannot be used -------------------------------------------------------------------------------

GOOD = StopNote.begin(running("stop"), NOW, phase="waiting", partitions={"main": "UP"}).stored()
BAD: dict[str, tuple[Any, str]] = {
    "not an object": ("stopped", "note_unreadable"),
    "a list": ([], "note_unreadable"),
    "empty": ({}, "note_unreadable"),
    "a newer format": (GOOD | {"format": 3, "shape": ["new"]}, "note_newer"),
    "no format number": (GOOD | {"format": "2"}, "note_unreadable"),
    "another phase": (GOOD | {"phase": "levitating"}, "note_unreadable"),
    "a bad partition": (GOOD | {"partitions": {"main; reboot": "UP"}}, "note_unreadable"),
    "a bad time": (GOOD | {"started_at": "9999-12-31T23:59:59Z"}, "note_unreadable"),
    "bad attempts": (GOOD | {"attempts": {"count": -1}}, "note_unreadable"),
    "bad attempts of version 1.0": (FORMER["rotate staging"] | {"attempt": "many"}, "note_unreadable"),
    "a verb of a later version": (GOOD | {"verb": "hibernate"}, "note_newer"),
    "too deep": (GOOD | {"later_field": hostile.deep(200)}, "note_unreadable"),
}
STATUSES = ("running", "stopped", "deleting", "deploying", "failed")


def assert_held_back(steps: list[Step]) -> None:
    """Nothing is begun, continued, undone or ended; the cluster may be looked at and its health reported."""
    assert not [one for one in steps if isinstance(one, Finish | Refuse | ForgetSecrets | SetMember)], steps
    assert {one.playbook for one in of_kind(steps, Play)} <= {"observe"}


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("name", BAD)
def test_a_bad_note_is_reported_left_alone_and_holds_everything_back(name: str, status: str) -> None:
    note, code = BAD[name]
    verb = "decommission" if status == "deleting" else "stop"
    asked = running(verb, parameters={}) if verb != "decommission" else ask_whole("decommission")
    before = with_note(note, cluster(*both_ready(), whole=(asked,)), status=status)
    now, steps, plays = tick(before, two_workers())
    assert_held_back([*steps, *plays])
    assert now.instance.status_detail is not None and json.dumps(note_of(now)) == json.dumps(note)
    reasons = {one["code"]: one for one in now.instance.status_detail["reasons"]}
    assert (now.instance.status, now.instance.health) in ((status, "degraded"), (status, "unhealthy"))
    assert reasons[code]["kind"] == "instance_note" and "lifecycle" in reasons[code]["message"]
    assert now.instance.notes.unsettled, "the next tick reads everything again"
    again, steps, plays = tick(now, two_workers(), seconds=1)
    assert_held_back([*steps, *plays])
    assert json.dumps(note_of(again)) == json.dumps(note)


def test_the_cluster_is_looked_at_while_its_note_cannot_be_read() -> None:
    now = with_note(GOOD | {"format": 3})
    now = now.later(now=NOW.replace(hour=4))
    now, _, plays = tick(now, two_workers())
    assert playbooks(plays) == ["observe"] and now.instance.notes.observed_at == NOW.replace(hour=4)
    assert reported(now) == ("running", "degraded", ["note_newer"])


@pytest.mark.parametrize("status", ["running", "stopped"])
def test_once_the_note_can_be_read_again_the_reason_goes_and_work_continues(status: str) -> None:
    slurm = two_workers()
    good = cluster(*both_ready())
    if status == "stopped":
        good, _, _ = tick(cluster(*both_ready(), whole=(ask_whole("stop"),)), slurm)
        assert good.instance.status == "stopped"
    kept = note_of(good) if status == "stopped" else None
    bad, _, _ = tick(with_note({"format": 9}, good), slurm)
    assert "note_newer" in reported(bad)[2]
    now, _, _ = tick(with_note(kept, bad), slurm, seconds=100)
    now, _, _ = tick(now, slurm)
    assert "note_newer" not in reported(now)[2] and now.instance.status == status


def test_a_note_whose_verb_is_not_that_of_its_operation_is_not_followed() -> None:
    now = with_note(GOOD, cluster(*both_ready(), whole=(running("restart"),)))
    now, steps, plays = tick(now, two_workers())
    assert_held_back([*steps, *plays])
    assert reported(now)[2] == ["note_unreadable"]


def test_a_note_of_a_later_verb_that_ended_holds_nothing_back() -> None:
    ended = GOOD | {"verb": "hibernate", "result": "done"}
    _, _, plays = tick(with_note(ended, cluster(*both_ready(), whole=(ask_whole("stop"),))), two_workers())
    assert playbooks(plays) == ["observe", "quiesce", "stop"]


@settings(derandomize=True, max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_whatever_status_detail_holds_nothing_is_deleted_and_a_bad_note_is_reported(data: st.DataObject) -> None:
    names = ["observed_at", "reasons", "workers", "unsettled", "versions", "wish", "config_digest", "config_version"]
    detail: dict[str, Any] = data.draw(st.dictionaries(st.sampled_from(names) | hostile.text, hostile.anything))
    former = data.draw(st.sampled_from([GOOD, *FORMER.values()]))
    field = data.draw(st.sampled_from([*sorted(former), "format"]))
    detail["lifecycle"] = data.draw(hostile.anything | hostile.anything.map(lambda bad: former | {field: bad}))
    assume(size(detail) <= RECORD_BYTES // 2)  # the platform keeps no larger record
    verb = data.draw(st.sampled_from(sorted(VERBS)))
    status = data.draw(st.sampled_from([*InstanceStatus]))
    start = cluster(*both_ready(), whole=(running(verb),))
    start = start.later(instance=start.instance.model_copy(update={"status": status, "status_detail": detail}))
    now, steps, play = settle(start, decide, rounds=60)
    dry_run(start, SLURM)
    problem = lifecycle_notes.problem(start.instance, start.instance_operations)
    for step in of_kind(steps, SetInstance):
        assert {key: value for key, value in step.detail.items() if key not in _OURS} == _unknown(detail)
    if problem is None or status == InstanceStatus.DELETED:
        return
    assert_held_back([*steps, *([play] if play else [])])
    assert now.instance.notes.lifecycle == detail["lifecycle"] or detail["lifecycle"] != detail["lifecycle"]
    if play is None:
        assert problem.code in [one.code for one in now.instance.notes.reasons or []]


_OURS = {*InstanceNotes.model_fields, *InstanceNotes.FORMER}


def _unknown(detail: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in detail.items() if key not in _OURS}


def test_reasons_and_versions_are_read_and_written_as_they_are_stored() -> None:
    plain = {"code": "stopped", "message": "the cluster was stopped"}
    full = plain | {"class": "drift", "health": "degraded", "member_id": "m", "host": "w", "repair": {"attempts": 1}}
    record = plain | {"kind": "member", "id": None, "later": {"deep": [1]}}
    stored = {
        "reasons": [plain, full, record],
        "versions": {
            "app": None,
            "package": "22.05.8-4",
            "slurmdbd": None,
            "slurmctld": "22.05.8",
            "slurmd": ["22.05.8"],
        },
    }
    read = InstanceNotes.read(stored)
    assert read.changes == stored
    assert read.reasons and [one.klass for one in read.reasons] == [None, "drift", None]
    assert read.versions == Versions.model_validate(stored["versions"]) and read.versions.slurmd == ["22.05.8"]
    made = InstanceNotes(reasons=[Reason(code="x", message="y", klass="drift")], versions=Versions(app=None)).changes
    assert made == {"reasons": [{"code": "x", "message": "y", "class": "drift"}], "versions": {"app": None}}


def test_a_reason_that_cannot_be_read_hides_no_other() -> None:
    good = {"code": "worker_down", "message": "see the host"}
    bad: list[Any] = ["text", {"message": "no code"}, {"code": 7}, good | {"format": 2}, good | {"class": "odd"}]
    for found in bad:
        read = InstanceNotes.read({"reasons": [found, good]})
        assert [one.stored() for one in read.reasons or []] == [good] and not read.problems
    assert InstanceNotes.read({"reasons": "all"}).reasons is None
