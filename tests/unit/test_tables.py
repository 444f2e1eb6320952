"""Tables fit into 100 columns whatever the records hold, and wide ones have every column and whole ids."""

import re
from datetime import timedelta
from io import StringIO
from typing import Any
from uuid import UUID, uuid4

import pytest
from rich.cells import cell_len
from rich.console import Console

from runner.cli import request_state, tables, view
from runner.cli.options import Form, chosen_form
from runner.cli.tables import Section
from runner.model.errors import RequestError
from runner.model.plan import Claim, Wait
from runner.slurm.notes import WorkerLeave, WorkerNotes
from tests.unit.lifecycle import ask
from tests.unit.worlds import NOW, allocation, instance, worker

NAME = "n" * 64
MESSAGE = "the host 漢字漢字漢字漢字漢字 does not answer: ü " * 40 + "w" * 300
CORRELATION = str(uuid4())


def worst() -> dict[str, Section]:
    """Each table, of records with long and unusual values."""
    one = instance(
        id=uuid4(),
        name=NAME,
        status="reconciling_for_a_long_time",
        health="漢" * 64,
        correlation_id=CORRELATION,
        status_detail={
            "workers": {"ready": 60_000, "reconciling": 5_000, "draining": 500},
            "reasons": [{"code": "x", "message": MESSAGE}] * 3,
        },
    )
    drain = ask("drain", id=uuid4(), parameters={"deadline_seconds": 600}, claimed_by="r" * 128)
    noted = WorkerNotes(
        leave=WorkerLeave(operation_id=drain.id, verb="drain", started_at=NOW),
        jobs=[f"{number}_7" for number in range(1000, 1020)],
        jobs_remaining=5000,
        jobs_end_by=NOW + timedelta(days=400),
        phase="p" * 100,
        worker_hostname="h" * 63,
        node_state="MIXED+DRAIN+NOT_RESPONDING+MAINTENANCE",
    ).changes
    error = {"code": "host_unreachable", "message": MESSAGE, "class": "retryable"}
    member = worker(
        drain,
        2,
        id=uuid4(),
        component_key=NAME,
        status="draining",
        adapter_detail=noted | {"last_adapter_error": error},
    )
    drain = drain.model_copy(
        update={
            "status": "running",
            "member_ids": [member.id],
            "error": {"code": "c" * 64, "message": MESSAGE},
            "correlation_id": CORRELATION,
        }
    )
    records = request_state.Records(one, [member], [drain], NOW, timedelta(seconds=60))
    place = allocation(2, id=uuid4(), name=NAME, sku="漢" * 64, connection={"host": f"{NAME}.{NAME}.example"}, gpus=8)
    steps = [Wait(MESSAGE, NAME, rule=NAME, operation=drain), Claim("short", drain, rule="a rule", operation=drain)]
    return {
        "instances": Section(tables.INSTANCES, [view.instance_row(one)], ""),
        "members": Section(tables.MEMBERS, [records.member_row(member)], ""),
        "operations": Section(tables.OPERATIONS, [records.operation_row(drain)], ""),
        "allocations": Section(tables.ALLOCATIONS, [view.allocation_row(place, {place.id: MESSAGE})], ""),
        "plan": Section(tables.PLAN, view.plan_rows(one, steps, as_json=False), ""),
    }


def printed(section: Section, monkeypatch: pytest.MonkeyPatch, *, wide: bool = False, **console: Any) -> list[str]:
    out = Console(file=StringIO(), soft_wrap=True, highlight=False, markup=False, emoji=False, **console)
    monkeypatch.setattr(view, "out", out)
    view.show([section], wide=wide)
    assert isinstance(out.file, StringIO)
    return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in out.file.getvalue().splitlines()]


TABLES = sorted(worst())
WHERE: dict[str, dict[str, Any]] = {
    "pipe": {},
    "narrow pipe": {"width": 40},
    "wide pipe": {"width": 400},
    "terminal": {"force_terminal": True, "width": 250},
}


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", TABLES)
def test_every_line_of_a_table_fits_into_100_columns(name: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(worst()[name], monkeypatch, **WHERE[where])
    assert len(lines) > 2
    assert max(cell_len(line) for line in lines) <= 100
    assert [line for line in lines if line.endswith(" ")] == []


@pytest.mark.parametrize("name", TABLES)
def test_a_table_fits_a_terminal_that_has_fewer_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(worst()[name], monkeypatch, force_terminal=True, width=72)
    assert max(cell_len(line) for line in lines) <= 72


@pytest.mark.parametrize("name", TABLES)
def test_long_text_wraps_in_the_last_column_and_nothing_of_it_is_lost(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = "".join("".join(printed(worst()[name], monkeypatch)).split())
    assert "…" not in shown
    assert shown.count("w") >= 300 and shown.count("漢字漢字漢字漢字漢字") >= 20


@pytest.mark.parametrize("name", TABLES)
def test_a_wide_table_has_one_line_for_a_row_every_column_and_whole_ids(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = worst()[name]
    head, *lines = printed(section, monkeypatch, wide=True)
    assert head.split() == [column.upper() for column in section.rows[0]]
    assert len(lines) == len(section.rows)
    for row, line in zip(section.rows, lines, strict=True):
        ids = [str(value) for value in row.values() if isinstance(value, UUID)]
        assert ids and all(one in line for one in ids)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_the_first_8_characters_of_ids(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    section = worst()[name]
    lines = printed(section, monkeypatch)
    ids = [str(section.rows[0][column]) for column in section.columns.short if column in section.rows[0]]
    for one in [one for one in ids if re.fullmatch(r"[0-9a-f]{8}-[0-9a-f-]{27}", one)]:
        assert any(one[:8] in line.split() for line in lines)
        assert one not in "\n".join(lines)


def test_wide_plans_and_operations_have_whole_ids_of_operations_and_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    found = worst()
    operation = str(found["operations"].rows[0]["operation"])
    assert operation in printed(found["plan"], monkeypatch, wide=True)[1]
    assert CORRELATION in printed(found["operations"], monkeypatch, wide=True)[1]


def test_a_correlation_id_that_is_not_a_uuid_is_shown_whole() -> None:
    row = {**worst()["operations"].rows[0], "correlation": "req-2026-11-18-000017"}
    assert tables.OPERATIONS.shortened(row)["correlation"] == "req-2026-11-18-000017"


def test_an_empty_last_column_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{**row, "waiting": None, "error": None} for row in worst()["members"].rows]
    shown = printed(Section(tables.MEMBERS, rows, ""), monkeypatch)[0]
    assert shown.split() == ["MEMBER", "HOST", "STATUS", "PHASE", "NODE"]


def test_control_characters_of_a_record_do_not_reach_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{**worst()["members"].rows[0], "host": "\x1b[2Jgs\u202e-1\r"}]
    assert "\x1b" not in "".join(printed(Section(tables.MEMBERS, rows, ""), monkeypatch, wide=True))


def test_plan_as_json_has_the_fields_it_had() -> None:
    (row,) = view.plan_rows(instance(), [Wait("later", "w2", rule="a rule")], as_json=True)
    assert row == {
        "instance": "00000000",
        "step": "wait",
        "subject": "w2",
        "operation": "",
        "rule": "a rule",
        "why": "later",
    }


def test_json_can_be_chosen_in_two_ways_and_not_beside_wide() -> None:
    assert chosen_form(Form.JSON, False) == chosen_form(Form.TABLE, True) == Form.JSON
    assert chosen_form(Form.WIDE, False) == Form.WIDE
    with pytest.raises(RequestError, match="without --output wide"):
        chosen_form(Form.WIDE, True)
