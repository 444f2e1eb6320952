"""Spans of plays, hosts and tasks by real Ansible, and what they may show.

Over 300 lines, because the tests share recorded plays and one collector.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from runner import context
from runner.act import bundle
from runner.model import cause, trace
from runner.model.cause import Cause
from runner.model.names import host_name
from runner.model.plan import AdapterError, Finish, Play, Refuse, SetInstance
from runner.model.platform import Operation
from runner.model.world import Outcome, World
from runner.slurm.app import SLURM
from runner.telemetry import play_spans
from runner.telemetry.span import ALLOWED, TEXT_BYTES, Known, Span
from runner.telemetry.spans import SpanTracer
from runner.telemetry.tracer import TracedPlay
from runner.translate import RunResult
from tests.forged_answers import EVERY_FORGERY
from tests.unit.local_plays import LocalPlays
from tests.unit.worlds import NOW, add, controller, instance, worker, world

SECRET = "canary-9f8e7d6c5b4a"
RUNNER = "runner/1"


def app_names(where: Path | None = None) -> Known:
    app = SLURM.metrics
    return Known(app.verbs, app.playbooks, bundle.error_codes(), where or bundle.bundle_dir())


class Traced:
    """A tracer that keeps its spans."""

    def __init__(self, where: Path | None = None) -> None:
        self.spans: list[Span] = []
        peers = {"platform": ("api.test", 443), "vault": (None, None)}
        self.tracer = SpanTracer(self.spans.append, app_names(where), RUNNER, peers)

    @contextmanager
    def play(self, step: Play, seen: World, tick_id: str = "tick/1") -> Iterator[TracedPlay]:
        with (
            self.tracer.ticking(seen.instance, tick_id),
            context.bound(cause.of_step(step, seen)),
            self.tracer.playing(step, seen) as traced,
        ):
            yield traced

    def named(self, name: str) -> list[Span]:
        return [one for one in self.spans if one.name.split(" ")[0] == name]

    @property
    def tasks(self) -> list[Span]:
        return [one for one in self.spans if "gpuaas.status" in one.attributes]


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalPlays:
    return LocalPlays(tmp_path, monkeypatch)


def asked(number: int, **changes: Any) -> Operation:
    made = {"id": UUID(int=700 + number), "status": "running", "claimed_by": RUNNER, "attempt": 1, **changes}
    return add(number, correlation_id=f"c-{number}").model_copy(update=made)


def joining(*operations: Operation) -> tuple[Play, World]:
    chief = controller(status="ready")
    members = [
        worker(one, number).model_copy(update={"id": UUID(int=number << 96)})
        for number, one in enumerate(operations, 2)
    ]
    requested = {member.id: operation for member, operation in zip(members, operations, strict=True)}
    fences = {member.id: 3 for member in members}
    step = Play("why", "add_worker", (chief, *members), operations=requested, fences=fences)
    return step, world(members=(chief, *members), operations=operations)


# -- real plays ----------------------------------------------------------------------------------------------------


def test_each_host_is_in_the_trace_of_its_own_operation_under_its_own_play(local: LocalPlays) -> None:
    step, seen = joining(asked(2), asked(3))
    traced = Traced()
    with traced.play(step, seen) as play:
        play.result = local.play(step, seen, traced=play)
    plays = {one.trace_id: one for one in traced.named("play")}
    assert set(plays) == {trace.trace_id_of("c-2"), trace.trace_id_of("c-3")}
    hosts = {one.attributes["gpuaas.member_id"]: one for one in traced.named("host")}
    assert set(hosts) == {str(one.id) for one in step.members}
    for member in step.members:
        host, own = hosts[str(member.id)], step.operations.get(member.id) or step.operations[step.members[1].id]
        assert host.trace_id == trace.trace_id_of(own.correlation_id) and host.error is None
        assert host.parent_id == plays[host.trace_id].span_id
        tasks = [one for one in traced.tasks if one.parent_id == host.span_id]
        assert len(tasks) > 3 and {one.trace_id for one in tasks} == {host.trace_id}
        assert all(host.start <= one.start <= one.end <= host.end for one in tasks)
    assert len(traced.tasks) == sum(len([t for t in traced.tasks if t.parent_id == h.span_id]) for h in hosts.values())
    assert len({one.span_id for one in traced.spans}) == len(traced.spans)


def test_spans_show_nothing_that_a_host_returned(local: LocalPlays) -> None:
    step, seen = joining(asked(2))
    forged = f"result['msg'] = result['stdout'] = {SECRET!r}\nresult['adapter_error'] = {{'code': 'canary_code'}}\n"
    local.of_every_host = f"{forged}result['failed'] = True\n"
    traced = Traced()
    with traced.play(step, seen) as play:
        play.result = local.play(step, seen, traced=play)
    assert any(one.attributes["gpuaas.status"] == "failed" for one in traced.tasks)
    shown = repr([(one.name, one.shown) for one in traced.spans])
    assert SECRET not in shown and "canary" not in shown
    assert {one.shown["error.type"] for one in traced.named("host") if one.error} == {"other"}


def test_forged_answers_change_no_span(local: LocalPlays) -> None:
    step, seen = joining(asked(2))
    attacker = step.members[1]
    given = {"CONTROLLER": host_name(step.members[0]), "VICTIM": "victim", "MARK": str(local.bundle / "owned")}
    local.forgeries(attacker, "\n".join([*(f"{key} = {value!r}" for key, value in given.items()), EVERY_FORGERY]))
    traced = Traced()
    with traced.play(step, seen) as play:
        play.result = local.play(step, seen, traced=play)
    assert {one.attributes["gpuaas.host"] for one in traced.named("host")} == {host_name(one) for one in step.members}
    assert "owned" not in repr([(one.name, one.shown) for one in traced.spans]).lower()


TEMPLATED = f"""
- hosts: all
  gather_facts: false
  vars: {{secret: {SECRET}}}
  tasks:
    - name: "Say {{{{ secret }}}} aloud"
      ansible.builtin.debug: {{msg: "{{{{ secret }}}}"}}
    - ansible.builtin.debug: {{msg: "{{{{ secret }}}}"}}
    - name: Fail and go on
      ansible.builtin.fail: {{msg: "{{{{ secret }}}}"}}
      ignore_errors: true
    - name: Skip it
      ansible.builtin.fail: {{msg: "{{{{ secret }}}}"}}
      when: false
    - name: Fail
      ansible.builtin.fail: {{msg: "{{{{ secret }}}}"}}
