"""A client for the sandbox's control, for the fleet and the tests."""

from types import TracebackType
from typing import Any, Self

import httpx

Doc = dict[str, Any]


class ControlClient:
    def __init__(self, base_url: str, admin_token: str) -> None:
        self._http = httpx.Client(
            base_url=f"{base_url.rstrip('/')}/sandbox/v1",
            headers={"Authorization": f"Bearer {admin_token}"},
            timeout=30,
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def _call(self, method: str, path: str, body: Any = None, **params: Any) -> Any:
        answer = self._http.request(method, path, json=body, params=params)
        if answer.is_error:
            raise RuntimeError(f"sandbox control: {method} {path} answered {answer.status_code}: {answer.text[:500]}")
        return answer.json()

    def create_project(self, *, org_id: str | None = None, project_id: str | None = None, name: str = "project") -> Doc:
        ids = {"org_id": org_id, "project_id": project_id}
        made: Doc = self._call("POST", "/projects", {"name": name} | {k: v for k, v in ids.items() if v})
        return made

    def register_app(self, manifest: Doc) -> Doc:
        made: Doc = self._call("PUT", "/apps", manifest)
        return made

    def create_service_account(self, project_id: str, name: str, action_keys: list[str]) -> Doc:
        """Answers service_account_id, key_id and client_secret."""
        body = {"name": name, "action_keys": action_keys}
        made: Doc = self._call("POST", f"/projects/{project_id}/service-accounts", body)
        return made

    def add_account_key(self, service_account_id: str) -> Doc:
        made: Doc = self._call("POST", f"/service-accounts/{service_account_id}/keys")
        return made

    def revoke_account_key(self, service_account_id: str, key_id: str) -> None:
        self._call("DELETE", f"/service-accounts/{service_account_id}/keys/{key_id}")

    def change_service_account(
        self, service_account_id: str, *, action_keys: list[str] | None = None, active: bool | None = None
    ) -> None:
        self._call("PATCH", f"/service-accounts/{service_account_id}", {"action_keys": action_keys, "active": active})

    def operator_token(self, project_id: str, name: str, action_keys: list[str], ttl_seconds: int = 12 * 3600) -> str:
        body = {"name": name, "action_keys": action_keys, "ttl_seconds": ttl_seconds}
        return str(self._call("POST", f"/projects/{project_id}/operator-tokens", body)["access_token"])

    def create_approle(self, project_id: str) -> Doc:
        """Answers role_id, secret_id, mount and the prefix the role may touch."""
        made: Doc = self._call("POST", f"/projects/{project_id}/approle")
        return made

    def put_allocation(
        self,
        project_id: str,
        allocation_id: str,
        *,
        status: str = "active",
        connection: Doc | None = None,
        name: str | None = None,
        sku: str | None = None,
        region: str | None = None,
        gpus: int | None = None,
    ) -> Doc:
        body = {"status": status, "connection": connection, "name": name, "sku": sku, "region": region, "gpus": gpus}
        made: Doc = self._call("PUT", f"/projects/{project_id}/allocations/{allocation_id}", body)
        return made

    def set_allocation_status(self, project_id: str, allocation_id: str, status: str) -> None:
        self._call("POST", f"/projects/{project_id}/allocations/{allocation_id}/status", {"status": status})

    def put_credential(self, project_id: str, credential_id: str, **secret: str) -> Doc:
        """A username with a private_key, for machines, or with a password, for an artifact source."""
        made: Doc = self._call("PUT", f"/projects/{project_id}/access-credentials/{credential_id}", secret)
        return made

    def set_credential_status(self, project_id: str, credential_id: str, status: str) -> None:
        self._call("POST", f"/projects/{project_id}/access-credentials/{credential_id}/status", {"status": status})

    def expire_vault_tokens(self, project_id: str) -> None:
        """Every login of the project's AppRole is over; who logs in again gets a new one."""
        self._call("POST", f"/projects/{project_id}/vault-tokens/expire")

    def rotate_signing_keys(self, *, immediate: bool = False) -> None:
        self._call("POST", "/signing-keys/rotate", immediate=immediate)

    def change_settings(self, **settings: int) -> None:
        """token_ttl_seconds, delivery_ttl_seconds, vault_ttl_seconds."""
        self._call("PUT", "/settings", settings)

    def put_artifact_rule(
        self,
        rule_id: str,
        *,
        scope: str,
        effect: str,
        artifact: str,
        owner_id: str | None = None,
        reason: str | None = None,
        source: Doc | None = None,
    ) -> None:
        body = {"scope": scope, "effect": effect, "artifact": artifact}
        self._call(
            "PUT", f"/artifact-rules/{rule_id}", body | {"owner_id": owner_id, "reason": reason, "source": source}
        )

    def delete_artifact_rule(self, rule_id: str) -> None:
        self._call("DELETE", f"/artifact-rules/{rule_id}")

    def audit(self) -> list[Doc]:
        rows: list[Doc] = self._call("GET", "/audit")
        return rows

    def violations(self) -> list[Doc]:
        rows: list[Doc] = self._call("GET", "/violations")
        return rows

    def forget_violations(self) -> None:
        self._call("DELETE", "/violations")

    def requests(self, since: int = 0) -> Doc:
        """Answers count, last (give it as `since` next time) and the requests themselves."""
        found: Doc = self._call("GET", "/requests", since=since)
        return found

    def keep_bodies(self, *, keep: bool) -> None:
        """Whether requests are listed with `query`, `body` and `answer` from now on."""
        self._call("PUT", "/requests/bodies", {"keep": keep})

    def inject_fault(self, action: str, path_regex: str, **options: Any) -> None:
        """Options: method, skip, times, status, body, headers, seconds."""
        self._call("POST", "/faults", {"action": action, "path_regex": path_regex, **options})

    def faults(self) -> list[Doc]:
        """Those that are still to come."""
        pending: list[Doc] = self._call("GET", "/faults")
        return pending

    def held(self) -> list[str]:
        """The requests, as `METHOD path`, that a fault of kind hold keeps waiting now."""
        found: list[str] = self._call("GET", "/held")
        return found

    def clear_faults(self) -> None:
        self._call("DELETE", "/faults")
