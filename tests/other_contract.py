"""A platform with another contract: the sandbox behind a proxy with other paths, headers, fields and envelopes.

It knows nothing of the runner's translation: its own table says what each name is called there. It sends no ETags,
takes no client secret, and refuses every name of the usual contract that it calls otherwise. tests/contract/other.toml
is what an operator writes for it.
"""

import json
import re
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tests.platform_process import Doc, Project

MAPPING = Path(__file__).parent / "contract" / "other.toml"
BASE, TOKEN = "/platform/v2", "/oauth/token"
ID = r"(?P<{}>[0-9a-f-]{{36}})"
# Path there, path of the sandbox below /api/v1, and what its records are.
ROUTES = [
    (f"/deployments/{ID.format('i')}/units(?P<rest>/.*)?", "/projects/{p}/app-instances/{i}/members{rest}", "member"),
    (
        f"/deployments/{ID.format('i')}/tasks(?P<rest>/.*)?",
        "/projects/{p}/app-instances/{i}/member-operations{rest}",
        "operation",
    ),
    (
        f"/deployments/{ID.format('i')}/changes(?P<rest>/.*)?",
        "/projects/{p}/app-instances/{i}/operations{rest}",
        "operation",
    ),
    (f"/deployments/{ID.format('i')}/timeline(?P<rest>)", "/projects/{p}/app-instances/{i}/events", "event"),
    (
        f"/deployments/{ID.format('i')}/sources(?P<rest>)",
        "/projects/{p}/app-instances/{i}/artifact-resolutions",
        "source",
    ),
    (f"/deployments/{ID.format('i')}/secrets(?P<rest>)", "/projects/{p}/app-instances/{i}/runtime-secrets", "handout"),
    ("/deployments(?P<rest>/.*)?", "/projects/{p}/app-instances{rest}", "instance"),
    (f"/spaces/{ID.format('p')}/machines(?P<rest>/.*)?", "/projects/{p}/allocations{rest}", "machine"),
    (f"/keys/{ID.format('k')}/handouts(?P<rest>)", "/projects/{p}/access-credentials/{k}/deliveries", "handout"),
    (f"/spaces/{ID.format('p')}/permits(?P<rest>)", "/projects/{p}/entitlements", "permit"),
    ("/whoami(?P<rest>)", "/me", "caller"),
]
# The sandbox's name, and where it is there.
FIELDS: dict[str, dict[str, tuple[str, ...]]] = {
    "instance": {
        "status": ("state",),
        "health": ("adapter", "health"),
        "status_detail": ("adapter", "report"),
        "app_slug": ("app", "name"),
        "app_version": ("app", "version"),
        "placement_intent": ("placement",),
        "access_credential_id": ("key_id",),
        "correlation_id": ("trace",),
    },
    "member": {
        "status": ("state",),
        "component_key": ("role",),
        "allocation_id": ("machine_id",),
        "adapter_detail": ("adapter", "detail"),
        "app_instance_id": ("deployment_id",),
    },
    "operation": {
        "operation": ("verb",),
        "status": ("state",),
        "component_key": ("role",),
        "member_ids": ("units",),
        "allocation_ids": ("machines",),
        "claimed_by": ("lease", "holder"),
        "lease_expires_at": ("lease", "until"),
        "error": ("outcome", "error"),
        "result": ("outcome", "result"),
        "app_instance_id": ("deployment_id",),
    },
    "machine": {"status": ("state",), "connection": ("reach",)},
    "event": {"type": ("kind",), "data": ("payload",)},
    "source": {"artifact": ("package",), "decision": ("verdict",)},
    "handout": {"vault_addr": ("vault", "address"), "wrapping_token": ("vault", "token"), "username": ("login",)},
    "permit": {"status": ("state",), "app_slug": ("app",)},
    "caller": {"subject": ("user", "id"), "actor_type": ("user", "kind")},
}
HEADERS = {"x-idempotency-key": "idempotency-key", "x-trace": "x-correlation-id", "authorization": "authorization"}
QUERY = {"app": "app_slug", "state": "status", "page_size": "limit", "after": "cursor"}