"""


def test_a_task_has_the_name_that_its_file_has_and_no_value(local: LocalPlays) -> None:
    step, seen = joining(asked(2))
    local.playbook("add_worker", TEMPLATED)
    traced = Traced(local.bundle)
    with traced.play(step, seen) as play:
        play.result = local.play(step, seen, traced=play)
    of_one = [one for one in traced.tasks if one.attributes["gpuaas.member_id"] == str(step.members[1].id)]
    assert [(one.name, one.shown["gpuaas.status"], one.error) for one in of_one] == [
        ("Say {{ secret }} aloud", "ok", None),
        ("playbooks/add_worker.yml:8", "ok", None),
        ("Fail and go on", "ignored", None),
        ("Skip it", "skipped", None),
        ("Fail", "failed", "task_failed"),
    ]
    assert SECRET not in repr([(one.name, one.shown) for one in traced.spans])
    (play_span,) = traced.named("play")
    assert (play_span.error, play_span.attributes["cicd.pipeline.task.run.result"]) == ("failed", "failure")


def test_a_task_that_hangs_is_shown_as_unfinished(local: LocalPlays) -> None:
    step, seen = joining(asked(2))
    slow = "- hosts: all\n  gather_facts: false\n  tasks:\n    - name: Hang\n      ansible.builtin.command: sleep 60\n"
    local.playbook("add_worker", slow)
    traced = Traced(local.bundle)
    with traced.play(step, seen) as play:
        assert isinstance(play, play_spans.PlaySpans)
        begun = [host.begun for host in play._hosts.values()]
        play.result = local.play(step, seen, traced=play, give_up=lambda: all(begun))
    assert {(one.name, one.attributes["gpuaas.status"]) for one in traced.tasks} == {("Hang", "unfinished")}
    for kind in ("host", "play"):
        assert {one.attributes["cicd.pipeline.task.run.result"] for one in traced.named(kind)} == {"cancellation"}


# -- ids -----------------------------------------------------------------------------------------------------------


def play_ids(step: Play, seen: World, tick_id: str = "tick/1", number: int = 1) -> list[str]:
    spans = play_spans.PlaySpans(step, seen, app_names(), RUNNER, tick_id, number, lambda _: None)
    return [str(spans.span_id(one)) for one in spans.causes]


def test_a_plays_id_comes_from_operation_claim_and_play() -> None:
    first = play_ids(*joining(asked(2)))
    assert play_ids(*joining(asked(2)), tick_id="tick/2") == first, "the claim tells it apart, not the tick"
    others = [
        play_ids(*joining(asked(2, attempt=2))),
        play_ids(*joining(asked(2, id=UUID(int=9)))),
        play_ids(*joining(asked(2)), number=2),
    ]
    assert len({first[0], *(one[0] for one in others)}) == 4
    step, seen = joining(asked(2))
    fenced = Play("why", "add_worker", step.members, operations=step.operations, fences={step.members[1].id: 4})
    other = Play("why", "follow", step.members, operations=step.operations, fences=step.fences)
    assert len({*first, *play_ids(fenced, seen), *play_ids(other, seen)}) == 3


def test_a_play_without_a_claim_has_another_id_in_each_tick() -> None:
    look = Play("why", "observe", (controller(),))
    seen = world(members=(controller(),), tick_id="x")
    assert play_ids(look, seen) == play_ids(look, seen) != play_ids(look, seen, tick_id="tick/2")


def test_plays_of_one_tick_are_counted() -> None:
    step, seen = joining(asked(2))
    traced = Traced()
    with traced.tracer.ticking(seen.instance, "tick/1"), context.bound(cause.of_step(step, seen)):
        for _ in range(2):
            with traced.tracer.playing(step, seen):
                pass
    assert len({one.span_id for one in traced.named("play")}) == 2


# -- requests ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "error", "result", "shown"),
    [
        ("succeeded", None, "success", None),
        ("failed", {"code": "play_timeout", "message": SECRET}, "failure", "play_timeout"),
        ("failed", {"code": SECRET, "message": "x"}, "failure", "other"),
        ("failed", None, "failure", "failure"),
        ("cancelled", None, "cancellation", None),
        ("odd", None, "error", None),
    ],
)
def test_an_operations_span_is_from_its_request_to_its_end(
    status: str, error: Any, result: str, shown: str | None
) -> None:
    traced, made = Traced(), asked(2, created_at=NOW - timedelta(seconds=90), attempt=3)
    traced.tracer.wrote(Finish("why", made, status, {"secret": SECRET}, error), instance(), NOW)
    (span,) = traced.spans
    assert abs(span.end - span.start - 90 * 10**9) < 10**6
    assert (span.name, span.error, span.shown["cicd.pipeline.result"]) == ("add", shown, result)
    assert (span.span_id, span.trace_id) == (cause.of_operation(made).root_span_id, trace.trace_id_of("c-2"))
    assert span.shown["gpuaas.attempt"] == 3 and SECRET not in repr(span.shown)


def test_a_refusal_is_an_end_too_and_an_unknown_verb_is_not_shown() -> None:
    traced, made = Traced(), asked(2, operation=SECRET)
    traced.tracer.wrote(Refuse("why", made, "parameters_invalid"), instance(), NOW)
    (span,) = traced.spans
    assert (span.name, span.error) == ("other", "parameters_invalid")


@pytest.mark.parametrize(
    ("before", "after", "note", "spans"),
    [
        ("deploying", "running", None, ["deploy"]),
        ("requested", "failed", None, ["deploy"]),
        ("deploying", "deploying", None, []),
        ("running", "running", None, []),
        ("deploying", "running", {"verb": "start"}, []),
    ],
)
def test_a_deploy_has_a_span_when_it_ends(before: str, after: str, note: Any, spans: list[str]) -> None:
    traced = Traced()
    made = instance(status=before, status_detail={"lifecycle": note} if note else None)
    traced.tracer.wrote(SetInstance("why", after, "healthy", {}), made, NOW)
    assert [one.name for one in traced.spans] == spans


# -- what a span may show ------------------------------------------------------------------------------------------


def test_only_attributes_of_the_list_are_shown_and_each_is_bounded() -> None:
    given = dict.fromkeys(ALLOWED, "é\x1b[2J\n" * 500) | {"db.statement": SECRET, "exception.message": SECRET}
    shown = Span("x", "1", "2", None, 0, 1, given).shown
    assert set(shown) == ALLOWED - {"error.type"}
    assert all(len(str(value).encode()) <= TEXT_BYTES and str(value).isprintable() for value in shown.values())


@pytest.mark.parametrize(
    "place",
    [
        *("", "x", "/etc/passwd:1", "roles/munge/tasks/main.yml", "roles/munge/tasks/main.yml:99999"),
        *("roles/munge/tasks/../../../app/manifest.yml:1", "roles/munge/tasks/nowhere.yml:1", "playbooks/x y.yml:1"),
        f"/{SECRET}/main.yml:1",
    ],
)
def test_a_place_that_is_not_in_the_bundle_is_not_shown(place: str) -> None:
    path, _, name = play_spans._described(bundle.bundle_dir(), place)
    assert name is None
    assert path is None or re.fullmatch(r"roles/munge/tasks/main\.yml:99999", path)


def test_a_call_without_an_answer_is_an_error_and_routes_hold_no_id() -> None:
    traced = Traced()
    with traced.tracer.ticking(instance(), "t"), context.bound(Cause("c-1", UUID(int=1))):
        with pytest.raises(OSError, match=SECRET), traced.tracer.calling("platform", "POST", "/projects/{id}"):
            raise OSError(SECRET)
        with traced.tracer.calling("platform", SECRET, "other") as call:
            call.status = 503
    first, second, tick = traced.spans
    assert (first.name, first.error, first.is_call) == ("POST /projects/{id}", "no_answer", True)
    assert (second.name, second.error) == ("other other", "503")
    assert first.parent_id == second.parent_id == tick.span_id and SECRET not in repr(traced.spans)


def test_a_call_outside_of_a_tick_is_in_no_trace() -> None:
    traced = Traced()
    with traced.tracer.calling("platform", "GET", "/x") as call:
        assert trace.read_traceparent(call.traceparent) and str(call.traceparent).endswith("-00")
    assert traced.spans == []


def test_reads_are_shown_only_if_the_tick_does_something_or_fails() -> None:
    own = cause.of_tick(instance(), "t")
    for write, failed, expected in (
        (None, False, []),
        ("PATCH", False, ["GET /x", "PATCH /x", "tick"]),
        (None, True, ["GET /x", "tick"]),
    ):
        traced = Traced()
        with traced.tracer.ticking(instance(), "t") as ticking, context.bound(own):
            for method in ("GET", write) if write else ("GET",):
                with traced.tracer.calling("platform", method, "/x") as call:
                    call.status = 200
            ticking.failed = failed
        assert [one.name for one in traced.spans] == expected


def test_the_outcome_of_a_member_is_on_its_host() -> None:
    step, seen = joining(asked(2))
    traced = Traced()
    with traced.play(step, seen) as play:  # without an event, because its address was refused
        play.result = RunResult({step.members[1].id: Outcome(error=AdapterError("host_unreachable", SECRET))})
    (host,) = traced.named("host")
    assert (host.error, host.shown["cicd.pipeline.task.run.result"]) == ("host_unreachable", "failure")
    assert SECRET not in repr(host.shown)


def test_the_manual_lists_every_attribute() -> None:
    manual = (bundle.bundle_dir() / "docs" / "usage" / "telemetry.md").read_text()
    assert {name for name in ALLOWED if f"`{name}`" not in manual} == set()
