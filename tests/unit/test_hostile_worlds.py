"""Whatever stands in the records, a tick decides something, asks for nothing hostile and comes to an end."""

import json
import re
from typing import Any
from uuid import UUID

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from runner import translate
from runner.act.inventory import build
from runner.loop.dry_run import dry_run
from runner.model.claims import NOTE_CODES
from runner.model.limits import RECORD_BYTES, size
from runner.model.plan import Play, Step
from runner.model.platform import AppInstance, InstanceStatus, Member, MemberStatus, Operation
from runner.model.world import World
from runner.slurm import lifecycle_notes
from runner.slurm.app import SLURM
from runner.slurm.decide import VERBS, decide
from runner.slurm.member_reports import MemberReports
from runner.slurm.notes import SlurmNotes
from runner.slurm.notes import of as notes_of
from tests.unit import hostile
from tests.unit.lifecycle import serving
from tests.unit.test_rules import assert_operations_are_named, rule_names
from tests.unit.worlds import (
    KEY,
    ME,
    NOW,
    add,
    allocation,
    controller,
    instance,
    keyless,
    node,
    settle,
    snapshot,
    world,
)

thorough = settings(derandomize=True, max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))

NOTES: dict[str, dict[str, Any]] = {
    "leave": {"operation_id": str(UUID(int=77)), "verb": "drain", "since": "2026-01-02T03:04:05Z", "verdict": None},
    "last_adapter_error": {"code": "x", "message": "y", "class": "retryable"},
    "repair": {"attempts": 1, "outcome": "trying", "last_at": "2026-01-02T03:04:05Z"},
    "stopped": {"was": "ready", "phase": "serving"},
    "change": {"digest": "sha256:0", "attempt": 1, "next_attempt_at": "2026-01-02T03:04:05Z"},
    "wish_refused": {"digest": "sha256:1", "code": "x", "message": "y"},
    "config_refused": {"digest": "sha256:1", "code": "x", "message": "y"},
    "rotation_left_out": {"operation_id": str(UUID(int=88)), "code": "host_unreachable"},
    "host_keys_pinned": {"keys": [KEY], "at": "2026-01-02T03:04:05Z", "address": "10.0.0.2"},
    "host_key_changed": {"expected": "SHA256:x", "at": "2026-01-02T03:04:05Z"},
}
FIELDS = (
    *("attempt", "operation_id", "next_attempt_at", "lease_expires_at", "claimed_by", "jobs", "cpus", "gpus", "phase"),
    *("worker_hostname", "registered_in_controller", "drain_reason", "host_cleaned", "started_by", "drain_held_by"),
    *("wish", "applied_config", "people_version", "users_version", "retried_by", "excused_by", "controller_hostname"),
    *("config_version", "cluster_name", "package_version", "residue", "host_touched"),
    "fence",
)


@st.composite
def notes(draw: st.DrawFn) -> dict[str, Any]:
    """Adapter detail with something wrong in it: a whole note, or one field of a note."""
    detail = draw(st.dictionaries(st.sampled_from([*FIELDS, *NOTES]), hostile.anything, max_size=4))
    name = draw(st.sampled_from(sorted(NOTES)))
    field = draw(st.sampled_from(sorted(NOTES[name])))
    made = {**detail, name: {**NOTES[name], field: draw(hostile.anything)}} if draw(st.booleans()) else detail
    # The platform has no larger record; there is room for what a tick adds.
    return made if size(made) < RECORD_BYTES - 4096 else {}


