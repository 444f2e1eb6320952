"""Reconfigure where that is enough, restart where it is not: by series and by what changed."""

import pytest
from ansible.module_utils.slurm.reload import changed_settings, how_to_load, pushes_to_workers

BEFORE = {
    "slurm.conf": "ClusterName=a\nMinJobAge=60\nNodeSet=w Feature=x\nPartitionName=m Nodes=w\n",
    "cgroup.conf": "",
}


def changed(old: str, new: str) -> dict[str, str]:
    return {**BEFORE, "slurm.conf": BEFORE["slurm.conf"].replace(old, new)}


def test_settings_that_differ_are_named_whatever_their_spelling_and_order() -> None:
    assert changed_settings("A=1\nB=2 # why\n", "b=2\nC=3\n") == {"a", "c"}
    assert changed_settings("NodeSet=a F=1\nNodeSet=b F=2\n", "NodeSet=b F=3\nNodeSet=a F=1\n") == {"nodeset=b"}


@pytest.mark.parametrize("series", ["22.05", "23.02"])
def test_a_series_that_rereads_in_place_is_always_restarted(series: str) -> None:
    assert how_to_load(series, BEFORE, changed("MinJobAge=60", "MinJobAge=61")) == "restart"
    assert not pushes_to_workers(series)


@pytest.mark.parametrize("series", ["23.11", "24.05", "24.11", "25.05"])
def test_a_series_that_hands_over_to_a_new_process_is_reconfigured(series: str) -> None:
    for after in (
        changed("MinJobAge=60", "MinJobAge=61"),
        changed("MinJobAge=60\n", ""),
        changed("Nodes=w", "Nodes=v"),
    ):
        assert how_to_load(series, BEFORE, after) == "reconfigure"
    assert pushes_to_workers(series)


@pytest.mark.parametrize("line", ["SlurmctldPort=7000", "slurmctldport=7000", "AuthType=auth/slurm"])
def test_what_a_new_process_takes_over_from_the_old_needs_a_restart(line: str) -> None:
    after = {**BEFORE, "slurm.conf": BEFORE["slurm.conf"] + line + "\n"}
    assert how_to_load("24.11", BEFORE, after) == "restart"


def test_another_file_of_the_configuration_needs_a_restart() -> None:
    assert how_to_load("24.11", BEFORE, {**BEFORE, "cgroup.conf": "CgroupPlugin=disabled\n"}) == "restart"


def test_an_untested_series_is_restarted() -> None:
    assert how_to_load("26.05", BEFORE, changed("MinJobAge=60", "MinJobAge=61")) == "restart"
    assert not pushes_to_workers("26.05")
