"""One real platform process for all contract tests, and a project of its own for each."""

from collections.abc import Iterator

import pytest

from tests.platform_process import Platform, Project, start_platform, stop_platform


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    started = start_platform(tmp_path_factory.mktemp("platform"))
    yield started
    stop_platform(started)


@pytest.fixture
def project(platform: Platform) -> Project:
    return platform.project()


@pytest.fixture(autouse=True)
def no_fault_or_broken_answer_is_left_behind(platform: Platform) -> Iterator[None]:
    yield
    platform.control.clear_faults()
    broken = [row for row in platform.control.violations() if row["side"] == "server"]
    if broken:
        # Told once, by the test that caused it.
        platform.control.forget_violations()
    assert broken == []
