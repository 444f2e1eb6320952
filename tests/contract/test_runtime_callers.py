"""Who may call what on a shared runtime: the matrix of calls and kinds of callers."""

import uuid
from collections.abc import Iterator

import httpx
import pytest
import yaml

from tests.platform_process import ROOT, ApiClient, Doc, Platform
from tests.tenant import new_tenant, refusal

CONTRACT = yaml.safe_load((ROOT / "contract" / "openapi.yaml").read_text())
# A: the tenant's administrator, O: the runtime's operator, P: a person of an attached project. No other caller may.
WHO = {
    "listSharedRuntimes": "A",
    "createSharedRuntime": "A",
    "getSharedRuntime": "AO",
    "updateSharedRuntime": "AO",
    "deleteSharedRuntime": "A",
    "listRuntimeOperations": "AO",
    "createRuntimeOperation": "A",
    "getRuntimeOperation": "AO",
    "updateRuntimeOperation": "AO",
    "listRuntimeEvents": "AO",
    "createRuntimeEvent": "O",
    "listWorkers": "AOP",
    "createWorker": "O",
    "getWorker": "AOP",
    "updateWorker": "O",
    "listWorkerOperations": "AOP",
    "createWorkerOperation": "AP",
    "getWorkerOperation": "AOP",
    "updateWorkerOperation": "AOP",
    "listAttachments": "AOP",
    "createAttachment": "A",
    "getAttachment": "AOP",
    "updateAttachment": "AO",
    "listRuntimeAllocations": "AO",
    "getRuntimeAllocation": "AO",
    "createRuntimeCredentialDelivery": "O",
    "listRuntimeArtifactResolutions": "AO",
    "createRuntimeArtifactResolution": "O",
    "createSharedRuntimeSecretIssue": "O",
    "setEntitlement": "A",
    "listRuntimeEntitlements": "AO",
}
CALLS = {
    operation["operationId"]: (method.upper(), path)
    for path, item in CONTRACT["paths"].items()
    for method, operation in item.items()
    if method != "parameters"
}

CLOSED = (403, "ownership_required")


class Identities:
    """One tenant with everything that a call can name, and all kinds of callers of it and of another tenant."""

    def __init__(self, platform: Platform) -> None:
        tenant, other = new_tenant(platform), new_tenant(platform)
        self.attached, outsider, theirs = tenant.project(), tenant.project(), other.project()
        newcomer = tenant.project()
        attachment = tenant.attach(self.attached, may_contribute=True)
        other.attach(theirs)
        brought = tenant.contribute(self.attached)
        self.worker = tenant.create_worker(self.attached.allocation_ids[0])
        lifecycle = tenant.admin.post(f"{tenant.path}/operations", {"operation": "stop"}).json()
        self.tenant, self.operations = tenant, {"operations": lifecycle["id"], "worker-operations": brought["id"]}
        self.instance = self.attached.deploy(workers=0, begin=2)
        self.ids = {
            "org_id": tenant.org_id,
            "shared_runtime_id": tenant.runtime["id"],
            "worker_id": self.worker["id"],
            "attachment_id": attachment.rpartition("/")[2],
            "allocation_id": tenant.owner.allocation_ids[0],
            "access_credential_id": tenant.owner.credential_id,
            "project_id": self.attached.project_id,
            "app_instance_id": self.instance["id"],
            "app_slug": self.instance["app_slug"],
            "member_id": str(uuid.uuid4()),
        }
        self.callers = {"A": tenant.admin, "O": tenant.operator, "P": self.attached.operator}
        self.outsiders = {
            "service account of the attached project": self.attached.adapter,
            "administrator of another tenant": other.admin,
            "operator of another runtime": other.operator,
            "person of another tenant's project": theirs.operator,
            "service account of the owner's project": tenant.owner.adapter,
        }
        self.outsider = outsider.operator
        new = tenant.request(workers=0)
        self.bodies: dict[str, Doc] = {
            "createSharedRuntime": new,
            "updateSharedRuntime": {"health": "healthy"},
            "createRuntimeOperation": {"operation": "stop"},
            "updateRuntimeOperation": {"status": "cancelled"},
            "createRuntimeEvent": {"type": "apps.instance.running", "correlation_id": "c", "data": {}},
            "createWorker": {"component_key": "worker", "allocation_id": tenant.owner.allocation_ids[2]},
            "updateWorker": {"status": "ready"},
            "createWorkerOperation": {"operation": "add", "component_key": "worker"},
            "updateWorkerOperation": {"status": "cancelled"},
            "createAttachment": {"project_id": newcomer.project_id},
            "updateAttachment": {"status": "detaching"},
            "createRuntimeCredentialDelivery": {},
            "createRuntimeArtifactResolution": {"artifact": "slurm"},
            "createSharedRuntimeSecretIssue": {"name": "munge_key"},
            "setEntitlement": {
                "project_id": newcomer.project_id,
                "app_slug": self.instance["app_slug"],
                "status": "enabled",
            },
        }

    def call(self, client: ApiClient, operation: str) -> httpx.Response:
        method, template = CALLS[operation]
        kind = "worker-operations" if "/worker-operations/" in template else "operations"
        path = template.format(**self.ids, operation_id=self.operations[kind])
        return client.call(method, path, self.bodies.get(operation))