STATUS = st.sampled_from([*MemberStatus, "new-status"])
LIFECYCLE_FIELDS = (
    *("phase", "verdict", "since", "attempts", "next_attempt_at", "after", "did", "partitions", "excused", "left"),
    *("failure", "error", "verb", "not_reached", "versions", "backup", "before", "config", "package", "keys", "jobs"),
)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    status = draw(st.sampled_from([*InstanceStatus, *[InstanceStatus.RUNNING] * 4, "new-status"]))
    verb = draw(st.sampled_from([*VERBS, *VERBS, "explode"]))
    changes = draw(st.dictionaries(st.sampled_from(LIFECYCLE_FIELDS), hostile.anything, max_size=4))
    lifecycle = {"operation_id": str(UUID(int=88)), "verb": verb, "since": "2026-01-02T03:04:05Z", "verdict": None}
    status_detail = draw(
        st.sampled_from([None, {}, {"lifecycle": lifecycle | changes}, {"observed_at": "2026-01-02T03:04:05Z"}])
    )
    assume(size(status_detail or {}) <= RECORD_BYTES // 2)  # the platform keeps no larger record
    members = [controller(status=draw(STATUS), adapter_detail=draw(notes()))]
    members += [serving(n, id=UUID(int=n << 120), status=draw(STATUS), adapter_detail=draw(notes())) for n in (2, 3)]
    lease = {"claimed_by": draw(st.sampled_from([ME, "other"])), "lease_expires_at": draw(st.sampled_from([NOW, None]))}
    parameters = draw(st.dictionaries(hostile.text, hostile.anything, max_size=2))
    member_operation = add(
        *draw(st.lists(st.integers(1, 5), max_size=2)),
        id=UUID(int=77),
        operation=draw(st.sampled_from(["add", "drain", "resume", "remove", "replace", "explode"]) | hostile.text),
        component_key=draw(st.sampled_from(["worker"] * 4 + ["controller"]) | hostile.text),
        member_ids=[member.id for member in members[1 : 1 + draw(st.integers(0, 2))]],
        parameters=parameters,
        status=draw(st.sampled_from(["accepted", "running", "new-status"])),
        **lease,
    )
    whole = Operation(
        id=UUID(int=88),
        operation=verb,
        parameters=draw(st.dictionaries(hostile.text, hostile.anything, max_size=2)),
        status=draw(st.sampled_from(["accepted", "running", "new-status"])),
        correlation_id="corr-3",
        created_at=NOW,
        of_instance=True,
        claimed_by=ME,
        lease_expires_at=None,
    )
    config = draw(st.none() | st.dictionaries(st.sampled_from(["slurm", "users", "x"]), hostile.anything, max_size=2))
    seen = draw(st.booleans())
    return world(
        instance=instance(status=status, status_detail=status_detail, config=config, name=draw(hostile.text)),
        members=tuple(members),
        operations=draw(st.sampled_from([(), (member_operation,)])),
        instance_operations=draw(st.sampled_from([(), (whole,)])),
        snapshot=snapshot({"w2": node(), "w3": node(state="DOWN")}) if seen else None,
        allocations={UUID(int=100 + n): draw(st.sampled_from([allocation(n), keyless(n)])) for n in range(1, 6)},
    )


def texts_in(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for pair in value.items() for part in pair for text in texts_in(part)]
    if isinstance(value, list | tuple | set | frozenset):
        return [text for part in value for text in texts_in(part)]
    return [value] if isinstance(value, str) else []


def assert_harmless(play: Play, now: World) -> None:
    """Everything a play takes to hosts beside the inventory's own variables is plain text on one line."""
    for text in texts_in(play.work) + texts_in(play.terms):
        assert re.fullmatch(r"[A-Za-z0-9 _.,:;/@+=~()%*\[\]-]*", text, re.ASCII), text
    assert not any(str(name).startswith("ansible_") for name in play.terms)
    build(SLURM, now.instance, play.members, now.allocations, play.work, play.terms)


@thorough
@given(worlds())
def test_hostile_records_never_stop_a_tick_nor_put_their_text_into_a_play(start: World) -> None:
    now, steps, play = settle(start, decide, rounds=60)
    if play:
        assert_harmless(play, now)
    assert isinstance(steps, list) and all(isinstance(step, Step) for step in steps)
    assert {step.rule for step in steps} <= set(rule_names())
    assert_operations_are_named(start, steps)
    dry_run(start, SLURM)


@thorough
@given(worlds())
def test_a_member_with_an_unreadable_note_is_left_alone_and_reported(start: World) -> None:
    unread = [one for one in start.members if notes_of(one).problems and one.status != MemberStatus.DELETED]
    now, _, play = settle(start, decide, rounds=60)
    # The instance's own note that cannot be read is reported first, and alone.
    held = lifecycle_notes.problem(start.instance, start.instance_operations)
    served = start.instance.status in set(InstanceStatus) - {InstanceStatus.DELETED} and not held
    for member in unread:
        after = next(one for one in now.members if one.id == member.id)
        assert after.status == member.status
        for problem in notes_of(member).problems:
            assert repr(stored(after, problem.name)) == repr(stored(member, problem.name))
        assert not play or play.playbook == "observe" or member.id not in {one.id for one in play.members}
        assert not served or after.notes.error_code in NOTE_CODES


def stored(member: Member, name: str) -> Any:
    """A note as it stands in the record, under its present name."""
    return SlurmNotes.renamed(member.adapter_detail).get(name)


def read(model: type[Any], record: dict[str, Any]) -> Any:
    return model.model_validate(record)


def test_unknown_values_and_more_fields_are_read_and_left_alone() -> None:
    more = {"hologram": {"deep": hostile.deep(200)}, "status": "transcended", "health": "euphoric"}
    base = instance().model_dump(mode="json")
    one = read(AppInstance, {**base, **more, "operating_mode": "quantum", "runtime_backend": "abacus"})
    assert [step.why for step in decide(world(instance=one)).steps] == [
        "the status 'transcended' is not known, so the instance is not touched"
    ]
    member = read(Member, {**controller().model_dump(mode="json"), **more, "component_key": "tachyon"})
    odd = read(Operation, {**add(2).model_dump(mode="json"), **more, "operation": "levitate"})
    assert settle(world(members=(controller(status="ready"), member), operations=(odd,)), decide)


@thorough
@given(
    hostile.anything, hostile.anything, st.sampled_from(["runner_on_ok", "runner_on_failed", "runner_on_unreachable"])
)
def test_whatever_a_host_answers_its_outcome_is_reported_and_fits_its_record(
    answered: Any, error: Any, kind: str
) -> None:
    members = {"worker-1": MemberReports(UUID(int=1), "worker")}
    for result in (
        answered,
        {"member_report": answered},
        {"member_report": {"phase": answered, "detail": {"x": answered}}},
    ):
        answer = {**result, "adapter_error": error} if isinstance(result, dict) else result
        data = {"host": "worker-1", "task": answered, "task_action": "member_report", "res": answer}
        event = {"event": kind, "event_data": data}
        run = translate.add_event(translate.RunResult(), translate.parse_event(event, members))
        for outcome in run.outcomes.values():
            shown = outcome.error.as_note(NOW).stored() if outcome.error else {}
            assert len(json.dumps([outcome.detail, outcome.phase, shown], allow_nan=False)) < 16_000
