"""Gaps are data: each is kept and logged once, and the collector does not grow without end."""

from dataclasses import replace

import pytest
import structlog

from runner import log
from runner.model.gaps import LIMIT, TEXT_CHARS, Basis, Gap, Gaps, Kind, PilotKind
from runner.platform.evidence import GAP_LINE, log_gap
from tests.log_lines import named, read_lines

GAP = Gap(
    call="GET /projects/{id}/allocations",
    basis=Basis.ASSUMED,
    expected="a list",
    came="404",
    kind=Kind.READ_SURFACE,
    meanwhile="nothing is deployed",
    pilot=PilotKind.PRIMITIVE,
)


def test_a_gap_that_is_met_again_is_kept_and_passed_on_once() -> None:
    passed_on: list[Gap] = []
    met = Gaps(passed_on.append)
    for came in ("404", "404", "405"):
        met.add(replace(GAP, came=came))
    assert list(met) == passed_on == [GAP]


def test_a_collector_is_bounded_and_counts_what_it_leaves_out() -> None:
    met = Gaps()
    for number in range(LIMIT + 3):
        met.add(replace(GAP, call=f"GET /{number}", came="x" * 5000))
    assert (len(met), met.left_out) == (LIMIT, 3)
    assert {len(one.came) for one in met} == {TEXT_CHARS}


def test_a_gap_is_a_structured_line_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure_json()
    try:
        log_gap(GAP)
    finally:
        structlog.reset_defaults()
    (line,) = named(read_lines(capsys.readouterr().err), GAP_LINE)
    assert {name: line[name] for name in GAP.as_row()} == GAP.as_row()
