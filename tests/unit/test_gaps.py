"""Gaps are data: each is kept and logged once, and the collector does not grow without end."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import httpx
import pytest
import structlog

from runner import log
from runner.cli.gaps import read_known
from runner.model.errors import PlatformError
from runner.model.gaps import LIMIT, TEXT_CHARS, Basis, Gap, Gaps, Kind, PilotKind
from runner.platform.client import Client
from runner.platform.evidence import GAP_LINE, log_gap
from runner.settings import Settings
from tests import gaps as pages
from tests.log_lines import named, read_lines
from tests.unit.worlds import PROJECT, controller, instance

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


# -- those that are known ------------------------------------------------------------------------------------


def test_the_page_of_known_gaps_is_made_from_the_data() -> None:
    assert pages.PAGE.read_text() == pages.page(read_known(pages.DATA)), "run python -m tests.gaps"


def test_no_text_of_a_known_gap_is_cut_and_each_is_there_once() -> None:
    found = read_known(pages.DATA)
    assert len({one.identity for one in found}) == len(found) >= 10
    assert [one.expected for one in found for text in (one.expected, one.meanwhile) if len(text) >= TEXT_CHARS] == []


# -- those that are met: answers of the platform, one for each kind ------------------------------------------

INSTANCE = UUID(int=7)
RECORD = instance().model_dump(mode="json", exclude={"etag"})


def refusal(status: int, code: str, details: Any = None) -> Callable[[], httpx.Response]:
    return lambda: httpx.Response(status, json={"code": code, "message": "canary", "details": details or {}})


def unreachable() -> httpx.Response:
    raise httpx.ConnectError("canary")


def without(*names: str, **changed: Any) -> Callable[[], httpx.Response]:
    body = {name: value for name, value in (RECORD | {"etag": "1"} | changed).items() if name not in names}
    return lambda: httpx.Response(200, json=body)


def read_instance(client: Client) -> object:
    return client.instance(INSTANCE)


def write_member(client: Client) -> object:
    return client.patch_member(controller(), {"adapter_detail": {"a": 1}}, key="k")


def write_event(client: Client) -> None:
    client.post_event(instance(), "apps.instance.stopped", {}, key="k")


def read_members(client: Client) -> object:
    return client.members(INSTANCE)


def ask_policy(client: Client) -> object:
    return client.resolve_packages(instance(), "slurm")


CAUSED = [
    ("no such write", write_member, refusal(405, "method_not_allowed"), Kind.PRIMITIVE, PilotKind.PRIMITIVE),
    ("no such policy", ask_policy, refusal(404, "route_not_found"), Kind.PRIMITIVE, PilotKind.PRIMITIVE),
    ("no such read", read_members, refusal(404, "route_not_found"), Kind.READ_SURFACE, PilotKind.PRIMITIVE),
    ("another page", read_members, lambda: httpx.Response(200, json={"d": []}), Kind.READ_SURFACE, PilotKind.PRIMITIVE),
    ("another record", read_instance, without("status"), Kind.READ_SURFACE, PilotKind.PRIMITIVE),
    ("an unknown word", read_instance, without(status="molten"), Kind.READ_SURFACE, PilotKind.PRIMITIVE),
    ("not JSON", read_instance, lambda: httpx.Response(200, content=b"<"), Kind.READ_SURFACE, PilotKind.PRIMITIVE),
    ("no ETag", read_instance, without("etag"), Kind.PRIMITIVE, PilotKind.PRIMITIVE),
    ("no Retry-After", read_instance, refusal(429, "too_many_requests"), Kind.READ_SURFACE, PilotKind.PRIMITIVE),
    ("no attribution", read_instance, without("operating_mode"), Kind.READ_SURFACE, PilotKind.ATTRIBUTION),
    ("no permission", read_instance, refusal(403, "insufficient_permissions"), Kind.PERMISSION, PilotKind.ACTION_KEY),
    ("event refused", write_event, refusal(422, "validation_error"), Kind.PRIMITIVE, PilotKind.EVENT),
    (
        "content of the app refused",
        write_member,
        refusal(400, "validation_error", {"problems": ["body/adapter_detail: no such role"]}),
        Kind.PRIMITIVE,
        PilotKind.COUPLING,
    ),
    ("request refused", write_member, refusal(400, "invalid_request"), Kind.APP, None),
    ("unreachable", read_instance, unreachable, Kind.ENVIRONMENT, None),
    ("credentials refused", read_instance, refusal(401, "token_invalid"), Kind.ENVIRONMENT, None),
]


@pytest.mark.parametrize(
    ("call", "answer", "kind", "pilot"), [one[1:] for one in CAUSED], ids=[one[0] for one in CAUSED]
)
def test_each_deviation_is_recorded_once_under_its_kind(
    call: Callable[[Client], object], answer: Callable[[], httpx.Response], kind: Kind, pilot: PilotKind | None
) -> None:
    with answering(answer) as client:
        for _ in range(2):
            with contextlib.suppress(PlatformError):
                call(client)
        (gap,) = client.gaps
        assert (gap.kind, gap.pilot) == (kind, pilot)
        assert "{id}" in gap.call and gap.meanwhile and "canary" not in str(gap.as_row())
        assert list(client.clone().gaps) == [gap], "a clone shares the collector"


def test_the_cases_above_cause_every_kind() -> None:
    assert {one[3] for one in CAUSED} == set(Kind)
    assert {one[4] for one in CAUSED} == {*PilotKind, None}


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (read_instance, without()),
        (read_instance, refusal(404, "app_instance_not_found")),
        (write_member, refusal(409, "lease_held")),
        (write_member, refusal(412, "precondition_failed")),
        (read_instance, refusal(503, "service_unavailable")),
        (read_members, lambda: httpx.Response(200, json={"items": [], "next_cursor": None})),
    ],
)
def test_what_the_contract_has_is_no_gap(
    call: Callable[[Client], object], answer: Callable[[], httpx.Response]
) -> None:
    with answering(answer) as client:
        with contextlib.suppress(PlatformError):
            call(client)
        assert list(client.gaps) == []


@contextlib.contextmanager
def answering(answer: Callable[[], httpx.Response]) -> Iterator[Client]:
    values: dict[str, Any] = {"base_url": "http://platform.invalid", "project_id": PROJECT, "operator_token": "token"}
    with Client(Settings(**values, api_patience_seconds=0), person=True) as client:
        transport = httpx.MockTransport(lambda _request: answer())
        client._transport._http = httpx.Client(base_url="http://platform.invalid", transport=transport)
        yield client
