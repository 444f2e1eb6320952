"""A cluster of one project has the same files and plays as before clusters could be shared, byte for byte."""

import hashlib
import json
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from ansible.module_utils.slurm.conf import Partition, render

ROLES = Path(__file__).resolve().parents[2] / "roles"
# Recorded before the first line for shared clusters was written.
RECORDED = json.loads((Path(__file__).parent / "fixtures" / "one_project.json").read_text())


def variables(role: str, *files: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for file in files:
        found |= yaml.safe_load((ROLES / role / file).read_text())
    return found


def slurm_conf(system: str, shared: bool) -> str:
    """As the role's task puts it together, with the values of a host filled in."""
    given = variables("slurmctld", "defaults/main.yml", "vars/main.yml", f"vars/{system}.yml")
    managed = {**given["slurmctld_settings"], **given["slurmctld_system_settings"]}
    managed |= given["slurmctld_process_settings"]["linuxproc"]
    if shared:
        managed |= given["slurmctld_shared_settings"]
    managed |= {"ClusterName": "gs0", "SlurmctldHost": "gs-1(10.0.0.1)"}
    partitions = [Partition(**one) for one in given["slurmctld_partitions"]]
    return render(managed, given["slurmctld_default_settings"], partitions)


def slurmdbd_conf(private: str) -> str:
    text = (ROLES / "slurmdbd" / "templates" / "slurmdbd.conf.j2").read_text()
    names = {"database": "d", "password": "p", "database_user": "u", "private_data": private}
    # As Ansible renders it.
    environment = jinja2.Environment(trim_blocks=True, keep_trailing_newline=True, autoescape=False)
    return environment.from_string(text).render({f"slurmdbd_{key}": value for key, value in names.items()})


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("system", ["Debian-12", "Debian-13"])
def test_slurm_conf_of_one_project_is_as_it_was(system: str) -> None:
    assert digest(slurm_conf(system, shared=False)) == RECORDED[system]
    assert "PrivateData" in slurm_conf(system, shared=True)


def test_slurmdbd_conf_of_one_project_is_as_it_was() -> None:
    assert digest(slurmdbd_conf("")) == RECORDED["slurmdbd"]
    assert "PrivateData=users\n" in slurmdbd_conf("users")


def test_the_unit_of_one_project_has_no_list_to_apply() -> None:
    task = next(
        one
        for one in yaml.safe_load((ROLES / "slurmctld" / "tasks" / "main.yml").read_text())
        if one["name"] == "Run slurmctld"
    )
    dropin = task["converge_host"]["units"][0]["dropin"]
    environment = jinja2.Environment(autoescape=False)
    given = {"slurmctld_dropin": "A\n", "slurmctld_shared_dropin": "B\n"}
    assert environment.from_string(dropin).render(given, slurmctld_shared=False) == "A\n"
    assert environment.from_string(dropin).render(given, slurmctld_shared=True) == "A\nB\n"


def test_a_partition_without_a_list_has_the_options_it_had() -> None:
    assert Partition("main", "workers", "worker").options() == {
        "Default": False,
        "MaxTime": "INFINITE",
        "Nodes": "workers",
        "State": "UP",
    }
    listed = Partition("main", "workers", "worker", account_list=True, default_time="01:00:00").options()
    assert (listed["AllowAccounts"], listed["DefaultTime"]) == ("gpuaas_closed", "01:00:00")
