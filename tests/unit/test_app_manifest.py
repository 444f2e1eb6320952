"""A manifest is checked without a platform: each rule finds what breaks it, and ours breaks none."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from runner.cli.catalog import _calls
from runner.intent import manifest
from tests.repository import ROOT

SCHEMA = json.loads((ROOT / "contract" / "manifest.schema.json").read_text())
CALLS = _calls(ROOT / "contract" / "openapi.yaml")
OURS = yaml.safe_load((ROOT / "app" / "manifest.yaml").read_text())
Doc = dict[str, Any]


def problems(change: Callable[[Doc], object]) -> list[str]:
    changed = copy.deepcopy(OURS)
    change(changed)
    return manifest.problems(changed, SCHEMA, CALLS)


def test_our_manifest_has_no_problem() -> None:
    assert problems(lambda _: None) == []
    assert len(CALLS) > 50 and "publishAppVersion" not in CALLS and "getMe" not in CALLS


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda it: it.pop("version"), "'version' is a required property"),
        (lambda it: it.update(more=1), "'more' was unexpected"),
        (lambda it: it.update(operating_mode="lonely"), "operating_mode: 'lonely' is not one of"),
        (lambda it: it.update(version="1 0"), "version: '1 0' does not match"),
        (lambda it: it["deploy_input"].update(type=7), "deploy_input: not a JSON Schema"),
        (
            lambda it: it["shared_runtime"]["attachment_policy"].update(type=7),
            "shared_runtime.attachment_policy: not a JSON Schema",
        ),
        (
            lambda it: it["first_member"].update(component_key="captain"),
            "first_member: component 'captain' is not in member_operations",
        ),
        (
            lambda it: it["first_member"].update(allocation_from="placement_intent.ship"),
            "first_member.allocation_from: deploy_input has no placement_intent.ship",
        ),
        (
            lambda it: it["first_member"].update(allocation_from="config.cluster_name"),
            "first_member.allocation_from: deploy_input does not require config.cluster_name",
        ),
        (
            lambda it: it["seed_operations"][0].update(operation="hire"),
            "seed_operations.0: 'hire' is not among the member_operations of 'worker'",
        ),
        (
            lambda it: it["shared_runtime"]["seed_operations"][0].update(allocations_from="config.x"),
            "shared_runtime.seed_operations.0.allocations_from: deploy_input has no config.x",
        ),
        (
            lambda it: it["shared_runtime"]["withdrawal"].update(component_key="controller"),
            "shared_runtime.withdrawal: 'remove' is not among the member_operations of 'controller'",
        ),
        (lambda it: it["action_keys"].pop("listMembers"), "action_keys: no key for listMembers"),
        (lambda it: it["action_keys"].update(getMe="x"), "action_keys: getMe is not a call of the contract"),
    ],
)
def test_each_rule_names_the_place_that_breaks_it(change: Callable[[Doc], object], says: str) -> None:
    found = problems(change)
    assert any(says in one for one in found), found


@pytest.mark.parametrize("odd", [None, [], "text", 7])
def test_what_is_not_a_manifest_at_all_is_one_problem(odd: Any) -> None:
    (problem,) = manifest.problems(odd, SCHEMA, CALLS)
    assert problem.startswith("manifest: ") and "is not of type 'object'" in problem
