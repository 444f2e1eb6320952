"""The outermost layer: records every request and carries out faults. It can also break the connection itself."""

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
# A matching request is enough to meet a fault, except for these: the request must reach what they change.
MET_BY_ITS_EFFECT = ("apply_then_drop", "abort_transaction", "strip_etags", "spoil")


class RequestLog:
    """The last requests with numbers, for benchmarks that count calls and tests that check what was sent."""

    def __init__(self) -> None:
        self._kept: deque[dict[str, Any]] = deque(maxlen=KEPT_REQUESTS)
        self.last = 0
        # Bodies hold secrets, so they are kept only for tests that search them.
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

        async def recorded_receive() -> Message:
            message = await receive()
            bodies["body"] += message.get("body", b"")
            return message

        async def recorded_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                seen["status"] = message["status"]
            bodies["answer"] += message.get("body", b"")
            await send(message)

        fault = self._faults.use_next(scope["method"], scope["path"])
        # The API fills this in while it handles the request.
        notes: dict[str, str | None] = {}
        scope["sandbox.notes"] = notes
        scope["sandbox.fault"] = fault
        try:
            if fault is None:
                await self._app(scope, recorded_receive, recorded_send)
            else:
                await self._break(fault, scope, recorded_receive, recorded_send, _transport(send))
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
                    "traceparent": notes.get("traceparent"),
                    "fault": fault.action if fault else None,
                    **(kept if self._log.keeps_bodies else {}),
                }
            )

    async def _break(
        self, fault: Fault, scope: Scope, receive: Receive, send: Send, transport: asyncio.Transport
    ) -> None:
        def met() -> None:
            self._faults.mark_met(fault)

        if fault.action not in MET_BY_ITS_EFFECT:
            met()
        if fault.action == "drop":
            transport.abort()
        elif fault.action == "status":
            body = fault.body if isinstance(fault.body, str) else json.dumps(fault.body or {})
            await _send(send, fault.status, {"content-type": "application/json"} | fault.headers, body.encode())
        elif fault.action == "garbage":
            await _send(send, 200, {"content-type": "application/json"}, b"\x00<html>not json\xff")
        elif fault.action == "apply_then_drop":
            await self._app(scope, receive, _on_status(_swallow, lambda status: status < 400, met))
            transport.abort()
        elif fault.action in ("hold", "apply_then_hold"):
            if fault.action == "apply_then_hold":
                await self._app(scope, receive, _swallow)
            await self._hold(f"{scope['method']} {scope['path']}", receive)
            transport.abort()
        elif fault.action == "abort_transaction":
            await self._app(scope, receive, _on_status(send, lambda status: status == 500, met))
        elif fault.action == "strip_etags":
            await self._app(scope, receive, _without_etags(send, met))
        elif fault.action == "spoil":
            await self._app(scope, receive, _spoilt(send, fault.body, met))
        elif fault.action == "truncate":
            await self._app(scope, receive, _halved(send))
            transport.close()
        else:
            await asyncio.sleep(fault.seconds)
            await self._app(scope, receive, send)

    async def _hold(self, request: str, receive: Receive) -> None:
        self._faults.held.append(request)
        while (await receive())["type"] != "http.disconnect":
            pass
        self._faults.held.remove(request)


def _transport(send: Send) -> asyncio.Transport:
    """The socket, which uvicorn's request cycle owns; it is needed to break a connection."""
    transport: asyncio.Transport = send.__self__.transport  # type: ignore[attr-defined]
    return transport


async def _send(send: Send, status: int, headers: dict[str, str], body: bytes) -> None:
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    raw.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


async def _swallow(message: Message) -> None:
    """Nothing reaches the client."""


def _on_status(send: Send, expected: Callable[[int], bool], met: Callable[[], None]) -> Send:
    async def watched(message: Message) -> None:
        if message["type"] == "http.response.start" and expected(message["status"]):
            met()
        await send(message)

    return watched


def _without_etags(send: Send, met: Callable[[], None]) -> Send:
    """Answer like a platform without ETags."""

    def strip(body: dict[str, Any]) -> None:
        for item in body.get("items") or [body]:
            if item.pop("etag", None):
                met()

    return _changed(send, strip, without=b"etag")


def _spoilt(send: Send, spoilt: dict[str, Any], met: Callable[[], None]) -> Send:
    """Answer like a platform that has one record in another form, or does not list it."""

    def spoil(body: dict[str, Any]) -> None:
        for item in [one for one in body.get("items") or [body] if one.get("id") == spoilt["id"]]:
            met()
            if "fields" in spoilt:
                item.update(spoilt["fields"])
            else:
                body["items"].remove(item)

    return _changed(send, spoil, without=b"")


def _changed(send: Send, change: Callable[[dict[str, Any]], None], *, without: bytes) -> Send:
    """Send the answer with a changed body, and without the given header."""
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
