"""Every API call is checked for contract, identity, ownership and permission, and runs in one transaction.

The contract's operationId selects the handler. It changes objects in the call's transaction and returns the changes.
The audit row and the idempotency record are in the same transaction, so they exist exactly if the change does.
"""

import hashlib
import json
import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sandbox.platform import attached, auth, clock, idempotency, owners
from sandbox.platform.calls import HANDLERS, Call, Reply
from sandbox.platform.contract import Contract, Given, Operation
from sandbox.platform.errors import ApiError, not_found
from sandbox.platform.idempotency import Answer
from sandbox.platform.store import Store

LOG = logging.getLogger(__name__)
MAX_BODY_BYTES = 1024 * 1024


@dataclass
class Incoming:
    """A request as received; the API fills `notes` for the request log."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes
    origin: str
    abort_transaction: bool = False
    notes: dict[str, str | None] = field(default_factory=dict)


class Api:
    def __init__(self, store: Store, contract: Contract) -> None:
        self._store = store
        self._contract = contract
        documented = {op.id for op in contract.operations}
        if documented != set(HANDLERS):
            raise RuntimeError(f"contract and handlers differ: {sorted(documented ^ set(HANDLERS))}")

    def answer(self, incoming: Incoming) -> Answer:
        """Never raises: every result is an answer that conforms to the contract."""
        request_id = incoming.headers.get("x-request-id", "")[:128] or str(uuid.uuid4())
        correlation_id = incoming.headers.get("x-correlation-id", "")[:128] or str(uuid.uuid4())
        incoming.notes |= {"correlation_id": correlation_id, "traceparent": incoming.headers.get("traceparent")}
        found, path, methods = self._contract.match(incoming.method, incoming.path)
        incoming.notes["template"] = found.template if found else None
        if found is None:
            self._violation("client", incoming, request_id, ["this method and path are not in the contract"])
            error = (
                ApiError(405, "method_not_allowed", "this path does not have this method", allowed=methods)
                if methods
                else ApiError(404, "route_not_found", "no such path in this API")
            )
            return self._error(error, request_id, correlation_id)
        given = found.read(path, incoming.query, incoming.headers, incoming.body[: MAX_BODY_BYTES + 1])
        if len(incoming.body) > MAX_BODY_BYTES:
            given.problems.append("body: larger than 1 MiB")
        if given.problems:
            self._violation("client", incoming, request_id, given.problems)
        try:
            answer = self._within_transaction(found, given, incoming, request_id, correlation_id)
        except ApiError as error:
            answer = self._error(error, request_id, correlation_id)
        except BrokenContractError as error:
            self._violation("server", incoming, request_id, error.problems)
            broken = ApiError(500, "contract_violation", "the answer breaks the contract", problems=error.problems)
            answer = self._error(broken, request_id, correlation_id)
        except Exception:
            LOG.exception("unexpected error in %s", found.id)
            broken = ApiError(500, "internal_error", "the platform failed; its log has the cause")
            answer = self._error(broken, request_id, correlation_id)
        return answer

    def _within_transaction(
        self, found: Operation, given: Given, incoming: Incoming, request_id: str, correlation_id: str
    ) -> Answer:
        writes = found.method != "GET" and not found.public
        with self._store.transaction(write=writes) as tx:
            call = Call(tx, found, given, incoming.headers, request_id, correlation_id, incoming.origin)
            if not found.public:
                self._identify(call, incoming)
            if given.problems:
                raise ApiError(400, "invalid_request", "the request breaks the contract", problems=given.problems)
            if not found.public:
                self._admit(call)
            if not writes:
                return self._finish(HANDLERS[found.id](call), call)
            key = incoming.headers["idempotency-key"]
            print_ = idempotency.fingerprint(found.method, incoming.path, given.body)
            replay = idempotency.recall(tx, call.caller.id, key, print_)
            if replay is not None:
                return Answer(replay.status, {**replay.headers, "X-Request-Id": request_id}, replay.body)
            reply = HANDLERS[found.id](call)
            self._audit(call, reply)
            answer = self._finish(reply, call)
            idempotency.remember(tx, call.caller.id, key, print_, answer)
            if incoming.abort_transaction:
                raise ApiError(500, "internal_error", "the transaction was aborted before its commit")
            return answer

    def _identify(self, call: Call, incoming: Incoming) -> None:
        call.principal = auth.authenticate(call.tx, incoming.headers.get("authorization"))
        incoming.notes["principal"] = call.principal.id
        caller, path = call.principal, call.given.path
        if caller.kind not in call.operation.callers:
            raise ApiError(
                403,
                "ownership_required",
                f"{call.operation.id} is not open to this kind of caller",
                caller=caller.kind,
                open_to=sorted(call.operation.callers),
            )
        # The same answer for a foreign and a missing one, so that it does not reveal which projects or tenants exist.
        for what, claimed, own in (
            ("project", path.get("project_id"), caller.project_id),
            ("project", incoming.headers.get("x-project-id"), caller.project_id),
            ("tenant", path.get("org_id"), caller.org_id),
            ("shared runtime", caller.shared_runtime_id and path.get("shared_runtime_id"), caller.shared_runtime_id),
        ):
            if claimed is not None and claimed != own:
                raise ApiError(403, "ownership_required", f"the token belongs to another {what}")

    @staticmethod
    def _admit(call: Call) -> None:
        if call.operation.needs_action_key:
            call.permit()
        path = call.given.path
        if owners.INSTANCE.id_field in path:
            call.owner = call.tx.get(owners.INSTANCE.kind, path[owners.INSTANCE.id_field], project=call.project)
        elif owners.RUNTIME.id_field in path:
            call.owner = call.tx.get(owners.RUNTIME.kind, path[owners.RUNTIME.id_field], parent=path["org_id"])
            member = call.caller.project_id
            if member is not None and not attached.was_ever(call.tx, call.owner.doc["id"], member):
                raise not_found(owners.RUNTIME.kind)
        if call.owner is not None:
            call.permit(call.owner.doc["app_slug"])

    @staticmethod
    def _audit(call: Call, reply: Reply) -> None:
        kind, object_id = reply.touched or (None, None)
        call.tx.sql.execute(
            "INSERT INTO audit (at, project_id, actor_type, actor_id, action, object_kind, object_id, request_id,"
            " correlation_id, user_agent, changes) VALUES (?,?,?,?,?,?,?,?,?,?,?)",
            (
                clock.stamp(),
                call.caller.project_id,
                call.caller.actor_type,
                call.caller.id,
                call.operation.id,
                kind,
                object_id,
                call.request_id,
                call.correlation_id,
                call.headers.get("user-agent"),
                json.dumps(reply.changes),
            ),
        )

    @staticmethod
    def _finish(reply: Reply, call: Call) -> Answer:
        """Check the answer before the commit: an answer outside the contract must not leave a change."""
        headers, status, body = {"X-Request-Id": call.request_id}, reply.status, json.dumps(reply.body)
        etag = reply.etag
        if etag is None and call.operation.method == "GET":
            etag = f'W/"{hashlib.sha256(body.encode()).hexdigest()[:32]}"'
        if etag is not None:
            headers["ETag"] = etag
        shown_body: Any = reply.body
        if call.operation.method == "GET" and etag is not None and call.headers.get("if-none-match") == etag:
            status, body, shown_body = 304, "", None
        problems = call.operation.check_answer(status, headers, shown_body)
        if problems:
            raise BrokenContractError(problems)
        return Answer(status, headers, body)

    @staticmethod
    def _error(error: ApiError, request_id: str, correlation_id: str) -> Answer:
        headers = {"X-Request-Id": request_id}
        if error.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if error.status == 405:
            headers["Allow"] = ", ".join(error.details["allowed"])
        body = {
            "code": error.code,
            "message": error.message,
            "correlation_id": correlation_id,
            "details": error.details,
        }
        return Answer(error.status, headers, json.dumps(body))

    def _violation(self, side: str, incoming: Incoming, request_id: str, problems: list[str]) -> None:
        with self._store.transaction(write=True) as tx:
            tx.sql.execute(
                "INSERT INTO violations (at, side, method, path, problems, request_id, user_agent)"
                " VALUES (?,?,?,?,?,?,?)",
                (
                    clock.stamp(),
                    side,
                    incoming.method,
                    incoming.path,
                    json.dumps(problems),
                    request_id,
                    incoming.headers.get("user-agent"),
                ),
            )


class BrokenContractError(Exception):
    """The platform's answer does not conform to the contract."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems
