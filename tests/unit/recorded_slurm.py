"""Output of Slurm's commands, recorded on real clusters of both supported versions."""

from pathlib import Path

import pytest

RECORDED = Path(__file__).parent / "fixtures" / "slurm"
VERSIONS = {"22.05": ("bw1", "bw2"), "24.11": ("tw1", "tw2")}  # with the names of their nodes
each_version = pytest.mark.parametrize("version", VERSIONS)


def recorded(version: str, situation: str, what: str) -> str:
    return (RECORDED / version / situation / what).read_text()
