"""Declared users are read strictly, and a play gets only checked values."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from runner.act import inventory
from runner.cli import requests
from runner.intent.errors import IntentError
from runner.model import errors, names
from runner.slurm.app import SLURM
from runner.slurm.cluster_config import read_config
from tests.unit.worlds import allocation, controller, instance

ADA = {"name": "ada", "uid": 2001}
KEY = "ssh-ed25519 " + "A" * 68
SCHEMA = yaml.safe_load((Path(__file__).parents[2] / "app" / "manifest.yaml").read_text())["deploy_input"]


def variables(*users: dict[str, Any]) -> dict[str, Any]:
    declared = instance(config={"users": list(users)})
    tree, _ = inventory.build(SLURM, declared, [], {})
    found: dict[str, Any] = tree["all"]["children"][names.instance_group(declared)]["vars"]
    return found


def test_a_user_has_its_own_group_and_the_default_account_by_default() -> None:
    found = variables({"name": "ben", "uid": 2002, "gid": 3000, "account": "physics", "shell": "/bin/sh"}, ADA)
    assert found["slurm_users"] == [
        {"name": "ada", "uid": 2001, "gid": 2001, "shell": "/bin/bash"},
        {"name": "ben", "uid": 2002, "gid": 3000, "shell": "/bin/sh"},
    ]
    assert found["slurm_accounts"] == [{"name": "ada", "account": "default"}, {"name": "ben", "account": "physics"}]


def test_keys_are_given_only_for_users_who_declare_some() -> None:
    found = variables(
        ADA, {"name": "ben", "uid": 2002, "ssh_keys": [KEY]}, {"name": "eve", "uid": 2003, "ssh_keys": []}
    )
    assert found["slurm_user_keys"] == {"ben": [KEY], "eve": []}


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "root"},
        {"name": "slurm"},
        {"name": "munge"},
        {"name": "mysql"},
        {"name": "ops"},
        {"name": "systemd-network"},
        {"name": "Ada"},
        {"name": "ada lovelace"},
        {"name": "-ada"},
        {"name": "ada\n"},
        {"name": "{{ 7*7 }}"},
        {"name": "a" * 40},
        {"uid": 0},
        {"uid": 999},
        {"uid": 60000},
        {"uid": "2001"},
        {"uid": True},
        {"gid": 27},
        {"account": "root"},
        {"account": "a b"},
        {"account": "x,y"},
        {"shell": "/bin/evil"},
        {"ssh_keys": ['command="rm -rf /" ' + KEY]},
        {"ssh_keys": ["not a key"]},
        {"ssh_keys": [KEY + "\n" + KEY]},
        {"sudo": True},
    ],
)
def test_an_unsafe_user_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(IntentError) as raised:
        read_config(instance(config={"users": [ADA | wrong]}))
    assert raised.value.code == "config_invalid"


@pytest.mark.parametrize(
    ("second", "what"),
    [
        ({"name": "ada", "uid": 2002}, "name ada"),
        ({"name": "ben", "uid": 2001}, "uid 2001"),
        ({"name": "ben", "uid": 2002, "gid": 2001}, "gid 2001"),
    ],
)
def test_two_users_share_no_name_and_no_number(second: dict[str, Any], what: str) -> None:
    with pytest.raises(IntentError, match=what):
        read_config(instance(config={"users": [ADA, second]}))


def test_users_of_an_unreadable_config_are_unknown_and_not_empty() -> None:
    found = variables(ADA | {"uid": 1})
    assert not {"slurm_users", "slurm_accounts", "slurm_user_keys"} & set(found)


def test_the_login_user_of_a_host_cannot_be_declared() -> None:
    place = allocation(1)
    place.connection["username"] = "cloud"  # type: ignore[index]
    declared = instance(config={"users": [{"name": "cloud", "uid": 2001}]})
    _, problems = inventory.build(SLURM, declared, [controller()], {place.id: place})
    assert [problem.code for problem in problems.values()] == ["config_invalid"]


@pytest.mark.parametrize("user", [ADA, ADA | {"gid": 3000, "account": "x1", "shell": "/bin/sh", "ssh_keys": [KEY]}])
def test_the_manifest_accepts_what_the_runner_accepts(user: dict[str, Any]) -> None:
    read_config(instance(config={"users": [user]}))
    placement = {"mode": "split", "controller_allocation_id": "x", "worker_allocation_ids": []}
    jsonschema.validate({"placement_intent": placement, "config": {"users": [user]}}, SCHEMA)


def test_a_file_of_users_is_checked_before_the_request(tmp_path: Path) -> None:
    listed = tmp_path / "users.json"
    listed.write_text(json.dumps([ADA]))
    assert requests.read_users(listed) == [ADA]
    for text in ("[", json.dumps([ADA, ADA]), json.dumps({"name": "ada"})):
        listed.write_text(text)
        with pytest.raises(errors.RequestError):
            requests.read_users(listed)
    with pytest.raises(errors.RequestError):
        requests.read_users(tmp_path / "absent")
