"""Records survive a kill of the platform's process."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import hvac
import pytest

from sandbox.platform import process
from tests.platform_process import Platform, start_platform, stop_platform


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Platform]:
    started = start_platform(tmp_path / "state")
    yield started
    stop_platform(started)


def test_killed_platform_comes_back_with_everything_at_the_same_address(own: Platform) -> None:
    project, key = own.project(), str(uuid.uuid4())
    instance = project.deploy()
    base = f"{project.path}/app-instances/{instance['id']}"
    asked = project.operator.post(f"{base}/operations", {"operation": "stop"}, idempotency_key=key).json()
    adapter, role = project.adapter, own.control.create_approle(project.project_id)
    vault = hvac.Client(url=own.base_url)
    vault.auth.approle.login(role_id=role["role_id"], secret_id=role["secret_id"])
    secret_path = f"projects/{project.project_id}/x"
    vault.secrets.kv.v2.create_or_update_secret(path=secret_path, secret={"k": "v"})
    paths = [base, *(f"{base}/{kind}" for kind in ("members", "member-operations", "operations", "events"))]
    before, audit = [adapter.get(path).text for path in paths], own.control.audit()

    assert process.stop(own.state, kill=True)
    assert process.running(own.state) is None
    again = process.start(own.state)

    assert again.base_url == own.base_url
    assert [adapter.get(path).text for path in paths] == before
    assert own.control.audit() == audit
    replay = project.operator.post(f"{base}/operations", {"operation": "stop"}, idempotency_key=key)
    assert (replay.json(), replay.headers["idempotent-replayed"]) == (asked, "true")
    read = vault.secrets.kv.v2.read_secret_version(path=secret_path, raise_on_deleted_version=True)
    assert read["data"]["data"] == {"k": "v"}


def test_started_twice_is_started_once(own: Platform) -> None:
    first = process.running(own.state)
    assert first is not None
    assert process.start(own.state) == first


def test_state_is_readable_by_its_owner_only(own: Platform) -> None:
    assert own.state.stat().st_mode & 0o077 == 0
    for name in ("admin.token", "platform.sqlite"):
        assert (own.state / name).stat().st_mode & 0o077 == 0


def test_stop_does_not_signal_another_process_behind_a_stale_pid_file(tmp_path: Path) -> None:
    (tmp_path / process.PID_FILE).write_text(f"{os.getpid()}\n")
    assert process.stop(tmp_path) is False


def test_a_platform_that_cannot_start_prints_why(tmp_path: Path) -> None:
    broken = tmp_path / "contract.yaml"
    broken.write_text("paths: {}\n")
    with pytest.raises(RuntimeError, match="contract and handlers differ"):
        process.start(tmp_path / "state", contract=broken)
