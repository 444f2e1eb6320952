"""Answers that are not what they should be: an error of the platform's, never a crash and never a quoted secret."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from runner.model.errors import PlatformError, Rejected, Unavailable
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


PEM = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        (ed25519.Ed25519PrivateKey.generate(), "EdDSA"),
        (ec.generate_private_key(ec.SECP256R1()), "ES256"),
        (rsa.generate_private_key(65537, 2048), "RS256"),
    ],
)
def test_a_login_is_signed_where_the_contract_has_it_so(tmp_path: Path, key: Any, algorithm: str) -> None:
    sent: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(200, json={"access_token": "t", "expires_in": 600, "items": []})

    with signing(tmp_path, key.private_bytes(*PEM, serialization.NoEncryption()), answer) as made:
        assert made.instances() == []
    body = json.loads(sent[0].content)
    assert set(body) == {"grant_type", "assertion"}
    claims = jwt.decode(
        body["assertion"],
        key.public_key(),
        [algorithm],
        audience="http://platform.invalid/api/v1/auth/service-account/token",
    )
    assert claims["iss"] == claims["sub"] == str(UUID(int=3)) and claims["exp"] - claims["iat"] == 60
    assert jwt.get_unverified_header(body["assertion"])["kid"] == "k"
    assert sent[1].headers["authorization"] == "Bearer t"


@pytest.mark.parametrize(
    ("content", "mode"),
    [
        (b"canary", 0o600),
        (b"", 0o600),
        (ec.generate_private_key(ec.SECP384R1()).private_bytes(*PEM, serialization.NoEncryption()), 0o600),
        (ed25519.Ed25519PrivateKey.generate().private_bytes(*PEM, serialization.BestAvailableEncryption(b"x")), 0o600),
        (ed25519.Ed25519PrivateKey.generate().private_bytes(*PEM, serialization.NoEncryption()), 0o644),
    ],
)
def test_a_private_key_that_cannot_be_used_is_named_and_not_quoted(tmp_path: Path, content: bytes, mode: int) -> None:
    with signing(tmp_path, content, lambda _: httpx.Response(500), mode) as made:
        with pytest.raises(Rejected, match="GPUAAS_PRIVATE_KEY_FILE") as error:
            made.instances()
        assert "canary" not in str(error.value) and error.value.__suppress_context__


@contextlib.contextmanager
def signing(
    directory: Path, key: bytes, answer: Callable[[httpx.Request], httpx.Response], mode: int = 0o600
) -> Iterator[Client]:
    """A client whose contract takes a signed assertion."""
    file, mapping = directory / "key.pem", directory / "contract.toml"
    file.write_bytes(key)
    file.chmod(mode)
    mapping.write_text('[login]\nkind = "signed_assertion"\n')
    values: dict[str, Any] = {"service_account_id": UUID(int=3), "key_id": "k", "private_key_file": file}
    values |= {"base_url": "http://platform.invalid", "project_id": PROJECT, "contract": mapping}
    with Client(Settings(**values)) as made:
        transport = httpx.MockTransport(answer)
        made._transport._http = httpx.Client(base_url="http://platform.invalid", transport=transport)
        yield made


@pytest.mark.parametrize("lasts", [None, "soon", [], float(10**9), -5, True])
def test_a_token_with_an_invalid_lifetime_is_used(lasts: Any) -> None:
    made = client(lambda: httpx.Response(200, json={"access_token": "t", "expires_in": lasts, "items": []}))
    account = {"service_account_id": UUID(int=3), "key_id": "k", "client_secret": "s"}
    values: dict[str, Any] = {"base_url": "http://platform.invalid", "project_id": PROJECT, **account}
    made._tokens = TokenSource(Settings(**values), person=False)
    assert made.instances() == []
