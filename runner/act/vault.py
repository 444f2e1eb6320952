"""Vault: the runtime secrets of each app instance, and credentials that the platform delivers through it.

Over 300 lines, because a secret is read, made and replaced under one rule about versions and logins.
"""

import base64
import contextlib
import re
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from pydantic import SecretStr

from runner.act import vault_calls
from runner.act.key_rotation import STEPS
from runner.model.app import RuntimeSecret
from runner.model.plan import AdapterError
from runner.model.platform import Delivery
from runner.model.scope import ProjectScope
from runner.platform import secret_files
from runner.settings import Settings
from runner.telemetry.meter import Meter
from runner.telemetry.tracer import Tracer

# SPENT means that another party used the ssh key's token: an alarm.
SPENT, DENIED = "wrapping_token_spent", "vault_denied"

# In the instance's path, in place of secrets: runner/act/runtime_secrets.py.
ISSUED_ELSEWHERE = "issued_by"
_ISSUED = re.compile(r"[!-~]{16,8192}")

# Printable characters without quotes, backslash and #.
_LOGIN = re.compile(r"""((?![:"'\\#])[!-~]){1,256}:((?!["'\\#])[!-~]){1,2048}""")


class SecretsError(Exception):
    """A secret is not available. The message says why and what to do, and contains no secret."""

    def __init__(self, code: str, message: str, klass: str = "intervention") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.klass = klass

    @property
    def for_member(self) -> AdapterError:
        return AdapterError(self.code, self.message, "retryable" if self.klass == "retryable" else "intervention")


