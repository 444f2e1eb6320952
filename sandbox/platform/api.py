"""Every API call is checked for contract, identity, ownership and permission, and runs in one transaction.

The contract's operationId selects the handler. It changes objects in the call's transaction and returns the changes.
The audit row and the idempotency record are in the same transaction, so they exist exactly if the change does.
"""

import hashlib
import json
import logging
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sandbox.platform import apps, auth, clock, idempotency
from sandbox.platform.contract import Contract, Given, Operation
from sandbox.platform.errors import ApiError, invalid_transition
from sandbox.platform.idempotency import Answer
from sandbox.platform.store import Doc, Row, Store, Tx

LOG = logging.getLogger(__name__)
MAX_BODY_BYTES = 1024 * 1024


TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


@dataclass
class Call:
    """What a handler gets."""

    tx: Tx
    operation: Operation
    given: Given
    headers: Mapping[str, str]
    request_id: str
    correlation_id: str
    origin: str
    principal: auth.Principal | None = None
    instance: Row | None = None

    @property
    def caller(self) -> auth.Principal:
        if self.principal is None:
            raise RuntimeError(f"{self.operation.id} has no caller")
        return self.principal

    @property
    def project(self) -> str:
        return self.given.path["project_id"]

    @property
    def traceparent(self) -> str | None:
        """The place of this call in a trace; None for a header that is not valid, which the standard ignores."""
        found = TRACEPARENT.fullmatch(self.headers.get("traceparent", ""))
        return found[0] if found and int(found[1], 16) and int(found[2], 16) else None

    @property
    def current(self) -> Row:
        """The app instance the path names."""
        if self.instance is None:
            raise RuntimeError(f"{self.operation.id} has no app instance in its path")
        return self.instance

    def permit(self, app_slug: str | None = None) -> None:
        """Refuse unless the caller holds the action key of the app's manifest (any app's, if no app is named)."""
        needed = apps.keys_for(self.tx, self.operation.id, app_slug)
        if not needed & self.caller.action_keys:
            raise ApiError(
                403,
                "insufficient_permissions",
                f"{self.operation.id} needs an action key that this principal does not have",
                required=sorted(needed),
                operation=self.operation.id,
            )

    def require_adapter(self) -> None:
        """Only the instance's service account may write state; an operator's token may not."""
        owner = self.current.doc["operator_service_account_id"]
        if not self.caller.is_service_account or owner not in (None, self.caller.id):
            raise ApiError(403, "ownership_required", "only the instance's operator service account may write this")

    def require_not_deleted(self) -> None:
        if self.current.doc["status"] == "deleted":
            raise invalid_transition("the instance is deleted", current="deleted")

    def check_if_match(self, row: Row) -> None:
        wanted = self.headers.get("if-match")
        if wanted is not None and wanted != "*" and row.etag not in (part.strip() for part in wanted.split(",")):
            raise ApiError(412, "precondition_failed", "the object has changed; read it again", current_etag=row.etag)


@dataclass(frozen=True)
class Reply:
    """The result of a handler. `touched` names the object for the audit row."""

    body: Doc
    status: int = 200
    etag: str | None = None
    touched: tuple[str, str] | None = None
    changes: Doc = field(default_factory=dict)


Handler = Callable[[Call], Reply]
HANDLERS: dict[str, Handler] = {}


def operation(operation_id: str) -> Callable[[Handler], Handler]:
    """Register a handler for one operationId of the contract."""

    def register(handler: Handler) -> Handler:
        HANDLERS[operation_id] = handler
        return handler

    return register


def shown(row: Row, *, kind: str, status: int = 200, changes: Doc | None = None) -> Reply:
    """The usual reply: the object with its ETag."""
    return Reply(row.shown(), status, row.etag, (kind, row.doc["id"]), changes or {})


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
        # The same answer for a foreign and a missing project, so that it does not reveal which projects exist.
        for claimed in (call.given.path.get("project_id"), incoming.headers.get("x-project-id")):
            if claimed is not None and claimed != call.principal.project_id:
                raise ApiError(403, "ownership_required", "the token belongs to another project")

    @staticmethod
    def _admit(call: Call) -> None:
        if call.operation.needs_action_key:
            call.permit()
        instance_id = call.given.path.get("app_instance_id")
        if instance_id is not None:
            call.instance = call.tx.get("app_instance", instance_id, project=call.project)
            call.permit(call.instance.doc["app_slug"])

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
