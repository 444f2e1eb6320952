"""The policy of an attachment: what the platform checks by the manifest is what the adapter reads."""

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from runner.intent.errors import IntentError
from runner.slurm.tenant.policy import AppPolicy, read_policy
from tests.platform_process import our_manifest

DECLARED = our_manifest()["shared_runtime"]["attachment_policy"]
# Words for people, and what one of the two notations repeats.
IGNORED = ("$schema", "$defs", "title", "description")


def rules(schema: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    """The rules of a schema, in one notation."""
    if "$ref" in schema:
        schema = {**whole["$defs"][schema["$ref"].rpartition("/")[2]], **schema}
    if "anyOf" in schema:
        (only,) = [one for one in schema["anyOf"] if one != {"type": "null"}]
        schema = {**schema, **only}
    found = {key: value for key, value in schema.items() if key not in (*IGNORED, "$ref", "anyOf")}
    if found.get("default") in (None, []) or isinstance(found.get("default"), dict):
        found.pop("default", None)
    if "enum" in found:
        found.pop("type", None)
        found["enum"] = sorted(found["enum"])
    if "properties" in found:
        found["properties"] = {name: rules(one, whole) for name, one in found["properties"].items()}
    if "items" in found:
        found["items"] = rules(found["items"], whole)
    return found


def test_the_manifest_declares_the_policy_as_the_adapter_reads_it() -> None:
    read = AppPolicy.model_json_schema()
    assert rules(DECLARED, DECLARED) == rules(read, read)


@pytest.mark.parametrize(
    "policy",
    [
        {},
        {"submit": True, "partitions": ["main", "own"], "share_workers": True, "detach_jobs": "cancel"},
        {"limits": {"gpus": 0, "cpus": 1_000_000, "jobs": 1, "wall_minutes": 527_040}},
        {"submit": "yes"},
        {"partitions": ["gold"]},
        {"limits": {"wall_minutes": 0}},
        {"limits": {"gpus": 1_000_001}},
        {"detach_jobs": "never"},
        {"allow": "all"},
    ],
)
def test_a_policy_that_the_platform_takes_is_one_that_the_adapter_reads(policy: dict[str, Any]) -> None:
    try:
        read_policy(policy)
        readable = True
    except IntentError:
        readable = False
    assert Draft202012Validator(DECLARED).is_valid(policy) is readable
