"""The platform's API as typed calls of one scope: records, lists, operations, events and credentials."""

import uuid
from datetime import datetime
from typing import Any
from uuid import UUID

from runner import context, log
from runner.model.attached import AttachedProject
from runner.model.entitlements import Entitlement
from runner.model.errors import NotFound, RequestError
from runner.model.gaps import Gaps
from runner.model.platform import (
    Allocation,
    AppInstance,
    Caller,
    CatalogApp,
    Delivery,
    Member,
    Operation,
    Resolution,
)
from runner.model.scope import ProjectScope, RuntimeScope
from runner.platform import contract, wire
from runner.platform.answers import Listing
from runner.platform.auth import TokenSource
from runner.platform.clock import Clock
from runner.platform.evidence import log_gap
from runner.platform.records import Records
from runner.platform.transport import Transport
from runner.settings import Settings
from runner.telemetry.meter import Meter
from runner.telemetry.tracer import Tracer


class Client:
    """The public API of one scope, as one principal. Not shared between threads: `clone` makes another."""

    def __init__(
        self,
        settings: Settings,
        *,
        person: bool = False,
        tokens: TokenSource | None = None,
        clock: Clock | None = None,
        meter: Meter | None = None,
        tracer: Tracer | None = None,
        gaps: Gaps | None = None,
    ) -> None:
        self.scope = settings.scope
        self._settings = settings
        self.meter = meter or Meter()
        self.tracer = tracer or Tracer()
        # Where the platform's answers differ from the contract; see runner/model/gaps.py.
        self.gaps = Gaps(log_gap) if gaps is None else gaps
        self._tokens = tokens or TokenSource(settings, person=person, meter=self.meter)
        self._clock = clock or Clock()
        self.contract = contract.load(settings.contract)
        self._transport = Transport(settings, self._tokens, self._clock, self.meter, self.tracer, self.gaps)
        self._records = Records(self._transport, self.scope, self.gaps, etags=self.contract.etags)

    def clone(self, *, patience: float | None = None, timeout: float | None = None) -> "Client":
        """A client for another thread, with the same token and clock.

        `patience` replaces the setting; `timeout` limits each attempt, if it is shorter than the setting.
        """
        settings = self._settings
        if patience is not None:
            settings = settings.model_copy(update={"api_patience_seconds": patience})
        if timeout is not None:
            shorter = min(timeout, settings.api_timeout_seconds)
            settings = settings.model_copy(update={"api_timeout_seconds": shorter})
        return Client(
            settings, tokens=self._tokens, clock=self._clock, meter=self.meter, tracer=self.tracer, gaps=self.gaps
        )

    def now(self) -> datetime:
        """The time by which leases and due times are judged: the platform's, once it has answered."""
        return self._clock.now()

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- reads ---------------------------------------------------------------------------------------------

    def me(self) -> Caller:
        """Whose token this is."""
        answer = self._transport.call("GET", wire.ME, project=self._settings.project_id)
        return self._records.body("GET", wire.ME, Caller, answer.body)

    def app(self, app_slug: str) -> CatalogApp:
        """What the catalog offers of an app."""
        path = wire.app(app_slug)
        answer = self._transport.call("GET", path, project=self._settings.project_id)
        return self._records.body("GET", path, CatalogApp, answer.body)

    def publish_app(self, app_slug: str, manifest: dict[str, Any], *, key: str) -> CatalogApp:
        """Put a version into the catalog; the same version with the same content again changes nothing."""
        path = wire.app_versions(app_slug)
        answer = self._transport.call("POST", path, json=manifest, key=key, project=self._settings.project_id)
        return self._records.body("POST", path, CatalogApp, answer.body)

    def instances(self, **filters: str | None) -> Listing[AppInstance]:
        """Every instance of the scope. An operator of a shared runtime may not list others, so it reads its own."""
        if isinstance(self.scope, RuntimeScope):
            return Listing([self.instance(self.scope.runtime_id)])
        return self._records.listing("app_instance", wire.instances(self.scope), AppInstance, filters)

    def instance(self, instance_id: UUID) -> AppInstance:
        return self._records.one("GET", wire.instance(self.scope, instance_id), AppInstance)

    def members(self, instance_id: UUID) -> Listing[Member]:
        return self._records.listing(
            "member", wire.members(self.scope, instance_id), Member, app_instance_id=instance_id
        )

    def member(self, instance_id: UUID, member_id: UUID) -> Member:
        return self._records.one("GET", wire.members(self.scope, instance_id).item(member_id), Member)

    def member_operations(self, instance_id: UUID, **filters: str | None) -> Listing[Operation]:
        path = wire.member_operations(self.scope, instance_id)
        return self._records.listing("member_operation", path, Operation, filters, app_instance_id=instance_id)

    def member_operation(self, instance_id: UUID, operation_id: UUID) -> Operation:
        path = wire.member_operations(self.scope, instance_id).item(operation_id)
        return self._records.one("GET", path, Operation)

    def instance_operations(self, instance_id: UUID, **filters: str | None) -> Listing[Operation]:
        path = wire.instance_operations(self.scope, instance_id)
        found = self._records.listing("instance_operation", path, Operation, filters, app_instance_id=instance_id)
        found[:] = [one.model_copy(update={"of_instance": True}) for one in found]
        return found

    def instance_operation(self, instance_id: UUID, operation_id: UUID) -> Operation:
        path = wire.instance_operations(self.scope, instance_id).item(operation_id)
        found = self._records.one("GET", path, Operation)
        return found.model_copy(update={"of_instance": True})

    def operation_again(self, instance_id: UUID, operation: Operation) -> Operation:
        """An operation of either kind, read again."""
        return self._operation("GET", instance_id, operation)

    def allocations(self, **filters: str | None) -> Listing[Allocation]:
        return self._records.listing("allocation", wire.allocations(self.scope), Allocation, filters)

    def allocation(self, allocation_id: UUID) -> Allocation:
        return self._records.one("GET", wire.allocations(self.scope).item(allocation_id), Allocation)

    def entitlements(self, **filters: str | None) -> Listing[Entitlement]:
        return self._records.listing("entitlement", wire.entitlements(self.scope), Entitlement, filters)

    def attachments(self, instance_id: UUID) -> Listing[AttachedProject]:
        """The projects on a shared runtime, detached ones too. An instance has none."""
        if isinstance(self.scope, ProjectScope):
            return Listing()
        path = wire.attachments(self.scope, instance_id)
        return self._records.listing("attachment", path, AttachedProject, app_instance_id=instance_id)

    def events(self, instance_id: UUID) -> list[dict[str, Any]]:
        return [one for one in self._records.pages(wire.events(self.scope, instance_id), {}) if isinstance(one, dict)]

    # -- writes --------------------------------------------------------------------------------------------

    def create_instance(self, body: dict[str, Any], *, key: str) -> AppInstance:
        return self._records.one("POST", wire.instances(self.scope), AppInstance, body, key=key)

    def patch_instance(self, instance: AppInstance, body: dict[str, Any], *, key: str) -> AppInstance:
        path = wire.instance(self.scope, instance.id)
        return self._records.one("PATCH", path, AppInstance, body, key=key, match=instance.etag)

    def create_member(self, instance_id: UUID, body: dict[str, Any], *, key: str) -> Member:
        path = wire.members(self.scope, instance_id)
        return self._records.one("POST", path, Member, body, key=key)

    def patch_member(self, member: Member, body: dict[str, Any], *, key: str) -> Member:
        path = wire.members(self.scope, member.app_instance_id).item(member.id)
        return self._records.one("PATCH", path, Member, body, key=key, match=member.etag)

    def create_attachment(self, instance_id: UUID, body: dict[str, Any], *, key: str) -> AttachedProject:
        return self._records.one("POST", wire.attachments(self.scope, instance_id), AttachedProject, body, key=key)

    def patch_attachment(
        self, instance_id: UUID, attachment: AttachedProject, body: dict[str, Any], *, key: str
    ) -> AttachedProject:
        path = wire.attachments(self.scope, instance_id).item(attachment.id)
        return self._records.one("PATCH", path, AttachedProject, body, key=key, match=attachment.etag)

    def create_operation(
        self, instance_id: UUID, body: dict[str, Any], *, key: str, of_instance: bool = False
    ) -> Operation:
        paths = wire.instance_operations if of_instance else wire.member_operations
        made = self._records.one("POST", paths(self.scope, instance_id), Operation, body, key=key)
        return made.model_copy(update={"of_instance": of_instance})

    def seed_operation(self, instance_id: UUID, body: dict[str, Any], *, key: str) -> Operation:
        """A member operation of the runner's own. The operator of a shared runtime may request none."""
        if not isinstance(self.scope, ProjectScope):
            raise RequestError("a shared runtime's operator requests no operations: the platform has to make them")
        return self.create_operation(instance_id, body, key=key)

    def patch_operation(self, instance_id: UUID, operation: Operation, body: dict[str, Any], *, key: str) -> Operation:
        return self._operation("PATCH", instance_id, operation, body, key=key, match=operation.etag)

    def _operation(self, method: str, instance_id: UUID, operation: Operation, *body: Any, **more: Any) -> Operation:
        """One operation of a member or of the instance, at its own address."""
        paths = wire.instance_operations if operation.of_instance else wire.member_operations
        path = paths(self.scope, instance_id).item(operation.id)
        found = self._records.one(method, path, Operation, *body, **more)
        return found.model_copy(update={"of_instance": operation.of_instance})

    def post_event(self, instance: AppInstance, kind: str, data: dict[str, Any], *, key: str) -> None:
        correlation = context.correlation_id() or instance.correlation_id
        body = {"type": kind, "correlation_id": correlation, "data": data}
        self._transport.call("POST", wire.events(self.scope, instance.id), json=body, key=key)

    def deliver_credential(self, credential: UUID) -> Delivery:
        # A delivery is used up by its first unwrap, so a retry of the tick must get a new one: the key is fresh.
        path = wire.deliveries(self.scope, credential)
        answer = self._transport.call("POST", path, json={}, key=uuid.uuid4().hex)
        return self._records.body("POST", path, Delivery, answer.body)

    def resolve_packages(self, instance: AppInstance, artifact: str) -> Resolution:
        """The answer of package policy. The key is fresh: an idempotent repeat would return an earlier answer."""
        path = wire.resolutions(self.scope, instance.id)
        body, key = {"artifact": artifact}, uuid.uuid4().hex
        try:
            answer = self._transport.call("POST", path, json=body, key=key)
        except NotFound:
            return Resolution(decision="missing")
        resolution = self._records.body("POST", path, Resolution, answer.body)
        log.get().info(
            "policy answered",
            decision=resolution.decision,
            rule=resolution.rule.get("id"),
            source=bool(resolution.source),
        )
        return resolution

    def issue_secret(self, instance_id: UUID, name: str) -> Delivery | None:
        """A runtime secret that the platform issues, wrapped for one use; None if it has no such call."""
        path = wire.issued_secrets(self.scope, instance_id)
        try:
            answer = self._transport.call("POST", path, json={"name": name}, key=uuid.uuid4().hex)
        except NotFound:
            return None
        return self._records.body("POST", path, Delivery, answer.body)
