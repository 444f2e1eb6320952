"""The contract file, the manifest and the list of action keys agree with each other."""

from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from tests.platform_process import ACTION_KEYS_FILE, ROOT, our_manifest

CONTRACT = yaml.safe_load((ROOT / "contract" / "openapi.yaml").read_text())
OPERATIONS: dict[str, Any] = {
    operation["operationId"]: operation
    for item in CONTRACT["paths"].values()
    for method, operation in item.items()
    if method != "parameters"
}
A = "11111111-1111-4111-8111-111111111111"
TOKEN_EXCHANGES = {"issueServiceAccountToken", "issueSharedRuntimeOperatorToken"}
B = "22222222-2222-4222-8222-222222222222"


def test_contract_is_valid_openapi_3_1() -> None:
    assert CONTRACT["openapi"].startswith("3.1")
    validate(CONTRACT)


def test_every_operation_is_marked_as_stated_or_assumed() -> None:
    assert {op["x-gpuaas-source"] for op in OPERATIONS.values()} == {"stated", "assumed"}


def test_every_write_but_a_token_exchange_demands_an_idempotency_key() -> None:
    def keyed(operation: Any) -> bool:
        return any(part.get("$ref", "").endswith("/IdempotencyKey") for part in operation.get("parameters", []))

    writes = {name for name in OPERATIONS if not name.startswith(("get", "list"))}
    assert {name for name in OPERATIONS if keyed(OPERATIONS[name])} == writes - TOKEN_EXCHANGES


def test_request_bodies_take_no_unknown_field() -> None:
    schemas = CONTRACT["components"]["schemas"]
    bodies = [
        operation["requestBody"]["content"]["application/json"]["schema"]
        for operation in OPERATIONS.values()
        if "requestBody" in operation
    ]
    resolved = [schemas[body["$ref"].rpartition("/")[2]] if "$ref" in body else body for body in bodies]
    assert [body for body in resolved if body.get("additionalProperties") is not False] == []


# Action keys that the contract itself names.
OF_THE_CONTRACT = {name: op["x-gpuaas-action-key"] for name, op in OPERATIONS.items() if "x-gpuaas-action-key" in op}
# These need no action key of the manifest: the exchanges no token at all, getMe any valid token.
WITHOUT_ACTION_KEY = TOKEN_EXCHANGES | {"getMe"} | set(OF_THE_CONTRACT)


def test_manifest_names_an_action_key_for_every_call_that_needs_one() -> None:
    assert set(our_manifest()["action_keys"]) == set(OPERATIONS) - WITHOUT_ACTION_KEY


def test_published_action_keys_are_those_the_manifest_asks_for() -> None:
    needed = our_manifest()["action_keys"] | OF_THE_CONTRACT
    for entries in yaml.safe_load(ACTION_KEYS_FILE.read_text()).values():
        for entry in entries:
            assert entry["reason"]
            assert {needed[call] for call in entry["calls"] if call in needed} == {entry["key"]}


@pytest.mark.parametrize(
    ("intent", "accepted"),
    [
        ({"mode": "split", "controller_allocation_id": A, "worker_allocation_ids": [B]}, True),
        ({"mode": "split", "controller_allocation_id": A, "worker_allocation_ids": []}, True),
        ({"mode": "same_node", "controller_allocation_id": A, "worker_allocation_ids": [A]}, True),
        ({"mode": "same_node", "controller_allocation_id": A, "worker_allocation_ids": []}, False),
        ({"mode": "split", "controller_allocation_id": A, "worker_allocation_ids": [B, B]}, False),
        ({"mode": "split", "controller_allocation_id": "not-an-id", "worker_allocation_ids": []}, False),
        ({"mode": "anywhere", "controller_allocation_id": A, "worker_allocation_ids": []}, False),
        ({"mode": "split", "worker_allocation_ids": [A]}, False),
        ({"mode": "split", "controller_allocation_id": A, "worker_allocation_ids": [], "more": 1}, False),
    ],
)
def test_manifest_takes_only_explicit_placement(intent: dict[str, Any], accepted: bool) -> None:
    schema = our_manifest()["deploy_input"]
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    assert validator.is_valid({"placement_intent": intent, "config": {}}) is accepted
