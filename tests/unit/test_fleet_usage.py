"""Hosts and CPU time that the fleet counts for the timing table."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandbox.fleet import cgroups, usage
from sandbox.fleet.hosts import Host, Hosts, HostSpec
from sandbox.fleet.runtime import Podman


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(usage.VARIABLE, str(tmp_path / "usage"))
    return tmp_path / "usage"


def lines(file: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_each_event_is_one_line_with_many_writers(file: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: usage.record(host=number), range(200)))
    assert sorted(line["host"] for line in lines(file)) == list(range(200))


def test_nothing_is_counted_unless_a_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(usage.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    usage.record(host=1)
    assert list(tmp_path.iterdir()) == []


def test_hosts_are_counted_when_made_and_their_cpu_when_removed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped host has no cgroup, so its CPU time is left out."""
    monkeypatch.setattr(Podman, "run", lambda *_, **__: "")
    monkeypatch.setattr(cgroups, "cpu_seconds", lambda *which: {(7, "first"): 12.3456}.get(which))
    fleet = Hosts("name", Podman("runc", ()))
    spec = HostSpec("gs-1", "bookworm")
    fleet._create(spec, "image", "ssh-ed25519 AAAA")
    assert lines(file) == [{"host": 1}]
    there = [Host(spec, machine, "c", "running", "", "", pid) for machine, pid in (("first", 7), ("second", 0))]
    monkeypatch.setattr(fleet, "current", lambda: there)
    monkeypatch.setattr(Podman, "networks", lambda *_: [])
    fleet.remove_all()
    assert lines(file)[1:] == [{"host_cpu": 12.346}]
