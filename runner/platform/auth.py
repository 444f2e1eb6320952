"""Bearer tokens: an operator's own, or one that is requested for the runner's identity."""

import re
import threading
import time
from collections.abc import Callable
from typing import Any

from runner.model.errors import Rejected, Unavailable
from runner.platform import contract, wire
from runner.settings import Settings
from runner.telemetry.meter import Meter

_SENDABLE = re.compile(r"[!-~]+")


class TokenSource:
    """The current token. A client and all its clones share one source, so that many instances need one token."""

    def __init__(self, settings: Settings, *, person: bool, meter: Meter | None = None) -> None:
        self._meter = meter or Meter()
        self._settings = settings
        self._person = person
        self._token: str | None = None
        self._good_until = 0.0
        self._lock = threading.Lock()

    def current(self, call: Callable[..., Any]) -> str:
        """The token to send. `call` is Transport.call; the token request is sent with anonymous=True, so it does not
        recurse."""
        if self._person:
            if self._settings.operator_token is None:
                raise Rejected(
                    "GPUAAS_OPERATOR_TOKEN is not set: operator commands need your own token",
                    code="token_missing",
                )
            token = self._settings.operator_token.get_secret_value()
            if not _SENDABLE.fullmatch(token):
                # The HTTP library would quote the token in its own error.
                raise Rejected(
                    "GPUAAS_OPERATOR_TOKEN holds a space, a line break or another invalid character: set it again",
                    code="token_invalid",
                )
            return token
        with self._lock:
            if self._token is None or time.monotonic() > self._good_until:
                self._fetch(call)
            assert self._token is not None
            return self._token

    def discard(self) -> bool:
        """Drop the token. Returns whether another one can be requested."""
        with self._lock:
            self._token = None
        return not self._person

    def _fetch(self, call: Callable[..., Any]) -> None:
        path, body = self._request()
        answer = call("POST", path, json=body, anonymous=True).body
        token = answer.get("access_token") if isinstance(answer, dict) else None
        if not isinstance(token, str) or not _SENDABLE.fullmatch(token):
            raise Unavailable("the platform's answer to the token request has no access_token", code="bad_answer")
        self._token = token
        # Renewed a minute early, so that it does not expire between the check and the use.
        lifetime = answer.get("expires_in")
        has_lifetime = isinstance(lifetime, int | float)
        self._good_until = time.monotonic() + (max(lifetime - 60, 0) if has_lifetime else 0)
        if has_lifetime:
            self._meter.token("platform", time.time() + lifetime)

    def _request(self) -> tuple[wire.Path, dict[str, str]]:
        """Where a token of this scope's own identity is requested, and with what."""
        settings, login = self._settings, contract.load(self._settings.contract).login
        runtime = settings.shared_runtime_id
        account = settings.service_account_id if runtime is None else runtime
        signs = login.kind == "signed_assertion"
        proof = settings.private_key_file if signs else settings.client_secret
        if account is None or settings.key_id is None or proof is None:
            names = ["GPUAAS_KEY_ID", "GPUAAS_PRIVATE_KEY_FILE" if signs else "GPUAAS_CLIENT_SECRET"]
            names = names if runtime else ["GPUAAS_SERVICE_ACCOUNT_ID", *names]
            listed, how = f"{', '.join(names[:-1])} and {names[-1]}", "both" if len(names) == 2 else "all"
            raise Rejected(f"{listed} must {how} be set for the runner", code="token_missing")
        path = wire.TOKEN if runtime is None else wire.RUNTIME_TOKEN
        if settings.private_key_file is not None and signs:
            url = f"{str(settings.base_url).rstrip('/')}{wire.filled(contract.load(settings.contract), path)}"
            from runner.platform.assertion import signed  # only here: its libraries take long to load

            assertion = signed(settings.private_key_file, str(account), settings.key_id, url)
            return path, {"grant_type": login.grant_type, "assertion": assertion}
        assert settings.client_secret is not None
        secret = settings.client_secret.get_secret_value()
        owner = "service_account_id" if runtime is None else "shared_runtime_id"
        return path, {owner: str(account), "key_id": settings.key_id, "client_secret": secret}
