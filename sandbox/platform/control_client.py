"""A client of the sandbox's control API, for the fleet and the tests."""

from typing import Any

import httpx

Doc = dict[str, Any]


class UnmetFaults(Exception):
    def __init__(self, faults: list[Doc]) -> None:
        shown = [f"{one['action']} at {one['method'] or 'any'} {one['path_regex']}" for one in faults]
        super().__init__(f"no request met: {'; '.join(shown)}")


class ControlError(RuntimeError):
    """The control API refused a call."""


class ControlClient:
    def __init__(self, base_url: str, admin_token: str) -> None:
        self._http = httpx.Client(
            base_url=f"{base_url.rstrip('/')}/sandbox/v1",
            headers={"Authorization": f"Bearer {admin_token}"},
            timeout=30,
            trust_env=False,
        )

    def close(self) -> None:
        self._http.close()

    def _call(self, method: str, path: str, body: Any = None, **params: Any) -> Any:
        answer = self._http.request(method, path, json=body, params=params)
        if answer.is_error:
            raise ControlError(f"sandbox control: {method} {path} answered {answer.status_code}: {answer.text[:500]}")
        return answer.json()

    def _doc(self, method: str, path: str, body: Any = None, **params: Any) -> Doc:
        return dict(self._call(method, path, body, **params))

    def _docs(self, method: str, path: str) -> list[Doc]:
        return list(self._call(method, path))

    def create_project(self, name: str, org_id: str | None = None) -> Doc:
        """Returns project_id and org_id; the project has a tenant of its own unless one is given."""
        return self._doc("POST", "/projects", {"name": name, "org_id": org_id})

    def register_app(self, manifest: Doc) -> Doc:
        return self._doc("PUT", "/apps", manifest)

    def create_service_account(self, project_id: str, name: str, action_keys: list[str]) -> Doc:
        """Returns service_account_id, key_id and client_secret."""
        body = {"name": name, "action_keys": action_keys}
        return self._doc("POST", f"/projects/{project_id}/service-accounts", body)

    def add_account_key(self, service_account_id: str) -> Doc:
        return self._doc("POST", f"/service-accounts/{service_account_id}/keys")

    def revoke_account_key(self, service_account_id: str, key_id: str) -> None:
        self._call("DELETE", f"/service-accounts/{service_account_id}/keys/{key_id}")

    def change_service_account(
        self, service_account_id: str, *, action_keys: list[str] | None = None, active: bool | None = None
    ) -> None:
        self._call("PATCH", f"/service-accounts/{service_account_id}", {"action_keys": action_keys, "active": active})

    def operator_token(self, project_id: str, name: str, action_keys: list[str], ttl_seconds: int = 12 * 3600) -> str:
        body = {"name": name, "action_keys": action_keys, "ttl_seconds": ttl_seconds}
        return str(self._call("POST", f"/projects/{project_id}/operator-tokens", body)["access_token"])

    def administrator_token(self, org_id: str, name: str, action_keys: list[str], ttl_seconds: int = 12 * 3600) -> str:
        """A token of a tenant's administrator."""
        body = {"name": name, "action_keys": action_keys, "ttl_seconds": ttl_seconds}
        return str(self._call("POST", f"/orgs/{org_id}/administrator-tokens", body)["access_token"])

    def create_runtime_operator(self, runtime_id: str, action_keys: list[str]) -> Doc:
        """Returns shared_runtime_id, key_id and client_secret."""
        body = {"name": "operator", "action_keys": action_keys}
        return self._doc("POST", f"/shared-runtimes/{runtime_id}/operators", body)

    def create_runtime_approle(self, runtime_id: str) -> Doc:
        """Returns role_id, secret_id, mount and the one path that the role may use."""
        return self._doc("POST", f"/shared-runtimes/{runtime_id}/approle")

    def set_identities(self, project_id: str, identities: list[Doc]) -> None:
        """Who belongs to the project; it replaces the former list."""
        self._call("PUT", f"/projects/{project_id}/identities", identities)

    def identities(self, project_id: str) -> list[Doc]:
        return self._docs("GET", f"/projects/{project_id}/identities")

    def leave_tenant(self, project_id: str) -> str:
        """Move the project to a new tenant, whose id is returned."""
        return str(self._call("POST", f"/projects/{project_id}/leave-tenant")["org_id"])

    def create_approle(self, project_id: str) -> Doc:
        """Returns role_id, secret_id, mount and the prefix that the role may use."""
        return self._doc("POST", f"/projects/{project_id}/approle")

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
        return self._doc("PUT", f"/projects/{project_id}/allocations/{allocation_id}", body)

    def set_allocation_status(self, project_id: str, allocation_id: str, status: str) -> None:
        self._call("POST", f"/projects/{project_id}/allocations/{allocation_id}/status", {"status": status})

    def put_credential(self, project_id: str, credential_id: str, **secret: str) -> Doc:
        """A username with a private_key, for machines, or with a password, for an artifact source."""
        return self._doc("PUT", f"/projects/{project_id}/access-credentials/{credential_id}", secret)

    def set_credential_status(self, project_id: str, credential_id: str, status: str) -> None:
        self._call("POST", f"/projects/{project_id}/access-credentials/{credential_id}/status", {"status": status})

    def expire_vault_tokens(self, project_id: str) -> None:
        """Expire every login of the project's AppRole; a new login is possible."""
        self._call("POST", f"/projects/{project_id}/vault-tokens/expire")

    def rotate_signing_keys(self, *, immediate: bool = False) -> None:
        self._call("POST", "/signing-keys/rotate", immediate=immediate)

    def change_settings(self, **settings: int) -> None:
        """token_ttl_seconds, delivery_ttl_seconds, vault_ttl_seconds, runtime_secret_issue."""
        self._call("PUT", "/settings", settings)

    def use_vault(self, address: str, token: str, name: str) -> Doc:
        """Keep secrets in a Vault that is not the sandbox's, in mounts of this name. To be called first of all."""
        return self._doc("PUT", "/vault", {"address": address, "token": token, "name": name})

    def other_vault(self) -> Doc:
        """Address and mount of the Vault that is used in place of the sandbox's own; empty if none is."""
        return self._doc("GET", "/vault")

    def release_vault(self) -> None:
        self._call("DELETE", "/vault")

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

    def put_entitlement(self, project_id: str, app_slug: str, status: str, policy: Doc | None = None) -> Doc:
        """Whether the project may use the app, and the project's own restriction of `regions` and `skus`."""
        return self._doc("PUT", f"/projects/{project_id}/entitlements/{app_slug}", {"status": status, "policy": policy})

    def restrict(self, org_id: str | None = None, **policy: list[str] | None) -> None:
        """Restrict `regions` and `skus` of one tenant's projects; of every project, if no tenant is given."""
        self._call("PUT", "/placement-policy", policy, **({"org_id": org_id} if org_id else {}))

    def delete_artifact_rule(self, rule_id: str) -> None:
        self._call("DELETE", f"/artifact-rules/{rule_id}")

    def audit(self) -> list[Doc]:
        return self._docs("GET", "/audit")

    def violations(self) -> list[Doc]:
        return self._docs("GET", "/violations")

    def forget_violations(self) -> None:
        self._call("DELETE", "/violations")

    def requests(self, since: int = 0) -> Doc:
        """Returns count, last (the next call's `since`) and the requests."""
        return self._doc("GET", "/requests", since=since)

    def keep_bodies(self, *, keep: bool) -> None:
        """Whether requests are listed with `query`, `body` and `answer` from now on."""
        self._call("PUT", "/requests/bodies", {"keep": keep})

    def inject_fault(self, action: str, path_regex: str, **options: Any) -> None:
        """Options: method, skip, times, status, body, headers, seconds."""
        self._call("POST", "/faults", {"action": action, "path_regex": path_regex, **options})

    def faults(self) -> list[Doc]:
        """Faults that are still pending."""
        return self._docs("GET", "/faults")

    def held(self) -> list[str]:
        """The requests, as `METHOD path`, that a fault of kind hold keeps waiting now."""
        return list(self._call("GET", "/held"))

    def clear_faults(self) -> None:
        """Remove all faults. A fault that no request met raises, since its test did not test it."""
        unmet: list[Doc] = self._call("DELETE", "/faults")
        if unmet:
            raise UnmetFaults(unmet)
