"""A tenant of the sandbox platform: an administrator, projects, and a shared runtime with its operator identity."""

from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.platform_process import ApiClient, Doc, Platform, Project, action_keys, our_manifest, person_keys

LEASE: Doc = {"status": "running", "claimed_by": "runner-1", "lease_expires_at": "2099-01-01T00:00:00Z"}


def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def delivery(tenant: "Tenant", credential_id: str) -> httpx.Response:
    return tenant.operator.post(f"{tenant.path}/access-credentials/{credential_id}/deliveries", {})


@dataclass
class Tenant:
    platform: Platform
    owner: Project
    admin: ApiClient
    runtime: Doc = field(default_factory=dict)
    operator: ApiClient = field(init=False)

    @property
    def org_id(self) -> str:
        return self.owner.org_id

    @property
    def runtimes(self) -> str:
        return f"/orgs/{self.org_id}/shared-app-runtimes"

    @property
    def path(self) -> str:
        return f"{self.runtimes}/{self.runtime['id']}"

    def project(self, **options: Any) -> Project:
        return self.platform.project(org_id=self.org_id, **options)

    def bare_project(self) -> Project:
        """A project with no principals and no machines: enough to be attached, and quickly made."""
        made = self.platform.control.create_project("bare", self.org_id)
        return Project(self.platform, self.org_id, made["project_id"], {}, "", "", [])

    def request(self, workers: int = 1, **changes: Any) -> Doc:
        """The body that deploys our app as a shared runtime on the owner's machines."""
        manifest = our_manifest()
        return {
            "app_slug": manifest["app_slug"],
            "app_version": manifest["version"],
            "owner_project_id": self.owner.project_id,
            "placement_intent": {
                "mode": "split",
                "controller_allocation_id": self.owner.allocation_ids[0],
                "worker_allocation_ids": self.owner.allocation_ids[1 : 1 + workers],
            },
            "config": {},
            "access_credential_id": self.owner.credential_id,
            **changes,
        }

    def deploy(self, operator_keys: list[str] | None = None, **changes: Any) -> None:
        answer = self.admin.post(self.runtimes, self.request(**changes))
        assert answer.status_code == 201, answer.text
        self.runtime = answer.json()
        keys = action_keys("service_account") if operator_keys is None else operator_keys
        self.key = self.platform.control.create_runtime_operator(self.runtime["id"], keys)
        self.operator = ApiClient(self.platform.base_url, self.fetch_token())

    def fetch_token(self, **changed: str) -> str:
        answer = ApiClient(self.platform.base_url, None).post(
            "/auth/shared-runtime-operator/token", {**self.key, **changed}, idempotency_key=None
        )
        answer.raise_for_status()
        return str(answer.json()["access_token"])

    def items(self, what: str, reader: ApiClient | None = None) -> list[Doc]:
        answer = (reader or self.admin).get(f"{self.path}/{what}")
        assert answer.status_code == 200, answer.text
        found: list[Doc] = answer.json()["items"]
        return found

    def attach(self, project: Project, *, active: bool = True, **fields: Any) -> str:
        """The path of the new attachment; active if the operator has brought it up."""
        answer = self.admin.post(f"{self.path}/attachments", {"project_id": project.project_id, **fields})
        assert answer.status_code == 201, answer.text
        path = f"{self.path}/attachments/{answer.json()['id']}"
        if active:
            answer = self.operator.patch(path, {"status": "active", "health": "healthy"})
            assert answer.status_code == 200, answer.text
        return path

    def contribution(self, project: Project, number: int = 0, **changes: Any) -> Doc:
        """The body by which a project contributes one of its machines."""
        return {
            "operation": "add",
            "component_key": "worker",
            "allocation_ids": [project.allocation_ids[number]],
            "access_credential_id": project.credential_id,
            **changes,
        }

    def contribute(self, project: Project, number: int = 0) -> Doc:
        answer = project.operator.post(f"{self.path}/worker-operations", self.contribution(project, number))
        assert answer.status_code == 201, answer.text
        made: Doc = answer.json()
        return made

    def create_worker(self, allocation_id: str, status: str = "ready") -> Doc:
        body = {"component_key": "worker", "allocation_id": allocation_id, "status": status}
        answer = self.operator.post(f"{self.path}/workers", body)
        assert answer.status_code == 201, answer.text
        made: Doc = answer.json()
        return made


def new_tenant(platform: Platform, *, deployed: bool = True) -> Tenant:
    owner = platform.project()
    token = platform.control.administrator_token(owner.org_id, "administrator", person_keys())
    made = Tenant(platform, owner, ApiClient(platform.base_url, token))
    if deployed:
        made.deploy()
    return made
