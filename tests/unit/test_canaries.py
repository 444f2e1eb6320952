"""The search for secrets finds them in every form and place."""

import base64
import gzip
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from sandbox.fleet.keys import KeyPair
from tests.canaries import Canaries, Watcher, here

SECRET = 'k~4"Zr/8+é' + "Qw7!x" * 8
OTHER = "another's secret " * 20


@pytest.fixture
def canaries() -> Canaries:
    made = Canaries()
    made.plant("password", SECRET)
    return made


@pytest.mark.parametrize(
    "written",
    [
        lambda secret: secret,
        lambda secret: secret.encode(),
        lambda secret: json.dumps({"x": secret}),
        lambda secret: json.dumps({"x": secret}, ensure_ascii=False),
        lambda secret: quote(secret, safe=""),
        lambda secret: secret.encode().hex(),
        lambda secret: secret.encode().hex().upper(),
        lambda secret: repr(secret.encode()),
        lambda secret: base64.b64encode(secret.encode()),
        lambda secret: base64.b64encode(f"StoragePass={secret}\n".encode()),
        lambda secret: base64.b64encode(f"StoragePas={secret}\n".encode()),
        lambda secret: base64.b64encode(f"StoragePa={secret}\n".encode()),
        lambda secret: base64.urlsafe_b64encode(f"{secret} and more".encode()),
        lambda secret: f"cut short: {secret[:26]}",
    ],
)
def test_a_secret_is_recognised_however_it_is_written(
    canaries: Canaries, written: Callable[[str], str | bytes]
) -> None:
    assert canaries.seen_in(written(SECRET)) == {"password"}
    assert canaries.seen_in(written(OTHER)) == set()


def test_a_key_in_base64_is_recognised_as_the_bytes_that_a_host_has(canaries: Canaries) -> None:
    key = os.urandom(128)
    canaries.plant("munge_key", base64.b64encode(key).decode())
    assert canaries.seen_in(b"<" + key + b">") == {"munge_key"}
    assert canaries.seen_in(key.hex()) == {"munge_key"}


def test_keys_and_tokens_that_begin_alike_are_distinguished(canaries: Canaries) -> None:
    mine, other = KeyPair.generate().private, KeyPair.generate().private
    canaries.plant("ssh_key", mine)
    canaries.plant("access_token", "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhZGFwdGVyIn0.c2lnbmF0dXJlLW9mLW1pbmU")
    assert canaries.seen_in(json.dumps(mine)) == {"ssh_key"}
    assert canaries.seen_in(other) == set()
    assert canaries.seen_in("eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhZGFwdGVyIn0.c2lnbmF0dXJlLW9mLW90aGVy") == set()


def test_what_is_too_short_to_be_recognised_is_not_planted(canaries: Canaries) -> None:
    with pytest.raises(AssertionError, match="too short"):
        canaries.plant("pin", "1234")


def child(argument: str, **environment: str) -> None:
    """A process that runs for a moment only."""
    moment = [sys.executable, "-c", "import time; time.sleep(0.4)", argument]
    subprocess.run(moment, env=environment, check=True)


def test_a_child_with_a_secret_among_its_arguments_or_in_its_environment_is_caught(canaries: Canaries) -> None:
    # Of this run alone: watchers of other tests see this child too.
    token = canaries.plant("token", f"hvs.{secrets.token_hex(12)}")
    with Watcher() as watcher:
        child(f"--token={token}")
        child("", VAULT_TOKEN=token)
        child("", VAULT_TOKEN="hvs.another")
    caught = watcher.leaks(canaries)
    assert len(caught) == 2
    assert caught[0].startswith("token in the arguments of") and caught[1].startswith("token in the environment of")


def test_a_file_that_was_there_for_a_moment_is_caught(canaries: Canaries, tmp_path: Path) -> None:
    with Watcher(tmp_path) as watcher:
        (tmp_path / "deep").mkdir()
        file = tmp_path / "deep" / "job_event.json"
        file.write_text(json.dumps({"res": SECRET}))
        deadline = time.monotonic() + 20
        while not watcher.leaks(canaries) and time.monotonic() < deadline:
            time.sleep(0.01)
        file.unlink()
    assert watcher.leaks(canaries) == [f"password in the file {file}"]


def test_a_file_that_is_left_is_found_packed_or_not_and_by_its_name_too(canaries: Canaries, tmp_path: Path) -> None:
    key = base64.b64encode(os.urandom(128)).decode()
    canaries.plant("munge_key", key)
    (tmp_path / "clean").write_text(OTHER)
    (tmp_path / "clean.gz").write_bytes(gzip.compress(OTHER.encode()))
    assert canaries.on_disk(here, str(tmp_path)) == {}
    (tmp_path / "munge.key").write_bytes(base64.b64decode(key))
    (tmp_path / "log").write_text(f"a line\npassword: {quote(SECRET)}\n")
    (tmp_path / "log.1.gz").write_bytes(gzip.compress(f"a line\n{SECRET}\n{key}\n".encode()))
    (tmp_path / SECRET.replace("/", "")).mkdir()
    canaries.plant("password", SECRET.replace("/", ""))
    assert canaries.on_disk(here, str(tmp_path)) == {
        "munge_key": [str(tmp_path / "log.1.gz"), str(tmp_path / "munge.key")],
        "password": sorted(str(tmp_path / one) for one in ("log", "log.1.gz", SECRET.replace("/", ""))),
    }


def call(path: str, **parts: str) -> dict[str, object]:
    whole = {"method": "POST", "status": 201, "fault": None, "query": "", "body": "", "answer": ""}
    return {**whole, "path": path, **parts}


def test_a_secret_in_a_body_is_found_unless_the_call_is_there_to_carry_it(canaries: Canaries) -> None:
    token, wrapping = "x.y.l3tm31n-s1gnatur3-0f-a-t0ken", "hvs.u7Gd2kLq9XcV5bN1mZ8w"
    answers = [
        call("/api/v1/auth/service-account/token", answer=json.dumps({"access_token": token})),
        call("/api/v1/projects/p/access-credentials/c/deliveries", answer=json.dumps({"wrapping_token": wrapping})),
        call("/v1/auth/approle/login", answer=json.dumps({"auth": {"client_token": "hvs.5bN1mZ8wu7Gd2kLq9XcV"}})),
        call("/v1/secret/data/x", body=SECRET),
    ]
    canaries.plant_from(answers)
    assert set(canaries.pieces) == {"password", "access_token", "wrapping_token", "client_token"}
    assert canaries.in_calls(answers[:2] + answers[3:]) == []
    assert canaries.in_calls([call("/api/v1/x", body=SECRET), call("/api/v1/x", query=f"q={token}")]) == [
        "password in the body of POST /api/v1/x",
        "access_token in the query of POST /api/v1/x",
    ]
    assert canaries.in_calls([call("/api/v1/auth/service-account/token", body=token)]) != []