class Vault:
    """The KV v2 part of Vault that holds one path for each app instance."""

    def __init__(
        self,
        settings: Settings,
        runtime_secrets: Mapping[str, RuntimeSecret],
        meter: Meter | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        import hvac  # here, because an idle tick does not need it, and loading it takes longer than the tick

        if settings.vault_addr is None:
            raise SecretsError("vault_not_set", "VAULT_ADDR is not set: runtime secrets and machine access need Vault")
        self._settings = settings
        self._runtime_secrets = runtime_secrets
        # With an agent or proxy, VAULT_ADDR still names the Vault behind it.
        self.address = str(settings.vault_agent_addr or settings.vault_addr).rstrip("/")
        self._client = hvac.Client(
            url=self.address,
            namespace=settings.vault_namespace,
            verify=str(settings.vault_cacert or settings.vault_capath or "") or True,
            timeout=settings.api_timeout_seconds,
        )
        # hvac may have found a token in the environment or a home directory: only the settings count.
        self._client.token = None
        self._logged_in = False
        self._meter = meter or Meter()
        self._expiry_shown = False
        tracer = tracer or Tracer()
        if self._meter.is_on or tracer.is_on:
            vault_calls.measure(self._client.session, self._meter, tracer)

    def runtime_secret(self, instance_id: UUID, name: str, step: str = "current") -> str:
        """The instance's secret of that name, generated on first use, after the given step of its rotation.

        Writes use check-and-set: of two writers one fails and reads again.
        """
        secret = self.require_known(name, step)
        change, stored_name = STEPS[step]
        for _ in range(5):
            version, values = self._read(instance_id)
            if ISSUED_ELSEWHERE in values:
                raise SecretsError(
                    "secret_issued_by_platform",
                    f"the platform issues {name} of this instance: run the play through gpuaas-slurm exec",
                )
            changed = change(values, name, lambda: generate(secret))
            if changed is None:
                return str(values[stored_name(name)])
            with contextlib.suppress(LostRace):
                self._write(instance_id, changed, version)
                return str(changed[stored_name(name)])
        raise SecretsError(
            "vault_busy",
            "Vault refused every check-and-set write, because others write too. It is tried again",
            "retryable",
        )

    def require_known(self, name: str, step: str) -> RuntimeSecret:
        """How the app has this secret made; SecretsError if it has none of that name, or none to do this with."""
        secret = self._runtime_secrets.get(name)
        if secret is None or step not in STEPS or (step != "current" and not secret.replaceable):
            raise SecretsError("secret_unknown", f"there is no runtime secret called {name!r} to {step}")
        return secret

    def kept_names(self, instance_id: UUID) -> frozenset[str]:
        """What is at the instance's path; nothing if it has never had anything."""
        return frozenset(self._read(instance_id)[1])

    def mark_issued_elsewhere(self, instance_id: UUID) -> None:
        """Note that the platform issues this instance's secrets; LostRace if another runner wrote first."""
        self._write(instance_id, {ISSUED_ELSEWHERE: "the platform"}, 0)

    def unwrap_issued(self, delivery: Delivery) -> str:
        """The value of a runtime secret that the platform issued, which can be unwrapped once."""
        value = self._unwrap(delivery).get("value")
        if not isinstance(value, str) or not _ISSUED.fullmatch(value):
            raise SecretsError("secret_malformed", "the platform issued a runtime secret of another form than text")
        return value

    def delete_secrets(self, instance_id: UUID) -> None:
        """Delete all secrets of the instance, in all versions. It is not an error if there are none."""
        with contextlib.suppress(_NotFound):
            self._call_logged_in(
                lambda: self._client.secrets.kv.v2.delete_metadata_and_all_versions(
                    path=self._path(instance_id), mount_point=self._settings.vault_mount
                )
            )
        version, values = self._read(instance_id)
        if version or values:
            raise SecretsError("secrets_left", "Vault still has secrets of the instance after they were deleted")

    def unwrap_private_key(self, delivery: Delivery) -> str:
        """The private key of a delivery, which can be unwrapped once."""
        key = self._unwrap(delivery).get("private_key")
        if not isinstance(key, str) or "PRIVATE KEY" not in key:
            raise SecretsError("credential_invalid", "the access credential holds no private key")
        return key

    def unwrap_login(self, delivery: Delivery) -> str:
        """`user:password` of a delivery, which can be unwrapped once."""
        data = self._unwrap(delivery)
        login = f"{data.get('username')}:{data.get('password')}"
        # It becomes a line of a file, and the first colon ends the user's name.
        if not isinstance(data.get("password"), str) or not _LOGIN.fullmatch(login):
            raise SecretsError("credential_invalid", "the package source's credential holds no user and password")
        return login

    def _unwrap(self, delivery: Delivery) -> dict[str, Any]:
        ours = str(self._settings.vault_addr)
        if not _same_address(delivery.vault_addr, ours):
            raise SecretsError(
                "vault_address_mismatch",
                f"the platform delivers a credential through {delivery.vault_addr}, but VAULT_ADDR is {ours}:"
                " correct the wrong one. The address of an agent or proxy belongs into VAULT_AGENT_ADDR",
            )
        # The wrapping token itself is the login: Vault accepts one in the body only from a client with another login.
        self._client.token, self._logged_in = delivery.wrapping_token, False
        try:
            answer = self._call(self._client.sys.unwrap)
        except _Refused:
            raise SecretsError(
                SPENT,
                "the wrapping token was already used or has expired. If no other runner used it, treat it as a"
                " break-in: rotate the access credential",
            ) from None
        finally:
            self._client.token = None
        return dict(answer.get("data") or {})

    def _path(self, instance_id: UUID) -> str:
        scope = self._settings.scope
        if isinstance(scope, ProjectScope):
            return f"projects/{scope.project_id}/app-instances/{instance_id}"
        return f"orgs/{scope.org_id}/shared-app-runtimes/{instance_id}"

    def _read(self, instance_id: UUID) -> tuple[int, dict[str, Any]]:
        try:
            answer = self._call_logged_in(
                lambda: self._client.secrets.kv.v2.read_secret_version(
                    path=self._path(instance_id), mount_point=self._settings.vault_mount, raise_on_deleted_version=False
                )
            )
        except _NotFound:
            return 0, {}
        if answer["data"]["data"] is None:
            raise SecretsError(
                "secrets_deleted",
                f"the instance's secrets were deleted in Vault ({self._path(instance_id)}): restore them with"
                " `vault kv undelete`, or delete their metadata too to have new ones made",
            )
        return int(answer["data"]["metadata"]["version"]), dict(answer["data"]["data"])

    def _write(self, instance_id: UUID, values: dict[str, Any], version: int) -> None:
        try:
            self._call_logged_in(
                lambda: self._client.secrets.kv.v2.create_or_update_secret(
                    path=self._path(instance_id), secret=values, cas=version, mount_point=self._settings.vault_mount
                )
            )
        except _Refused:
            raise LostRace from None

    def _login(self) -> None:
        settings = self._settings
        # Another program renews a token in a file, so it is read at each use.
        if self._logged_in and settings.vault_token_file is None:
            return
        token = _secret_setting("VAULT_TOKEN", settings.vault_token, settings.vault_token_file)
        if token is not None:
            self._client.token = token
        elif settings.vault_role_id:
            self._login_by_role(settings.vault_role_id)
        elif settings.vault_agent_addr is None:  # an agent adds its own login
            raise SecretsError(
                "vault_login_missing",
                "Vault needs a login: set VAULT_TOKEN_FILE, VAULT_TOKEN, or VAULT_ROLE_ID and VAULT_SECRET_ID",
            )
        if token is not None and self._meter.is_on and not self._expiry_shown:
            self._show_expiry("vault_file" if settings.vault_token is None else "vault")
        self._logged_in = True

    def _show_expiry(self, name: str) -> None:
        """Report the end of a token that the runner cannot renew. A policy may not allow the question."""
        self._expiry_shown = True
        with contextlib.suppress(SecretsError, _NotFound, _Refused, KeyError, TypeError):
            ttl = self._call(self._client.auth.token.lookup_self)["data"]["ttl"]
            if ttl > 0:  # 0: it never expires
                self._meter.token(name, time.time() + ttl)

    def _login_by_role(self, role_id: str) -> None:
        settings = self._settings
        secret_id = _secret_setting("VAULT_SECRET_ID", settings.vault_secret_id, settings.vault_secret_id_file)
        if secret_id is None:
            raise SecretsError(
                "vault_login_missing", "VAULT_ROLE_ID is set: also set VAULT_SECRET_ID or VAULT_SECRET_ID_FILE"
            )
        mount = settings.vault_approle_mount
        try:
            self._call(
                lambda: self._client.auth.approle.login(role_id=role_id, secret_id=secret_id, mount_point=mount),
            )
        except _Refused:
            raise SecretsError(
                "vault_login_refused", "Vault refused the AppRole login: check VAULT_ROLE_ID and VAULT_SECRET_ID"
            ) from None
        except _NotFound:
            raise SecretsError(
                "vault_login_refused", f"Vault has no AppRole login at {mount}: check GPUAAS_VAULT_APPROLE_MOUNT"
            ) from None

    def _call_logged_in(self, call: Callable[[], Any]) -> Any:
        """Call with our login. It may expire during a long play, so a denied call is repeated once with a new one."""
        self._login()
        try:
            return self._call(call)
        except SecretsError as error:
            if error.code != DENIED:
                raise
        self._client.token, self._logged_in = None, False
        self._login()
        return self._call(call)

    def _call(self, call: Callable[[], Any]) -> Any:
        import requests
        from hvac import exceptions

        try:
            return call()
        except exceptions.InvalidPath:
            raise _NotFound from None
        except exceptions.InvalidRequest:
            raise _Refused from None
        except exceptions.VaultDown:
            message = f"Vault at {self.address} is sealed or in standby"
            raise SecretsError("vault_sealed", message, "retryable") from None
        except exceptions.Forbidden:
            message = f"Vault at {self.address} denied access: check the login's policy, or whether VAULT_TOKEN ran out"
            raise SecretsError(DENIED, message) from None
        except (exceptions.VaultError, requests.RequestException) as error:
            # Only the type: the text of such an error may quote the request.
            message = f"Vault at {self.address} does not answer ({type(error).__name__})"
            raise SecretsError("vault_unreachable", message, "retryable") from None


def _secret_setting(name: str, value: SecretStr | None, file: Path | None) -> str | None:
    """A secret that is set by its value, or by a file that another program writes."""
    if value is not None:
        return value.get_secret_value()
    try:
        return secret_files.read(f"{name}_FILE", file) if file is not None else None
    except secret_files.SecretFileError as problem:
        raise SecretsError("vault_login_unusable", str(problem), problem.klass) from None


def _same_address(one: str, other: str) -> bool:
    def parts(url: str) -> tuple[str, str | None, int | None, str]:
        found = urlsplit(url)
        return found.scheme, found.hostname, found.port or {"http": 80, "https": 443}.get(found.scheme), found.path

    try:
        return parts(one.rstrip("/")) == parts(other.rstrip("/"))
    except ValueError:
        return False


class _NotFound(Exception):
    """Vault has nothing at that path."""


class _Refused(Exception):
    """Vault understood the request and refused it."""


class LostRace(Exception):
    """Another writer was first."""


def generate(secret: RuntimeSecret) -> str:
    if secret.encoding == "urlsafe":
        return secrets.token_urlsafe(secret.random_bytes)
    return base64.b64encode(secrets.token_bytes(secret.random_bytes)).decode()
