"""A package source for one call: laid out where root alone reads, gone with the call, however that ends."""

import base64
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.host import package_source
from ansible.module_utils.host import packages as converge_packages
from ansible.module_utils.host.errors import RETRYABLE, AdapterError
from ansible.module_utils.host.ledger import Ledger
from ansible.module_utils.host.packages import ENVIRONMENT, explain

SOURCE: dict[str, Any] = {
    "uri": "http://10.1.2.3:8080/a_b",
    "suite": "trixie",
    "components": ["main", "extra"],
    "signing_key": base64.b64encode(b"key").decode(),
    "private": True,
    "denied": None,
}
LOGIN = "me:canary-5d1e"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host's directories, and an apt that does nothing."""
    for name in ("apt/sources.list.d", "apt/preferences.d", "lists/partial"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "apt/sources.list.d/debian.sources").write_text("Types: deb\n")
    (tmp_path / "lists/10.1.2.3:8080_a%5fb_dists_trixie_InRelease").touch()
    (tmp_path / "lists/deb.debian.org_debian_dists_trixie_InRelease").touch()
    monkeypatch.setattr(package_source, "DIRECTORY", tmp_path / "run")
    monkeypatch.setattr(package_source, "APT_DIRECTORY", tmp_path / "apt")
    monkeypatch.setattr(package_source, "LISTS", tmp_path / "lists")
    monkeypatch.setattr(package_source, "run_apt", lambda *_: "")
    return tmp_path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_apt_sees_the_hosts_own_sources_and_ours_and_only_root_reads_the_login(host: Path) -> None:
    with package_source.package_source(SOURCE, LOGIN):
        run = host / "run"
        assert ENVIRONMENT["APT_CONFIG"] == str(run / "apt.conf")
        assert sorted(one.name for one in (run / "sources.list.d").iterdir()) == [
            "00-gpuaas-slurm.sources",
            "debian.sources",
        ]
        login = run / "auth.conf.d" / "00-gpuaas-slurm.conf"
        assert login.read_text() == "machine http://10.1.2.3:8080/a_b/ login me password canary-5d1e\n"
        assert mode(login) == 0o600
        others = [one for one in run.rglob("*") if one.is_file() and one != login]
        assert others and not [one for one in others if b"canary" in one.read_bytes()]


def test_a_source_that_asks_for_no_login_gets_none(host: Path) -> None:
    with package_source.package_source(SOURCE | {"private": False}, None):
        assert list((host / "run" / "auth.conf.d").iterdir()) == []


def fails() -> None:
    raise AdapterError("package_install_failed", "no", "retryable")


def is_ended() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("end", [lambda: None, fails, is_ended])
def test_nothing_of_it_is_left_however_the_call_ends(host: Path, end: Callable[[], None]) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with package_source.package_source(SOURCE, LOGIN):
            end()
    except (AdapterError, SystemExit):
        pass
    assert not (host / "run").exists() and "APT_CONFIG" not in ENVIRONMENT
    assert [one.name for one in (host / "lists").iterdir() if one.is_file()] == [
        "deb.debian.org_debian_dists_trixie_InRelease"
    ]
    assert signal.getsignal(signal.SIGTERM) == handler


def test_what_a_killed_call_left_is_taken_away_by_the_next(host: Path) -> None:
    (host / "run" / "auth.conf.d").mkdir(parents=True)
    (host / "run" / "auth.conf.d" / "old").write_text("machine")
    with package_source.package_source(None, None):
        assert not (host / "run").exists()


def test_what_is_denied_is_not_installed(host: Path) -> None:
    denied = package_source.package_source({"denied": "no-slurm"}, None)
    with pytest.raises(AdapterError, match=r"denies their installation \(no-slurm\)") as error, denied:
        raise AssertionError("not reached")
    assert (error.value.code, error.value.error_class) == ("artifact_denied", "intervention")


def test_a_source_is_entered_only_if_something_is_missing(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converge_packages, "installed_versions", lambda names: dict.fromkeys(names, "1"))
    monkeypatch.setattr(converge_packages, "restore_policy", lambda: None)
    denied = package_source.package_source({"denied": "no-slurm"}, None)
    ledger: Any = type("Ledger", (), {"note": lambda *_: None})()
    assert converge_packages.converge_packages(["slurmd"], ledger, False, denied) == []


@pytest.mark.parametrize(
    ("output", "code", "klass"),
    [
        (
            "E: Failed to fetch http://10.1.2.3/x/InRelease  401  Unauthorized [IP: 10.1.2.3 80]\n"
            "E: The repository 'http://10.1.2.3/x InRelease' is not signed.",
            "package_source_denied",
            "retryable",
        ),
        ("E: Failed to fetch http://10.1.2.3/x.deb  403  Forbidden", "package_source_denied", "retryable"),
        (
            "W: GPG error: http://10.1.2.3 x InRelease: The following signatures couldn't be verified because the"
            " public key is not available: NO_PUBKEY 1\nE: The repository 'http://10.1.2.3 x InRelease' is not signed.",
            "package_source_untrusted",
            "intervention",
        ),
    ],
)
def test_a_source_that_refuses_or_cannot_be_trusted_has_a_code_of_its_own(output: str, code: str, klass: str) -> None:
    error = explain(output, "reading the package source")
    assert (error.code, error.error_class) == (code, klass)


def test_after_a_failed_install_the_package_index_is_fetched_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Sources that were mended a moment ago are seen by the next try."""
    fetched: list[str] = []

    def apt(_command: list[str], doing: str) -> str:
        if doing.startswith("planning"):
            raise AdapterError("package_not_found", "slurmd is not in any source", RETRYABLE)
        fetched.append(doing)
        return ""

    monkeypatch.setattr(converge_packages, "run_apt", apt)
    monkeypatch.setattr(converge_packages, "INDEX_STAMP", tmp_path / "run" / "index")
    for _ in range(2):
        with pytest.raises(AdapterError, match="not in any source"):
            converge_packages._install(["slurmd"], Ledger("worker/slurmd", tmp_path))
    assert len(fetched) == 2
