"""Ids of traces and spans, and the W3C header: what is derived from what, and what is refused."""

import hashlib
from typing import Any
from uuid import UUID

import pytest
from structlog.contextvars import get_contextvars

from runner import context
from runner.model import cause, trace
from runner.model.cause import Cause
from runner.model.member_notes import MemberNotes
from runner.model.platform import Operation
from runner.model.trace import TraceContext, read_traceparent
from runner.report.writes import marked
from tests.unit import hostile
from tests.unit.lifecycle import ask, serving
from tests.unit.worlds import instance

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALID = f"00-{TRACE}-{SPAN}-01"


def operation(**changes: Any) -> Operation:
    return ask("drain", serving(2)).model_copy(update=changes)


def test_a_valid_header_names_the_trace_the_span_and_the_flags() -> None:
    assert read_traceparent(VALID) == TraceContext(TRACE, SPAN, "01")
    assert trace.traceparent(TRACE, SPAN, "00") == f"00-{TRACE}-{SPAN}-00"
    assert trace.traceparent(TRACE, SPAN) == VALID


@pytest.mark.parametrize(
    "value",
    [
        *hostile.TEXTS,
        *(None, 7, b"", [], {}, VALID.encode(), [VALID], "", "00", "-" * 55),
        *(f" {VALID}", f"{VALID} ", f"{VALID}\n", f"\n{VALID}", VALID.upper(), f"{VALID}-more", f"{VALID},{VALID}"),
        *(VALID.replace("00-", version, 1) for version in ("01-", "ff-", "0-", "000-", "zz-", "-")),
        *(f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE[1:]}-{SPAN}-01"),
        *(f"00-{TRACE}-{SPAN[1:]}-01", f"00-{TRACE}-{SPAN}-1", f"00-{TRACE}-{SPAN}-0g", f"00-{TRACE}_{SPAN}_01"),
        f"00-{chr(0x660) * 32}-{SPAN}-01",
    ],
)
def test_anything_but_a_valid_header_counts_as_absent(value: Any) -> None:
    assert read_traceparent(value) is None
    record = {"id": str(UUID(int=1)), "operation": "add", "status": "accepted", "correlation_id": "c-1"}
    read = Operation.model_validate({**record, "traceparent": value})
    assert read.traceparent is None
    assert cause.of_operation(read).trace_id == trace.trace_id_of("c-1")


def test_the_trace_of_a_request_can_be_computed_from_its_correlation_id() -> None:
    expected = hashlib.sha256(b"gpuaas/trace/c-1").hexdigest()[:32]
    assert trace.trace_id_of("c-1") == Cause("c-1").trace_id == Cause("c-1", UUID(int=1)).trace_id == expected


def test_a_given_trace_is_continued() -> None:
    mine = cause.of_operation(operation(traceparent=VALID))
    assert (mine.trace_id, mine.given) == (TRACE, TraceContext(TRACE, SPAN, "01"))
    deploy = cause.of_instance(instance(traceparent=VALID))
    assert (deploy.trace_id, deploy.given) == (TRACE, TraceContext(TRACE, SPAN, "01"))


def test_each_request_has_a_root_span_of_its_own_and_routine_work_has_none() -> None:
    one, other = operation(), operation(id=UUID(int=99))
    roots = [cause.of_operation(each).root_span_id for each in (one, other)]
    roots.append(cause.of_instance(instance(status="deploying")).root_span_id)
    assert len(set(roots)) == 3 and all(root and len(root) == 16 for root in roots)
    assert roots[0] == cause.of_operation(one.model_copy(update={"attempt": 4, "status": "running"})).root_span_id
    assert cause.of_tick(instance(status="running"), "runner/1").root_span_id is None


def test_parts_of_a_span_id_are_not_confused() -> None:
    found = {trace.span_id_of(*parts) for parts in (("a", "b"), ("ab",), ("b", "a"), ("a", "b", ""), ("a",))}
    assert len(found) == 5 and all(len(one) == 16 and int(one, 16) for one in found)


def test_renewals_stay_in_the_trace_that_the_member_shows() -> None:
    noted = serving(2, adapter_detail=MemberNotes(correlation_id="c-9", trace_id=TRACE).changes)
    assert cause.of_marked(noted, instance()).trace_id == TRACE
    plain = serving(2, adapter_detail={"correlation_id": "c-9", "trace_id": "no trace"})
    assert plain.notes.trace_id is None and plain.notes.problems == ()
    assert cause.of_marked(plain, instance()).trace_id == trace.trace_id_of("c-9")


def test_renewals_for_a_deploy_are_under_its_span_and_not_beside_it() -> None:
    deploying = instance(status="deploying")
    for stored in ({}, MemberNotes(correlation_id=deploying.correlation_id).changes):
        marked = serving(2, adapter_detail=stored).model_copy(update={"correlation_id": deploying.correlation_id})
        assert cause.of_marked(marked, deploying) == cause.of_instance(deploying)
        assert cause.of_marked(marked, deploying).root_span_id == cause.of_instance(deploying).root_span_id


def test_log_lines_have_the_trace_only_if_there_is_one() -> None:
    plain, given = Cause("c-1", UUID(int=1)), Cause("c-2", given=TraceContext(TRACE, SPAN))
    with context.bound(plain):
        assert get_contextvars().keys() & set(context.IDS) == {"correlation_id", "operation_id"}
        assert (context.trace_id(), context.span_id(), context.given_traceparent()) == (None, None, None)
        assert marked() == {"correlation_id": "c-1", "trace_id": None}
        with context.bound(given):
            assert get_contextvars()["trace_id"] == TRACE and "span_id" not in get_contextvars()
            assert context.given_traceparent() == VALID
            assert marked() == {"correlation_id": "c-2", "trace_id": TRACE}
        assert "trace_id" not in get_contextvars()
    assert not get_contextvars().keys() & set(context.IDS)


def test_spans_that_begin_within_work_are_on_its_log_lines_at_once() -> None:
    with context.bound(Cause("c-1")), context.within(lambda cause: f"span of {cause.correlation_id}"):
        assert get_contextvars()["span_id"] == "span of c-1" and context.trace_id() == trace.trace_id_of("c-1")
        with context.within(lambda _: "inner"), context.bound(Cause("c-2")):
            assert get_contextvars()["span_id"] == "inner" and get_contextvars()["correlation_id"] == "c-2"
        assert get_contextvars()["span_id"] == "span of c-1"
    assert "span_id" not in get_contextvars()
