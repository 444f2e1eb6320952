"""Generated requests, good and bad, against every operation: each answer keeps to the contract."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.platform_process import ROOT, Platform, Project, start_platform, stop_platform
from tests.tenant import new_tenant

schema = schemathesis.openapi.from_path(ROOT / "contract" / "openapi.yaml")
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]

# What has a schema of its own under a runtime's path. The other calls there have the handlers and the schemas of calls
# on an instance: a few requests suffice, since the explicit ones are a hundred for each call.
ONLY_ON_RUNTIMES = ("createSharedRuntime", "createAttachment", "updateAttachment", "createWorkerOperation")


def repeats_a_call_on_an_instance(context: Any) -> bool:
    raw = context.operation.definition.raw
    return context.operation.path.startswith("/orgs/") and raw["operationId"] not in ONLY_ON_RUNTIMES


class Target:
    """A platform of its own: generated requests break the contract on purpose, and must not count elsewhere."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self.project: Project = platform.project()
        self.tenant = new_tenant(platform)
        self.tokens = {
            "service_account": self.project.fetch_token(),
            "shared_runtime_operator": self.tenant.fetch_token(),
            "tenant_administrator": str(self.tenant.admin.token),
        }
        self.instance = self.project.deploy()
        base = f"{self.project.path}/app-instances/{self.instance['id']}"
        operator = self.project.operator
        member_operations = operator.get(f"{base}/member-operations").json()["items"]
        operation = operator.post(f"{base}/operations", {"operation": "stop"}).json()
        self.ids = {
            "project_id": self.project.project_id,
            "app_instance_id": self.instance["id"],
            "member_id": operator.get(f"{base}/members").json()["items"][0]["id"],
            "allocation_id": self.project.allocation_ids[0],
            "access_credential_id": self.project.credential_id,
            "app_slug": self.instance["app_slug"],
        }
        self.operations = {"operations": operation["id"], "member-operations": member_operations[0]["id"]}
        self.of_runtime = self._runtime_ids()

    def _runtime_ids(self) -> dict[str, str]:
        tenant = self.tenant
        stop = tenant.admin.post(f"{tenant.path}/operations", {"operation": "stop"}).json()
        self.operations |= {
            "runtime": stop["id"],
            "worker-operations": tenant.items("worker-operations")[0]["id"],
        }
        return {
            "org_id": tenant.org_id,
            "shared_runtime_id": tenant.runtime["id"],
            "worker_id": tenant.items("workers")[0]["id"],
            "attachment_id": tenant.attach(tenant.bare_project()).rpartition("/")[2],
            "allocation_id": tenant.owner.allocation_ids[0],
            "access_credential_id": tenant.owner.credential_id,
        }

    def real_ids(self, path: str) -> dict[str, str]:
        kind = path.split("/")[-2] if path.endswith("-operations/{operation_id}") else "operations"
        if path.startswith("/orgs/"):
            kind = "runtime" if kind == "operations" else kind
            return {**self.ids, **self.of_runtime, "operation_id": self.operations[kind]}
        return {**self.ids, "operation_id": self.operations[kind]}

    def token_for(self, callers: list[str]) -> str:
        """Of an adapter where the call is open to one, else of a person."""
        return next(token for kind, token in self.tokens.items() if kind in callers)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    platform = start_platform(Path(tmp_path_factory.mktemp("generated")))
    yield Target(platform)
    stop_platform(platform)


EVERYWHERE: dict[str, Any] = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}


@schema.exclude(func=repeats_a_call_on_an_instance).parametrize()
@settings(max_examples=5, phases=[Phase.explicit, Phase.generate], **EVERYWHERE)
def test_generated_request_gets_an_answer_of_the_contract(case: Case[Any], target: Target) -> None:
    check(case, target)


@schema.include(func=repeats_a_call_on_an_instance).parametrize()
@settings(max_examples=3, phases=[Phase.generate], **EVERYWHERE)
def test_a_few_generated_requests_on_a_runtime_get_answers_of_the_contract(case: Case[Any], target: Target) -> None:
    check(case, target)


def check(case: Case[Any], target: Target) -> None:
    real: dict[str, Any] = target.real_ids(case.path)
    # Random ids only ever meet 404: point well-formed requests at objects that exist.
    if case.meta is None or case.meta.generation.mode.is_positive:
        case.path_parameters = {name: real[name] for name in case.path_parameters}
        case.headers.pop("X-Project-ID", None)
    callers = case.operation.definition.raw.get("x-gpuaas-callers", ["service_account"])
    headers = {"Authorization": f"Bearer {target.token_for(callers)}"}
    case.call_and_validate(base_url=f"{target.platform.base_url}/api/v1", headers=headers, checks=CHECKS)
