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

schema = schemathesis.openapi.from_path(ROOT / "contract" / "openapi.yaml")
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


class Target:
    """A platform of its own: generated requests break the contract on purpose, and must not count elsewhere."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self.project: Project = platform.project()
        self.token = self.project.fetch_token()
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

    def real_ids(self, path: str) -> dict[str, str]:
        kind = "member-operations" if "/member-operations/" in path else "operations"
        return {**self.ids, "operation_id": self.operations[kind]}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    platform = start_platform(Path(tmp_path_factory.mktemp("generated")))
    yield Target(platform)
    stop_platform(platform)


@schema.parametrize()
@settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_generated_request_gets_an_answer_of_the_contract(case: Case[Any], target: Target) -> None:
    real: dict[str, Any] = target.real_ids(case.path)
    # Random ids only ever meet 404: point well-formed requests at objects that exist.
    if case.meta is None or case.meta.generation.mode.is_positive:
        case.path_parameters = {name: real[name] for name in case.path_parameters}
        case.headers.pop("X-Project-ID", None)
    headers = {"Authorization": f"Bearer {target.token}"}
    case.call_and_validate(base_url=f"{target.platform.base_url}/api/v1", headers=headers, checks=CHECKS)
