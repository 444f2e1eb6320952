"""The outermost layer: records every request and carries out faults, where the connection itself can be broken."""

import asyncio
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from sandbox.platform import clock
from sandbox.platform.faults import Fault, Faults

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

KEPT_REQUESTS = 20_000
WATCHED = ("/api/v1", "/v1/")


class RequestLog:
    """The last requests, numbered: for benchmarks that count calls and tests that ask what was sent."""

    def __init__(self) -> None:
        self._kept: deque[dict[str, Any]] = deque(maxlen=KEPT_REQUESTS)
        self.last = 0
        # Bodies hold secrets, so they are kept only for tests that look for some.
        self.keeps_bodies = False

    def add(self, entry: dict[str, Any]) -> None:
        self.last += 1
        self._kept.append({"seq": self.last, **entry})

    def since(self, seq: int) -> list[dict[str, Any]]:
        return [entry for entry in self._kept if entry["seq"] > seq]


class Gate:
    def __init__(self, app: App, faults: Faults, log: RequestLog) -> None:
        self._app = app
        self._faults = faults
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(WATCHED):
            await self._app(scope, receive, send)
            return
        started, seen = time.perf_counter(), {"status": 0}
        bodies = {"body": bytearray(), "answer": bytearray()}

        async def heard() -> Message:
            message = await receive()
            bodies["body"] += message.get("body", b"")
            return message

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                seen["status"] = message["status"]
            bodies["answer"] += message.get("body", b"")
            await send(message)

        fault = self._faults.take(scope["method"], scope["path"])
        # Filled by the API while it works out what the request is.
        notes: dict[str, str | None] = {}
        scope["sandbox.notes"] = notes
        scope["sandbox.fault"] = fault
        try:
            if fault is None:
                await self._app(scope, heard, watched)
            else:
                await self._break(fault, scope, heard, watched, _transport(send))
        finally:
            kept = {name: bytes(body).decode(errors="replace") for name, body in bodies.items()}
            kept["query"] = scope["query_string"].decode(errors="replace")
            self._log.add(
                {
                    "at": clock.stamp(),
                    "method": scope["method"],
                    "path": scope["path"],
                    "template": notes.get("template"),
                    "status": seen["status"],
                    "ms": round((time.perf_counter() - started) * 1000, 2),
                    "principal": notes.get("principal"),
                    "correlation_id": notes.get("correlation_id"),
                    "fault": fault.action if fault else None,
                    **(kept if self._log.keeps_bodies else {}),
                }
            )

    async def _break(
        self, fault: Fault, scope: Scope, receive: Receive, send: Send, transport: asyncio.Transport
    ) -> None:
        if fault.action == "drop":
            transport.abort()
        elif fault.action == "status":
            body = fault.body if isinstance(fault.body, str) else json.dumps(fault.body or {})
            await _send(send, fault.status, {"content-type": "application/json"} | fault.headers, body.encode())
        elif fault.action == "garbage":
            await _send(send, 200, {"content-type": "application/json"}, b"\x00<html>not json\xff")
        elif fault.action == "apply_then_drop":
            await self._app(scope, receive, _swallow)
            transport.abort()
        elif fault.action in ("hold", "apply_then_hold"):
            if fault.action == "apply_then_hold":
                await self._app(scope, receive, _swallow)
            await self._hold(f"{scope['method']} {scope['path']}", receive)
            transport.abort()
        elif fault.action == "strip_etags":
            await self._app(scope, receive, _without_etags(send))
        elif fault.action == "spoil":
            await self._app(scope, receive, _spoilt(send, fault.body))
        elif fault.action == "truncate":
            await self._app(scope, receive, _halved(send))
            transport.close()
        else:
            if fault.action == "hang":
                await asyncio.sleep(fault.seconds)
            await self._app(scope, receive, send)

    async def _hold(self, request: str, receive: Receive) -> None:
        self._faults.held.append(request)
        while (await receive())["type"] != "http.disconnect":
            pass
        self._faults.held.remove(request)


def _transport(send: Send) -> asyncio.Transport:
    """uvicorn's request cycle owns the socket; breaking a connection for real needs it."""
    transport: asyncio.Transport = send.__self__.transport  # type: ignore[attr-defined]
    return transport


async def _send(send: Send, status: int, headers: dict[str, str], body: bytes) -> None:
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    raw.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


async def _swallow(message: Message) -> None:
    """Nothing reaches the client."""


def _without_etags(send: Send) -> Send:
    """As a platform that has no such thing."""

    def strip(body: dict[str, Any]) -> None:
        for item in body.get("items") or [body]:
            item.pop("etag", None)

    return _changed(send, strip, without=b"etag")


def _spoilt(send: Send, spoilt: dict[str, Any]) -> Send:
    """As a platform that keeps one record in a form of its own, or does not list it."""

    def spoil(body: dict[str, Any]) -> None:
        for item in [one for one in body.get("items") or [body] if one.get("id") == spoilt["id"]]:
            if "fields" in spoilt:
                item.update(spoilt["fields"])
            else:
                body["items"].remove(item)

    return _changed(send, spoil, without=b"")


def _changed(send: Send, change: Callable[[dict[str, Any]], None], *, without: bytes) -> Send:
    """The answer with its body changed, and without that header."""
    started: Message = {}

    async def changed(message: Message) -> None:
        if message["type"] == "http.response.start":
            started.update(message)
            return
        body = json.loads(message["body"]) if message.get("body") else None
        if isinstance(body, dict):
            change(body)
        content = json.dumps(body).encode() if body is not None else b""
        kept = [(name, value) for name, value in started["headers"] if name not in (without, b"content-length")]
        await send({**started, "headers": [*kept, (b"content-length", str(len(content)).encode())]})
        await send({"type": "http.response.body", "body": content})

    return changed


def _halved(send: Send) -> Send:
    async def half(message: Message) -> None:
        if message["type"] == "http.response.body":
            body = message.get("body", b"")
            message = {"type": "http.response.body", "body": body[: len(body) // 2], "more_body": True}
        await send(message)

    return half
