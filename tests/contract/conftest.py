"""One real platform process for all contract tests, and a project of its own for each."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from typing import Any

import hvac
import pytest

from runner.act import play_secrets
from runner.act.play_secrets import Access
from runner.loop import tick
from tests import vault_under_test
from tests.contract import shared_runtime
from tests.contract.scenarios import BEGINNINGS, STAGES
from tests.contract.scene import Scene
from tests.contract.shared_runtime import KEY
from tests.contract.simulated_hosts import Hosts
from tests.contract.stage import Stage
from tests.platform_process import Platform, Project, start_platform, stop_platform
from tests.tenant import Tenant, new_tenant
from tests.vault_under_test import VaultUnderTest


def pytest_report_header() -> str:
    return vault_under_test.described()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """A quiet run has no header."""
    if config.get_verbosity() < 0:
        terminalreporter.write_line(vault_under_test.described())


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    started = start_platform(tmp_path_factory.mktemp("platform"))
    yield started
    stop_platform(started)


@pytest.fixture(scope="session")
def some_vault(request: pytest.FixtureRequest) -> Iterator[VaultUnderTest]:
    """The Vault given by VAULT_ADDR, else the sandbox's stand-in; both are prepared by the same calls."""
    made = vault_under_test.given()
    if made is None:
        platform: Platform = request.getfixturevalue("platform")
        made = VaultUnderTest(platform.base_url, (platform.state / "admin.token").read_text().strip())
    with made:
        yield made


@pytest.fixture
def project(platform: Platform) -> Project:
    return platform.project()


@pytest.fixture
def tenant(platform: Platform) -> Tenant:
    """A tenant with a shared runtime that nothing was done for yet."""
    return new_tenant(platform)


@pytest.fixture(autouse=True)
def every_fault_was_met_and_no_answer_broke_the_contract(platform: Platform) -> Iterator[None]:
    yield
    broken = [row for row in platform.control.violations() if row["side"] == "server"]
    if broken:
        # Reported once, by the test that caused it.
        platform.control.forget_violations()
    platform.control.clear_faults()  # an error if no request met one of them
    assert broken == []


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Hosts:
    made = Hosts()

    @contextlib.contextmanager
    def no_access(*_: Any) -> Iterator[Access]:
        yield Access({})

    monkeypatch.setattr(tick, "play", made.play)
    monkeypatch.setattr(play_secrets, "access", no_access)
    return made


@pytest.fixture
def dialable(platform: Platform) -> Project:
    """A project whose allocations have usable connection records."""
    made = platform.project(allocations=8)
    for number, allocation_id in enumerate(made.allocation_ids):
        connection = {"host": f"192.0.2.{number + 1}", "port": 22, "username": "ops", "host_keys": [KEY]}
        platform.control.put_allocation(made.project_id, allocation_id, connection=connection, gpus=0)
    return made


@pytest.fixture
def running(platform: Platform, hosts: Hosts) -> Tenant:
    """A shared runtime that was deployed by the runner."""
    made = new_tenant(platform, deployed=False)
    shared_runtime.dialable(made.owner)
    made.deploy(workers=1)
    shared_runtime.work(made)
    return made


@pytest.fixture
def scene(dialable: Project, hosts: Hosts) -> Scene:
    made = dialable.deploy(workers=2)
    scene = Scene(dialable, hosts, made)
    for _ in range(3):
        scene.tick("first")
    assert dialable.shown(made)["status"] == "running"
    return scene


@pytest.fixture(scope="session")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Queue[Stage]"]:
    """Several stages, each with the saved states in which scenarios begin."""

    def build(number: int) -> Stage:
        stage = Stage(tmp_path_factory.mktemp("stage", numbered=True) / str(number))
        for scenario, name in BEGINNINGS.items():
            stage.play_out(scenario)
            stage.save(name)
        return stage

    free: Queue[Stage] = Queue()
    with ThreadPoolExecutor(STAGES) as pool:
        built = list(pool.map(build, range(STAGES)))
    for stage in built:
        free.put(stage)
    yield free
    for stage in built:
        stage.close()


@pytest.fixture
def vault(platform: Platform, project: Project) -> hvac.Client:
    """The sandbox's Vault, logged in with the project's AppRole."""
    role = platform.control.create_approle(project.project_id)
    client = hvac.Client(url=platform.base_url)
    client.auth.approle.login(role_id=role["role_id"], secret_id=role["secret_id"])
    return client
