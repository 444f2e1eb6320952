"""The runtime secrets of an instance: issued by the platform where it does that, else made by us and kept in Vault.

An instance has one source for its whole life, because two would give its hosts different keys. The first secret
decides: as long as our path in Vault is empty, the platform is asked. If it issues, a mark in that path says so, and
nothing is ever made there. If it has no such call (404), we make the secret, and the platform is not asked again.
"""

from contextlib import suppress
from uuid import UUID

from runner.act.vault import ISSUED_ELSEWHERE, LostRace, SecretsError, Vault
from runner.model.errors import PlatformError, Unavailable
from runner.model.platform import Delivery
from runner.platform.client import Client


class RuntimeSecrets:
    """What a play asks for its secrets; the same call as of a Vault alone."""

    def __init__(self, vault: Vault, client: Client) -> None:
        self._vault = vault
        self._client = client
        self._ours: set[UUID] = set()

    def runtime_secret(self, instance_id: UUID, name: str, step: str = "current") -> str:
        self._vault.require_known(name, step)
        if instance_id not in self._ours and self._is_issued(instance_id, name):
            return self._issued(instance_id, name, step)
        self._ours.add(instance_id)
        return self._vault.runtime_secret(instance_id, name, step)

    def _is_issued(self, instance_id: UUID, name: str) -> bool:
        """Whether the platform issues this instance's secrets; decided here if it has none yet."""
        kept = self._vault.kept_names(instance_id)
        if kept:
            return ISSUED_ELSEWHERE in kept
        if self._ask(instance_id, name) is None:
            return False
        with suppress(LostRace):  # another runner was first, and its answer holds
            self._vault.mark_issued_elsewhere(instance_id)
        return ISSUED_ELSEWHERE in self._vault.kept_names(instance_id)

    def _issued(self, instance_id: UUID, name: str, step: str) -> str:
        if step != "current":
            raise SecretsError(
                "secret_rotation_unsupported",
                f"the platform issues {name}, and has no call that replaces it: have it replaced there",
            )
        delivery = self._ask(instance_id, name)
        if delivery is None:
            raise SecretsError(
                "secret_issuance_missing",
                f"the platform issued the secrets of this instance, and answers 404 for {name} now. No other is made,"
                " because its hosts would not agree. Have the platform's issuance restored",
            )
        return self._vault.unwrap_issued(delivery)

    def _ask(self, instance_id: UUID, name: str) -> Delivery | None:
        try:
            return self._client.issue_secret(instance_id, name)
        except PlatformError as error:
            klass = "retryable" if isinstance(error, Unavailable) else "intervention"
            problem = f"the platform did not issue {name}: {error.message}"
            raise SecretsError("secret_issuance_failed", problem, klass) from None