@pytest.fixture(scope="module")
def identities(platform: Platform) -> Iterator[Identities]:
    platform.control.change_settings(runtime_secret_issue=1)
    yield Identities(platform)
    platform.control.change_settings(runtime_secret_issue=0)


def test_the_table_of_callers_has_every_call_under_a_tenants_path() -> None:
    assert set(WHO) == {name for name, (_, path) in CALLS.items() if path.startswith("/orgs/")}


def is_closed_to_its_kind(answer: httpx.Response) -> bool:
    """Whether the caller's kind was refused, not what this caller wanted to write."""
    return refusal(answer) == CLOSED and "open_to" in answer.json()["details"] if answer.is_error else False


@pytest.mark.parametrize("operation", WHO)
def test_a_call_on_a_runtime_is_open_to_its_callers_only(identities: Identities, operation: str) -> None:
    for letter, client in identities.callers.items():
        answer = identities.call(client, operation)
        assert is_closed_to_its_kind(answer) is (letter not in WHO[operation]), letter
        assert answer.status_code != 404, letter
    for name, client in identities.outsiders.items():
        assert refusal(identities.call(client, operation)) == CLOSED, name
    unattached = (404, "shared_runtime_not_found") if "P" in WHO[operation] else CLOSED
    assert refusal(identities.call(identities.outsider, operation)) == unattached


@pytest.mark.parametrize(
    "operation", sorted(name for name, (_, path) in CALLS.items() if "{project_id}" in path or path.startswith("/apps"))
)
def test_a_runtimes_operator_opens_no_project_and_no_catalog(identities: Identities, operation: str) -> None:
    assert refusal(identities.call(identities.tenant.operator, operation)) == CLOSED
    if "{project_id}" in CALLS[operation][1]:
        assert refusal(identities.call(identities.tenant.admin, operation)) == CLOSED


@pytest.mark.parametrize("operation", sorted(name for name, (_, path) in CALLS.items() if "{project_id}" in path))
def test_a_project_is_closed_to_callers_of_another_project_or_tenant(identities: Identities, operation: str) -> None:
    """Also to those who use the same shared runtime."""
    own = "service account of the attached project"
    others = {name: client for name, client in identities.outsiders.items() if name != own}
    others |= {
        "person of another project": identities.outsider,
        "owner of the runtime": identities.tenant.owner.operator,
    }
    assert {name: refusal(identities.call(client, operation)) for name, client in others.items()} == dict.fromkeys(
        others, CLOSED
    )


def test_without_a_token_no_call_on_a_runtime_is_answered(identities: Identities) -> None:
    nameless = ApiClient(identities.tenant.platform.base_url, None)
    answers = {operation: refusal(identities.call(nameless, operation)) for operation in WHO}
    assert answers == dict.fromkeys(WHO, (401, "token_missing"))
