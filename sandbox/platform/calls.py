"""What a handler of a call gets and returns, and the registry of handlers by the contract's operationId."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sandbox.platform import apps, auth, owners
from sandbox.platform.contract import Given, Operation
from sandbox.platform.errors import ApiError, invalid_transition
from sandbox.platform.store import Doc, Row, Tx

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
    owner: Row | None = None

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
    def sees(self) -> str | None:
        """The project whose objects the caller sees here; None under a runtime's path for those who see all."""
        return self.given.path.get("project_id") or self.caller.project_id

    @property
    def current(self) -> Row:
        """The app instance or shared runtime that the path names."""
        if self.owner is None:
            raise RuntimeError(f"{self.operation.id} has neither an app instance nor a shared runtime in its path")
        return self.owner

    @property
    def kinds(self) -> owners.Owner:
        """The kinds of objects that the path's app instance or shared runtime has."""
        return owners.of(self.current.doc)

    def permit(self, app_slug: str | None = None) -> None:
        """Refuse unless the caller holds the call's action key.

        It is the contract's where that names one, else that of the app's manifest (any app's, if no app is named).
        """
        own = self.operation.action_key
        needed = {own} if own else apps.keys_for(self.tx, self.operation.id, app_slug)
        if not needed & self.caller.action_keys:
            raise ApiError(
                403,
                "insufficient_permissions",
                f"{self.operation.id} needs an action key that this principal does not have",
                required=sorted(needed),
                operation=self.operation.id,
            )

    def require_adapter(self) -> None:
        """Only the instance's service account or the runtime's operator identity may write state; a person may not."""
        account = self.current.doc.get("operator_service_account_id")
        if not self.caller.is_adapter or account not in (None, self.caller.id):
            raise ApiError(403, "ownership_required", "only the adapter's own identity may write this")

    def require_not_deleted(self) -> None:
        if self.current.doc["status"] == "deleted":
            raise invalid_transition("it is deleted", current="deleted")

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


def operation(*operation_ids: str) -> Callable[[Handler], Handler]:
    """Register a handler for operationIds of the contract: the same call on an instance and on a shared runtime."""

    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(operation_ids, handler))
        return handler

    return register


def shown(row: Row, *, kind: str, status: int = 200, changes: Doc | None = None) -> Reply:
    """The usual reply: the object with its ETag."""
    return Reply(row.shown(), status, row.etag, (kind, row.doc["id"]), changes or {})
