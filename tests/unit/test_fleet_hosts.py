"""Names, specs and keys of hosts."""

import stat
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import pytest

from sandbox.fleet import hosts, places
from sandbox.fleet.errors import CannotRunError
from sandbox.fleet.hosts import HostSpec, checked_name
from sandbox.fleet.keys import KeyPair


@pytest.mark.parametrize("text", ["gs-1=bookworm", "w=trixie:warm"])
def test_a_host_spec_reads_back_as_it_was_written(text: str) -> None:
    assert str(HostSpec.parse(text)) == text


@pytest.mark.parametrize("text", ["gs-1", "gs-1=", "=bookworm", "gs-1=bookworm:cold", "gs-1=bookworm:", "GS=bookworm"])
def test_an_invalid_host_spec_is_refused(text: str) -> None:
    with pytest.raises(CannotRunError):
        HostSpec.parse(text)


@pytest.mark.parametrize("name", ["", "-a", "a-", "a--b", "A", "a/b", "..", "a b", "a;b", "ä", "a" * 41, "1a", "a\n"])
def test_a_name_that_is_not_a_safe_hostname_is_refused(name: str) -> None:
    with pytest.raises(CannotRunError):
        checked_name(name)


def test_key_pairs_differ_and_can_be_loaded_again() -> None:
    first, second = KeyPair.generate(), KeyPair.generate()
    assert first.public != second.public
    assert KeyPair.load(first.private.encode()).public == first.public


def test_a_private_key_is_not_in_the_repr_of_its_pair() -> None:
    pair = KeyPair.generate()
    assert "PRIVATE" not in repr(pair)


def test_only_root_can_read_the_private_host_key() -> None:
    stream = hosts._first_files(HostSpec("a", "bookworm"), KeyPair.generate(), "ssh-ed25519 AAAA")
    with tarfile.open(fileobj=BytesIO(stream)) as tar:
        modes = {entry.name: (entry.mode, entry.uid) for entry in tar.getmembers()}
    assert modes["etc/ssh/ssh_host_ed25519_key"] == (0o600, 0)


def test_writing_a_private_file_makes_it_unreadable_for_others(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "secret"
    places.write_private(path, "one")
    path.chmod(0o644)
    places.write_private(path, "two")
    assert path.read_text() == "two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_lock_has_one_holder_at_a_time_and_leaves_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    inside, crowds = [], []

    def enter(number: int) -> None:
        with places.locked("name"):
            inside.append(number)
            time.sleep(0.005)  # time for another thread to enter, if the lock fails
            crowds.append(list(inside))
            inside.remove(number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(enter, range(24)))
    assert [len(crowd) for crowd in crowds] == [1] * 24
    assert list(places.state_root().iterdir()) == []
