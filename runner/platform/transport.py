"""HTTP calls to the platform: the token, retries with the same Idempotency-Key, and errors."""

import functools
import ssl
import time
import uuid
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import httpx

from runner import context, log
from runner.model.errors import PlatformError, Unavailable
from runner.model.gaps import Gaps
from runner.platform import contract, evidence, wire
from runner.platform.answers import parse, retry_delay
from runner.platform.auth import TokenSource
from runner.platform.clock import Clock
from runner.platform.dialect import Dialect
from runner.platform.errors import from_answer, redact
from runner.settings import Settings
from runner.telemetry import certificates
from runner.telemetry.meter import Meter
from runner.telemetry.tracer import Tracer


class Answer(NamedTuple):
    """The body and the ETag of a successful call."""

    body: Any
    etag: str | None


class Transport:
    """Calls of one principal. Not shared between threads; token and clock may be."""

    def __init__(
        self, settings: Settings, tokens: TokenSource, clock: Clock, meter: Meter, tracer: Tracer, gaps: Gaps
    ) -> None:
        self._settings = settings
        self._dialect = Dialect(contract.load(settings.contract))
        self._names = self._dialect.contract.headers
        self._gaps = gaps
        self._meter = meter
        self._tracer = tracer
        self._tokens = tokens
        self._clock = clock
        self._http = httpx.Client(
            base_url=str(settings.base_url).rstrip("/"),
            timeout=settings.api_timeout_seconds,
            verify=_tls_context(settings.ca_bundle),
            headers={"User-Agent": f"gpuaas-slurm/{version('gpuaas-slurm')} (+{settings.runner_id})"},
            trust_env=False,
            event_hooks={"response": [self._show_certificate] if meter.is_on else []},
        )

    def close(self) -> None:
        self._http.close()

    def call(
        self,
        method: str,
        path: wire.Path,
        *,
        json: Any = None,
        params: dict[str, str] | None = None,
        key: str | None = None,
        match: str | None = None,
        anonymous: bool = False,
        project: UUID | None = None,
    ) -> Answer:
        """Send until there is an answer or patience ends. Retries carry the same Idempotency-Key.

        The correlation id is that of the work at hand: see runner/context.py. `project` is for a path without one.
        Path, body and answer have our names; those of the platform are between here and the wire.
        """
        names = self._names
        optional = {names.idempotency_key: key, names.if_match: match, names.correlation_id: context.correlation_id()}
        optional[names.project] = str(project) if project else self._dialect.project_header(path)
        headers = {name: value for name, value in optional.items() if value}
        deadline = time.monotonic() + self._settings.api_patience_seconds
        fresh_token_tried = False
        for attempt in range(1_000):
            if not anonymous:
                headers["Authorization"] = f"Bearer {self._tokens.current(self.call)}"
            headers[names.request_id] = uuid.uuid4().hex
            result = self._attempt(method, path, json, params, headers)
            if isinstance(result, Answer):
                return result
            if result.status == 401 and not anonymous and not fresh_token_tried and self._tokens.discard():
                fresh_token_tried = True
                continue
            delay = retry_delay(attempt, result, self._clock.now())
            if not isinstance(result, Unavailable) or time.monotonic() + delay > deadline:
                evidence.note_refusal(self._gaps, method, path, result)
                raise result
            log.get().info(
                "call retried",
                call=f"{method} {path}",
                error_code=result.code,
                problem=result.code,
                wait_s=round(delay, 2),
            )
            time.sleep(delay)
        raise AssertionError("unreachable: patience ends first")

    def _attempt(
        self, method: str, path: wire.Path, json: Any, params: dict[str, str] | None, headers: dict[str, str]
    ) -> Answer | PlatformError:
        call = f"{method} {self._dialect.url(path)}"
        body, query = self._dialect.outgoing(path, json), self._dialect.query(params or {})
        try:
            answer = self._send(method, path, json=body, params=query, headers=headers)
        except httpx.RequestError as error:
            return Unavailable(
                f"{call}: no answer from {self._http.base_url.copy_with(path='/')} ({type(error).__name__}: {error})."
                " Check GPUAAS_BASE_URL and the network",
                code="platform_unreachable",
            )
        self._clock.follow(answer.headers.get(self._names.date))
        body = parse(answer.content)
        if body is None:
            return Unavailable(
                f"{call}: HTTP {answer.status_code} with a body that is not a JSON object",
                code="bad_answer",
                status=answer.status_code,
            )
        if answer.is_success:
            etag = answer.headers.get(self._names.etag) if self._dialect.contract.etags else None
            return Answer(self._dialect.incoming(method, path, body), etag)
        fields = body if isinstance(body, dict) else {}
        fields = self._dialect.refusal(fields)
        refusal = from_answer(answer.status_code, redact(fields, headers.get("Authorization")), call)
        refusal.context["retry_after"] = answer.headers.get(self._names.retry_after)
        return refusal

    def _send(self, method: str, path: wire.Path, *, headers: dict[str, str], **content: Any) -> httpx.Response:
        """One request, measured and traced."""
        began, route = time.monotonic(), wire.route(path)
        with self._tracer.calling("platform", method, route) as call:
            traced = {self._names.traceparent: call.traceparent} if call.traceparent else {}
            try:
                answer = self._http.request(method, self._dialect.url(path), headers={**headers, **traced}, **content)
                call.status = answer.status_code
            finally:
                self._meter.api_call(method, route, call.status, time.monotonic() - began)
        return answer

    def _show_certificate(self, answer: httpx.Response) -> None:
        """Called before the body is read, as long as the connection is open."""
        if stream := answer.extensions.get("network_stream"):
            self._meter.certificate("platform", certificates.end_of_peer(stream.get_extra_info("ssl_object")))


@functools.cache
def _tls_context(ca_bundle: Path | None) -> ssl.SSLContext:
    """Loading the certificates takes a tenth of a second, so all clients share one context."""
    return ssl.create_default_context(cafile=ca_bundle)