@dataclass
class OtherPlatform:
    """The proxy; `accounts` has the public key and the sandbox's own login of each key id."""

    sandbox: str
    url: str = ""
    accounts: dict[str, tuple[Ed25519PublicKey, Doc]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)  # method and path of each call
    used: set[str] = field(default_factory=set)  # ids of assertions

    def variables(self, project: Project, directory: Path) -> dict[str, str]:
        """What an operator sets for this platform, beside what every runner needs. The client secret is not used."""
        account, key = project.service_account, Ed25519PrivateKey.generate()
        self.accounts[account["key_id"]] = (key.public_key(), account)
        file = directory / f"{account['key_id']}.pem"
        file.touch(0o600)
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        file.write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))
        return {
            "GPUAAS_BASE_URL": self.url,
            "GPUAAS_CONTRACT": str(MAPPING),
            "GPUAAS_PRIVATE_KEY_FILE": str(file),
            "GPUAAS_CLIENT_SECRET": "not-taken-here",
        }

    def answer(
        self, method: str, target: str, headers: dict[str, str], body: Any, caller: socket.socket
    ) -> tuple[int, Doc]:
        parts = urlsplit(target)
        path = parts.path.removeprefix(BASE)
        self.asked.append(f"{method} {path}")
        if not parts.path.startswith(BASE):
            return _refused(404, "no_such_page", "not below the API")
        if path == TOKEN:
            return self._token(body)
        found = next(
            ((match, ours, kind) for shape, ours, kind in ROUTES if (match := re.fullmatch(shape, path))), None
        )
        if found is None:
            return _refused(404, "no_such_page", "no such path")
        match, ours, kind = found
        groups = {"p": headers.get("x-space", ""), **{k: v or "" for k, v in match.groupdict().items()}}
        if not groups["p"]:
            return _refused(400, "space_missing", "X-Space names the project")
        if method != "GET" and ("x-idempotency-key" not in headers or "idempotency-key" in headers):
            return _refused(400, "key_missing", "X-Idempotency-Key is needed")
        if wrong := [name for name in (body or {}) if name in FIELDS[kind]]:
            return _refused(422, "unknown_field", f"no such field: {wrong}")
        query = {QUERY.get(name, f"no-{name}"): value for name, value in parse_qsl(parts.query)}
        sent = {"x-request-id": headers["x-call-id"], "user-agent": headers["user-agent"]}
        for theirs, usual in HEADERS.items():
            sent |= {usual: headers[theirs]} if theirs in headers else {}
        content = None if body is None else _ours(kind, body)
        target = ours.format_map(groups) + (f"?{urlencode(query)}" if query else "")
        status, found_body = self._call(method, target, sent, content, caller)
        if status >= 400:
            return _refused(status, found_body["code"], found_body["message"], found_body)
        if "items" in found_body:
            shown = [_theirs(kind, one) for one in found_body["items"]]
            return 200, {"data": {"list": shown}, "paging": {"after": found_body["next_cursor"]}}
        return status, _theirs(kind, found_body)

    def _call(
        self, method: str, path: str, headers: dict[str, str], body: Any, caller: socket.socket | None = None
    ) -> tuple[int, Doc]:
        """Call the sandbox. A caller that is gone is gone for the sandbox, too: a runner may be killed here."""
        connection = HTTPConnection(urlsplit(self.sandbox).netloc, timeout=30)
        with closing(connection):
            sent = headers | ({} if body is None else {"content-type": "application/json"})
            connection.request(method, f"/api/v1{path}", None if body is None else json.dumps(body), sent)
            watched = [connection.sock, caller] if caller else [connection.sock]
            readable, _, _ = select.select(watched, [], [], 30)
            if connection.sock not in readable:
                raise ConnectionAbortedError("the caller is gone, or the sandbox does not answer")
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def _token(self, body: Doc) -> tuple[int, Doc]:
        if set(body) != {"grant_type", "client_assertion"}:
            return _refused(400, "unsupported_login", "an assertion is needed, and nothing else")
        try:
            public, account = self.accounts[jwt.get_unverified_header(body["client_assertion"])["kid"]]
            needed = {"require": ["iss", "sub", "aud", "iat", "exp", "jti"]}
            audience = f"{self.url}{BASE}{TOKEN}"
            claims = jwt.decode(body["client_assertion"], public, ["EdDSA"], options=needed, audience=audience)  # type: ignore[arg-type]
        except (KeyError, jwt.PyJWTError):
            return _refused(401, "assertion_invalid", "the assertion is not one of ours")
        fresh = claims["jti"] not in self.used and claims["exp"] <= time.time() + 300
        if not fresh or {claims["iss"], claims["sub"]} != {account["service_account_id"]}:
            return _refused(401, "assertion_invalid", "used before, too long, or of another account")
        self.used.add(claims["jti"])
        _, given = self._call("POST", "/auth/service-account/token", {"user-agent": "other-platform/1"}, account)
        return 200, {"token": given["access_token"], "ttl": given["expires_in"]}


def _refused(status: int, code: str, message: str, usual: Doc | None = None) -> tuple[int, Doc]:
    usual = usual or {"correlation_id": "none", "details": {}}
    error = {"reason": code, "text": message, "trace": usual["correlation_id"], "info": usual["details"]}
    return status, {"error": error}


def _theirs(kind: str, record: Doc) -> Doc:
    made: Doc = {}
    for name, value in record.items():
        if name != "etag":
            *parents, last = FIELDS[kind].get(name, (name,))
            place = made
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = value
    return made


def _ours(kind: str, body: Doc) -> Doc:
    names = {theirs: usual for usual, theirs in FIELDS[kind].items()}
    made: Doc = {}
    for name, value in body.items():
        nested = [theirs for theirs in names if theirs[0] == name and len(theirs) > 1]
        if not nested:
            made[names.get((name,), name)] = value
        for theirs in nested:
            if theirs[1] in value:
                made[names[theirs]] = value[theirs[1]]
    return made


@contextmanager
def other_platform(sandbox: str) -> Iterator[OtherPlatform]:
    """Serve the sandbox at that address under the other contract."""
    platform = OtherPlatform(sandbox)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            length = int(self.headers.get("content-length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            headers = {name.lower(): value for name, value in self.headers.items()}
            try:
                status, answer = platform.answer(self.command, self.path, headers, body, self.connection)
            except ConnectionError:
                self.close_connection = True
                return
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815

        def log_message(self, *_: Any) -> None:
            """Nothing on stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        platform.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield platform
        finally:
            server.shutdown()
