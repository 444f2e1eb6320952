"""The evaluator of LogQL queries: what it selects, and that it refuses what it does not know."""

import json

import pytest

from tests.logql import NotSupported, parse, select

STREAM = {"service": "s"}
DRAIN = json.dumps({"event": "finish (failed)", "error_code": "drain_deadline", "correlation_id": "a", "n": {"m": 3}})
CLAIM = json.dumps({"event": "claim", "correlation_id": "ab"})
TEXT = "Traceback (most recent call last):"
LINES = [DRAIN, CLAIM, TEXT]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ('{service="s"}', LINES),
        ('{service="other"}', []),
        ('{service="s", job="x"}', []),
        ('{service="s"} |= "claim"', [CLAIM]),
        ('{service="s"} != "claim"', [DRAIN, TEXT]),
        ('{service="s"} |~ "cl.im|Trace"', [CLAIM, TEXT]),
        ('{service="s"} !~ "^Trace"', [DRAIN, CLAIM]),
        ('{service="s"} | json', LINES),
        ('{service="s"} | json | correlation_id="a"', [DRAIN]),
        ('{service="s"} | json | correlation_id=~"a.*"', [DRAIN, CLAIM]),
        ('{service="s"} | json | correlation_id=~"b"', []),
        ('{service="s"} | json | error_code!=""', [DRAIN]),
        ('{service="s"} | json | error_code=""', [CLAIM, TEXT]),
        ('{service="s"} | json | event!~"finish.*"', [CLAIM, TEXT]),
        ('{service="s"} | json | event="claim" or error_code="drain_deadline"', [DRAIN, CLAIM]),
        ('{service="s"} | json | event=~".*" and correlation_id="ab"', [CLAIM]),
        ('{service="s"} | json | event="claim", correlation_id="a"', []),
        ('{service="s"} |= "a" | json | n_m="3" | error_code=`drain_deadline`', [DRAIN]),
    ],
)
def test_a_query_selects_what_loki_documents(query: str, found: list[str]) -> None:
    assert select(query, LINES, STREAM) == found


def test_a_field_of_a_line_does_not_replace_a_label_of_its_stream() -> None:
    assert select('{service="s"} | json | service="forged"', ['{"service": "forged"}'], STREAM) == []


@pytest.mark.parametrize(
    "query",
    [
        "",
        "{}",
        'service="s"',
        '{service="s"',
        '{service=~"s"}',
        '{service="s"} | event="claim"',
        '{service="s"} | logfmt',
        '{service="s"} | json | wait_s > 3',
        '{service="s"} | json | event=claim',
        '{service="s"} | json | event="claim" extra',
        '{service="s"} | json | line_format "{{.event}}"',
        'count_over_time({service="s"}[5m])',
        '{service="s"} | json | (event="claim")',
    ],
)
def test_a_query_that_is_not_of_this_part_of_logql_is_refused(query: str) -> None:
    with pytest.raises(NotSupported):
        parse(query)
