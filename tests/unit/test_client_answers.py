"""Answers that are not what they should be: an error of the platform's, never a crash and never a quoted secret."""

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from runner.model.errors import PlatformError, Unavailable
from runner.platform import records
from runner.platform.auth import TokenSource
from runner.platform.client import Client
from runner.settings import Settings
from tests.unit.worlds import PROJECT


def client(answer: Callable[[], httpx.Response]) -> Client:
    values: dict[str, Any] = {"base_url": "http://platform.invalid", "project_id": PROJECT, "operator_token": "token"}
    settings = Settings(**values | {"api_patience_seconds": 0})
    made = Client(settings, person=True)
    made._transport._http = httpx.Client(
        base_url="http://platform.invalid", transport=httpx.MockTransport(lambda _request: answer())
    )
    return made


@pytest.mark.parametrize(
    "answer",
    [
        lambda: httpx.Response(200, content=b"null"),
        lambda: httpx.Response(200, content=b'"ok"'),
        lambda: httpx.Response(200, content=b""),
        lambda: httpx.Response(200, json={"items": None}),
        lambda: httpx.Response(200, json={"items": [], "next_cursor": "the same"}),
        lambda: httpx.Response(200, json={"items": [], "next_cursor": {"a": 1}}),
        lambda: httpx.Response(200, json={"items": [], "next_cursor": 7}),
        lambda: httpx.Response(200, json={"items": [], "next_cursor": str(uuid4())}),
        lambda: httpx.Response(200, content=b"[" * 100_000),
        lambda: httpx.Response(200, content=b'{"items": [NaN]}'),
        lambda: httpx.Response(200, content=b'{"items": [' + b"9" * 5000 + b"]}"),
        lambda: httpx.Response(200, content=b"\xff\xfe\x00"),
    ],
)
def test_a_malformed_list_is_a_platform_error(
    answer: Callable[[], httpx.Response], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MAX_PAGES", 20)
    with pytest.raises(PlatformError) as error:
        client(answer).instances(app_slug="x")
    assert error.value.code == "bad_answer"


@pytest.mark.parametrize(
    "answer",
    [
        lambda: httpx.Response(503, json={}, headers={"Retry-After": "nan"}),
        lambda: httpx.Response(429, json={}, headers={"Retry-After": "-inf"}),
        lambda: httpx.Response(200, content=b"xx", headers={"content-encoding": "gzip"}),
    ],
)
def test_headers_that_make_no_sense_are_an_error_of_the_platform(answer: Callable[[], httpx.Response]) -> None:
    with pytest.raises(Unavailable):
        client(answer).instances(app_slug="x")


@pytest.mark.parametrize(
    ("raw", "seen"),
    [
        ({"app_slug": "other-app", "status": "deleted"}, ("other-app", "deleted")),
        ({"app_slug": 7, "status": ["deleted"]}, (None, None)),
        ({}, (None, None)),
    ],
)
def test_app_and_status_of_an_unreadable_record_are_kept(raw: Any, seen: Any) -> None:
    (odd,) = client(lambda: httpx.Response(200, json={"items": [{"id": "i-1", **raw}]})).instances().unreadable
    assert (odd.id, odd.app_slug, odd.status) == ("i-1", *seen)


def test_the_error_of_a_malformed_delivery_does_not_quote_the_token() -> None:
    body = {"vault_addr": "http://vault", "wrapping_token": "hvs.CANARY", "username": "x"}
    with pytest.raises(PlatformError) as error:
        client(lambda: httpx.Response(201, json=body)).deliver_credential(UUID(int=9))
    assert "CANARY" not in str(error.value)


def test_a_lone_surrogate_becomes_a_question_mark() -> None:
    listed = b'[{"id": "00000000-0000-0000-0000-000000000005", "status": "\\ud800 new"}]'
    (read,) = client(lambda: httpx.Response(200, content=listed)).allocations()
    assert read.status == "? new"


@pytest.mark.parametrize("token", ["a\nb", "\u212a", "x y", ""])
def test_a_malformed_wrapping_token_is_refused(token: str) -> None:
    body = {"vault_addr": "http://vault", "wrapping_token": token, "expires_at": "2026-01-02T03:04:05Z"}
    with pytest.raises(PlatformError):
        client(lambda: httpx.Response(201, json=body)).deliver_credential(UUID(int=9))


@pytest.mark.parametrize("lasts", [None, "soon", [], float(10**9), -5, True])
def test_a_token_with_an_invalid_lifetime_is_used(lasts: Any) -> None:
    made = client(lambda: httpx.Response(200, json={"access_token": "t", "expires_in": lasts, "items": []}))
    account = {"service_account_id": UUID(int=3), "key_id": "k", "client_secret": "s"}
    values: dict[str, Any] = {"base_url": "http://platform.invalid", "project_id": PROJECT, **account}
    made._tokens = TokenSource(Settings(**values), person=False)
    assert made.instances() == []
