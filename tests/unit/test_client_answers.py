"""Answers that are not what they should be: an error of the platform's, never a crash and never a quoted secret."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import httpx
import pytest

from runner.platform.client import Client
from runner.platform.errors import PlatformError
from runner.settings import Settings
from tests.unit.worlds import PROJECT


def client(answer: Callable[[], httpx.Response]) -> Client:
    values: dict[str, Any] = {"base_url": "http://platform.invalid", "project_id": PROJECT, "operator_token": "token"}
    settings = Settings(**values | {"api_patience_seconds": 0})
    made = Client(settings, person=True)
    made._http = httpx.Client(
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
        lambda: httpx.Response(200, content=b"xx", headers={"content-encoding": "gzip"}),
    ],
)
def test_a_list_that_is_none_is_an_error_of_the_platform(answer: Callable[[], httpx.Response]) -> None:
    with pytest.raises(PlatformError):
        client(answer).instances(app_slug="x")


def test_a_malformed_delivery_does_not_show_its_wrapping_token() -> None:
    body = {"vault_addr": "http://vault", "wrapping_token": "hvs.CANARY", "username": "x"}
    with pytest.raises(PlatformError) as error:
        client(lambda: httpx.Response(201, json=body)).deliver_credential(UUID(int=9), correlation_id="c")
    assert "CANARY" not in str(error.value)
