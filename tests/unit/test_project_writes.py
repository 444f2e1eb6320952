"""Shared runtimes change no byte that a project's cluster writes, or gives to its plays."""

from tests.unit.project_writes import FIXTURE, as_text, writes


def test_every_write_and_play_of_a_projects_cluster_is_as_it_was_before() -> None:
    assert as_text(writes()) == FIXTURE.read_text()
