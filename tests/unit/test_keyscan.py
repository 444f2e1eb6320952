"""Keys that hosts show when they are asked for them: how they are read, and which hosts are asked."""

import base64
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.act import keyscan
from runner.intent import host_keys
from tests.unit.key_notes import OTHER, RSA
from tests.unit.worlds import KEY


def test_scanned_keys_are_read_by_address_with_every_type_of_key() -> None:
    lines = [
        "# 10.0.0.2:22 SSH-2.0-OpenSSH_9.2\n",
        f"10.0.0.2 {RSA}\n",
        f"10.0.0.2 {KEY}\n",
        f"10.0.0.2 {OTHER}\n",
        f"[10.0.0.3]:2222 {OTHER}\n",
        f"10.0.0.4 {KEY}\n",
        f"10.0.0.5 {KEY} and more\n",
        f"10.0.0.6 {KEY}",
    ]
    asked = [f"10.0.0.{number}" for number in (2, 3, 5, 6)]
    assert keyscan.parse_keys(lines, asked) == {"10.0.0.2": (KEY, RSA), "10.0.0.3": (OTHER,)}


@given(st.lists(st.text(max_size=80) | st.text(max_size=60).map(lambda text: f"10.0.0.2 ssh-ed25519 {text}\n")))
def test_only_plain_keys_are_read_from_hostile_scan_output(lines: list[str]) -> None:
    for keys in keyscan.parse_keys(lines, ["10.0.0.2"]).values():
        assert host_keys.read_keys(keys) and all(len(key.split()) == 2 for key in keys)


def test_the_runners_own_machine_is_not_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyscan, "_run_keyscan", lambda *_: pytest.fail("it was asked"))
    seen, problems = keyscan.scan({"w": ("127.0.0.1", 22)})
    assert seen == {} and problems["w"].code == "connection_invalid"


def test_hosts_of_one_port_are_scanned_in_one_call_and_those_without_answer_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[list[str], int]] = []

    def answer(addresses: list[str], port: int) -> dict[str, tuple[str, ...]]:
        calls.append((addresses, port))
        return {addresses[0]: (KEY,)}

    monkeypatch.setattr(keyscan, "_run_keyscan", answer)
    seen, problems = keyscan.scan({"a": ("198.51.100.1", 22), "b": ("198.51.100.2", 22), "same": ("198.51.100.1", 22)})
    assert calls == [(["198.51.100.1", "198.51.100.2"], 22)]
    assert {name: one.keys for name, one in seen.items()} == {"a": (KEY,), "same": (KEY,)}
    assert (problems["b"].code, problems["b"].klass) == ("host_unreachable", "retryable")


def test_a_fingerprint_has_the_form_of_ssh_keygen() -> None:
    body = base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0 " + bytes(32)).decode()
    printed = subprocess.run(
        ["ssh-keygen", "-l", "-f", "-"], input=f"ssh-ed25519 {body}", capture_output=True, text=True
    )
    assert host_keys.fingerprint(body) == printed.stdout.split()[1]
