"""Reports of a smoke run, the five questions, and the search in an audit of any form."""

import json
import uuid
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from runner.model.platform import AppInstance, Operation
from runner.smoke import audit
from runner.smoke.audit import Mutation
from runner.smoke.questions import QUESTIONS, answers, unanswered
from runner.smoke.report import Outcome, Report, Result, as_json, as_junit, as_markdown, rows

PASSED = Result("drain", "members", "it is drained", Outcome.PASSED, "drained", None, 1.5, "c-1", "o-1")
FAILED = Result(
    "stop", "lifecycle", "it stops", Outcome.FAILED, 'a <bad>\x00 "end" | of it\nall', "time_over", 2.0, "c-2"
)
SKIPPED = Result("start", "lifecycle", "it starts", Outcome.SKIPPED, "not done, because step stop failed")
GAP = {"call": "GET /me", "kind": "read_surface"}
REPORT = Report(
    "r1", "https://x/", "i-1", "1.1.0", "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z", [PASSED, FAILED, SKIPPED], [GAP]
)


def test_a_run_has_passed_only_without_a_failure_and_without_an_interruption() -> None:
    assert not REPORT.passed and REPORT.sentence == "smoke run r1 failed: 1 passed, 1 failed, 1 skipped"
    good = replace(REPORT, results=[PASSED, SKIPPED])
    assert good.passed and good.sentence.startswith("smoke run r1 passed")
    assert not replace(good, interrupted=True).passed
    assert replace(good, interrupted=True).sentence.startswith("smoke run r1 interrupted")


def test_junit_has_each_step_with_its_correlation_id() -> None:
    suite = ElementTree.fromstring(as_junit(REPORT))
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    passed, failed, skipped = suite.findall("testcase")
    assert passed.get("classname") == "smoke.members" and len(passed) == 1
    ids = {one.get("name"): one.get("value") for one in passed.iter("property")}
    assert ids == {"correlation_id": "c-1", "record_id": "o-1"}
    (failure,) = failed.findall("failure")
    assert failure.get("message") == "time_over" and failure.text == 'a <bad>? "end" | of it\nall'
    (left_out,) = skipped.findall("skipped")
    assert left_out.get("message") == SKIPPED.detail


def test_markdown_keeps_hostile_text_in_its_cell() -> None:
    lines = as_markdown(REPORT).splitlines()
    (row,) = [line for line in lines if line.startswith("| lifecycle/stop")]
    assert row.count(" | ") == 4 and "\\|" in row and "&lt;bad>" in row
    assert "| GET /me | read_surface |" in lines


def test_json_has_every_result_and_gap() -> None:
    made = json.loads(json.dumps(as_json(REPORT)))
    assert made["passed"] is False and made["gaps"] == [GAP]
    assert [one["correlation_id"] for one in made["results"]] == ["c-1", "c-2", None]


def test_a_row_has_the_code_of_a_failure_before_its_text() -> None:
    assert rows(REPORT)[1]["detail"].startswith("time_over: a <bad>")


MUTATIONS = [Mutation("deploy", "i-1", "c-1"), Mutation("drain", "o-1", "c-2", 2)]
LINES = [
    {"who": "ada", "target": {"id": "i-1"}, "trace": ["c-1"]},
    {"object_id": "o-1", "correlation_id": "c-2"},
    {"object_id": "o-1", "correlation_id": "c-2", "by": "runner"},
    {"object_id": "o-1", "correlation_id": "c-1"},
]


def read(lines: list[Any]) -> list[frozenset[str]]:
    return audit.read("\n".join(map(json.dumps, lines)))[0]


def test_a_request_is_found_in_an_audit_of_any_form() -> None:
    assert audit.missing(read(LINES), MUTATIONS) == []


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_line_that_is_missing_in_the_audit_is_named(gone: int) -> None:
    (problem,) = audit.missing(read(LINES[:gone] + LINES[gone + 1 :]), MUTATIONS)
    assert problem.startswith("deploy: 0" if gone == 0 else "drain: 1 lines with o-1 and c-2, not 2 or more")


def test_lines_that_are_not_json_objects_are_counted() -> None:
    lines, odd = audit.read('\n{"a": "b"}\nnonsense\n[1]\n' + "[" * 100_000)
    assert (lines, odd) == ([frozenset({"b"})], 3)


def made_instance() -> AppInstance:
    own = {"id": uuid.uuid4(), "org_id": uuid.uuid4(), "app_slug": "x", "correlation_id": "d", "status": "running"}
    return AppInstance.model_validate(own)


INSTANCE = made_instance()
OPERATION = Operation.model_validate(
    {
        "id": uuid.uuid4(),
        "operation": "add",
        "status": "failed",
        "correlation_id": "c",
        "allocation_ids": [uuid.uuid4()],
    }
)


def account(**changes: Any) -> dict[str, Any]:
    message = f"allocation {OPERATION.allocation_ids[0]} is not here"
    own = {"id": str(OPERATION.id), "operation": "add", "error": {"code": "not_there", "message": message}}
    return {
        "instance": {"id": str(INSTANCE.id), "name": "smoke-r1", "status": "running"},
        "members": [],
        "operations": [own],
        "correlation_ids": ["c"],
        "runtime": {"config_version": "1"},
        "end": "add: failed: not_there",
        "next": "name another one",
        **changes,
    }


def test_a_refused_request_answers_all_five_questions() -> None:
    found = answers(account(), INSTANCE, OPERATION)
    assert tuple(found) == QUESTIONS and unanswered(found) == []
    assert str(OPERATION.allocation_ids[0]) in str(found["member"])


@pytest.mark.parametrize(
    ("question", "changes"),
    [
        ("instance", {"instance": {"id": "another", "name": "a", "status": "running"}}),
        ("operation", {"operations": [], "members": [{"name": "w", "status": "ready", "runtime": {"phase": "up"}}]}),
        ("operation", {"next": ""}),
        ("correlation id", {"correlation_ids": ["another"]}),
        ("runtime", {"runtime": {}}),
    ],
)
def test_a_question_without_an_answer_is_named(question: str, changes: dict[str, Any]) -> None:
    assert unanswered(answers(account(**changes), INSTANCE, OPERATION)) == [question]


def test_a_failure_that_names_no_member_and_no_allocation_is_not_an_answer() -> None:
    vague = account(operations=[{"id": str(OPERATION.id), "operation": "add", "error": {"code": "x", "message": "no"}}])
    assert unanswered(answers(vague, INSTANCE, OPERATION)) == ["member"]
