"""A sandbox platform for tests, in its own process with its own state, and projects on it."""

import uuid
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import yaml

from sandbox.platform import process
from sandbox.platform.control_client import ControlClient

ROOT = Path(__file__).resolve().parents[1]
MANIFEST_FILE = ROOT / "app" / "manifest.yaml"
ACTION_KEYS_FILE = ROOT / "app" / "action-keys.yaml"

Doc = dict[str, Any]


def our_manifest() -> Doc:
    manifest: Doc = yaml.safe_load(MANIFEST_FILE.read_text())
    return manifest


def action_keys(who: str) -> list[str]:
    """The action keys that app/action-keys.yaml lists for the `service_account` or the `operator`."""
    return [entry["key"] for entry in yaml.safe_load(ACTION_KEYS_FILE.read_text())[who]]


def person_keys() -> list[str]:
    """The action keys of an operator: those for our commands, and those for the platform's own pages."""
    return [*action_keys("operator"), "scheduler.catalog.read", "scheduler.instance.delete"]


@cache
def _http(base_url: str) -> httpx.Client:
    """One HTTP client for all principals: a new client takes longer than the calls of a test."""
    return httpx.Client(base_url=f"{base_url}/api/v1", timeout=30, trust_env=False)


class ApiClient:
    """Calls with the headers that every call needs. No retries and no errors: tests check the raw answer."""

    def __init__(self, base_url: str, token: str | None) -> None:
        self.token = token
        self.http = _http(base_url)

    def call(self, method: str, path: str, body: Any = None, **headers: str | None) -> httpx.Response:
        """Headers by keyword, `_` for `-`; None leaves out a header that is sent by default."""
        sent = {"user-agent": "platform-tests/1", "x-request-id": str(uuid.uuid4())}
        if self.token is not None:
            sent["authorization"] = f"Bearer {self.token}"
        if method != "GET":
            sent["idempotency-key"] = str(uuid.uuid4())
        for name, value in headers.items():
            sent.pop(name.replace("_", "-"), None)
            if value is not None:
                sent[name.replace("_", "-")] = value
        return self.http.request(method, path, json=body, headers=sent)

    def get(self, path: str, **headers: str | None) -> httpx.Response:
        return self.call("GET", path, **headers)

    def post(self, path: str, body: Any, **headers: str | None) -> httpx.Response:
        return self.call("POST", path, body, **headers)

    def patch(self, path: str, body: Any, **headers: str | None) -> httpx.Response:
        return self.call("PATCH", path, body, **headers)


@dataclass
class Project:
    """A project of the sandbox with an adapter's service account, an operator and some machines."""

    platform: "Platform"
    org_id: str
    project_id: str
    service_account: Doc
    operator_token: str
    credential_id: str
    allocation_ids: list[str]

    @property
    def path(self) -> str:
        return f"/projects/{self.project_id}"

    @property
    def operator(self) -> ApiClient:
        return ApiClient(self.platform.base_url, self.operator_token)

    @property
    def adapter(self) -> ApiClient:
        return ApiClient(self.platform.base_url, self.fetch_token())

    def fetch_token(self, **changed: str) -> str:
        answer = ApiClient(self.platform.base_url, None).post(
            "/auth/service-account/token", {**self.service_account, **changed}, idempotency_key=None
        )
        answer.raise_for_status()
        return str(answer.json()["access_token"])

    def shown(self, instance: Doc, what: str = "") -> Any:
        """The instance as its operator reads it, or one of its lists, for example "/members"."""
        found = self.operator.get(f"{self.path}/app-instances/{instance['id']}{what}").json()
        return found["items"] if what else found

    def deploy(self, workers: int = 2, begin: int = 0, **headers: str | None) -> Doc:
        """Deploy our app on the project's machines from the number `begin` on, with split placement."""
        intent = {
            "mode": "split",
            "controller_allocation_id": self.allocation_ids[begin],
            "worker_allocation_ids": self.allocation_ids[begin + 1 : begin + 1 + workers],
        }
        manifest = our_manifest()
        answer = self.operator.post(
            f"{self.path}/app-instances",
            {
                "app_slug": manifest["app_slug"],
                "app_version": manifest["version"],
                "placement_intent": intent,
                "config": {},
                "access_credential_id": self.credential_id,
            },
            **headers,
        )
        assert answer.status_code == 201, answer.text
        made: Doc = answer.json()
        return made


@dataclass
class Platform:
    state: Path
    base_url: str
    control: ControlClient
    _projects: int = field(default=0)

    def project(
        self,
        *,
        adapter_keys: list[str] | None = None,
        operator_keys: list[str] | None = None,
        allocations: int = 4,
        org_id: str | None = None,
    ) -> Project:
        """A project with its principals, in a tenant of its own unless one is given."""
        self._projects += 1
        ids = self.control.create_project(f"project-{self._projects}", org_id)
        project_id = ids["project_id"]
        account = self.control.create_service_account(
            project_id, "adapter", action_keys("service_account") if adapter_keys is None else adapter_keys
        )
        token = self.control.operator_token(
            project_id, "operator", person_keys() if operator_keys is None else operator_keys
        )
        credential_id = str(uuid.uuid4())
        self.control.put_credential(project_id, credential_id, username="login", private_key="not-a-real-key")
        allocation_ids = [str(uuid.uuid4()) for _ in range(allocations)]
        for number, allocation_id in enumerate(allocation_ids):
            self.control.put_allocation(
                project_id,
                allocation_id,
                name=f"host-{number}",
                # Unusable on purpose, so that a test without hosts never connects to one by accident.
                connection={"host": f"192.0.2.{number + 1}", "port": 22, "username": "login", "host_keys": ["none"]},
                sku="cpu-2",
                region="local",
                gpus=0,
            )
        return Project(self, ids["org_id"], project_id, account, token, credential_id, allocation_ids)


def start_platform(state: Path) -> Platform:
    """Start a platform on a free port with our app registered; `stop_platform` stops it."""
    running = process.start(state)
    control = ControlClient(running.base_url, running.admin_token)
    control.register_app(our_manifest())
    control.put_artifact_rule("sandbox-allows", scope="global", effect="allow", artifact="slurm")
    return Platform(state, running.base_url, control)


def stop_platform(platform: Platform) -> None:
    platform.control.close()
    process.stop(platform.state)
