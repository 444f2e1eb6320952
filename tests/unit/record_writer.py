"""A writer of records, and the platform that it writes to."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from runner import context
from runner.model.attached import AttachedProject
from runner.model.errors import Conflict, NotFound
from runner.model.plan import stamp
from runner.model.platform import AppInstance, Member, Operation
from runner.report.writes import RecordWriter
from runner.slurm.app import SLURM
from tests.unit.lifecycle import cluster, serving
from tests.unit.worlds import ME, NOW, SOON, add, instance

OURS = {"claimed_by": ME, "lease_expires_at": stamp(SOON)}
INSTANCE = instance().id


@dataclass
class Platform:
    """Records by id, as the platform has them now. A write with another ETag than theirs conflicts."""

    members: dict[UUID, Member] = field(default_factory=dict)
    operations: dict[UUID, Operation] = field(default_factory=dict)
    instance_record: AppInstance | None = None
    sent: list[tuple[Any, ...]] = field(default_factory=list)
    meanwhile: Callable[[], None] = lambda: None
    seeded: Operation = field(default_factory=lambda: add(4))
    refusal: Conflict | None = None  # of a write to an attachment

    def now(self) -> datetime:
        return NOW

    def member(self, instance_id: UUID, member_id: UUID) -> Member:
        assert instance_id == INSTANCE
        return self.members[member_id]

    def instance(self, instance_id: UUID) -> AppInstance:
        assert instance_id == INSTANCE and self.instance_record
        return self.instance_record

    def create_member(self, instance_id: UUID, body: Any, **more: Any) -> Member:
        self.sent.append((instance_id, body, more))
        return serving(4, adapter_detail=body["adapter_detail"])

    def patch_member(self, member: Member, body: Any, *, key: str) -> Member:
        self.meanwhile()
        self.sent.append((member.etag, body, key, context.correlation_id()))
        if member.etag != self.members[member.id].etag:
            raise Conflict("changed meanwhile", status=412)
        return member.model_copy(update=body | {"etag": f"{member.etag}+"})

    def patch_operation(self, instance_id: UUID, operation: Operation, body: Any, *, key: str) -> Operation:
        self.sent.append((instance_id, operation.etag, body, key))
        if operation.etag != self.operations[operation.id].etag:
            raise Conflict("changed meanwhile", status=412)
        return operation.model_copy(update=body)

    def seed_operation(self, instance_id: UUID, body: Any, *, key: str) -> Operation:
        self.sent.append((instance_id, body, key))
        return self.seeded

    def patch_attachment(
        self, instance_id: UUID, attachment: AttachedProject, body: Any, *, key: str
    ) -> AttachedProject:
        self.sent.append((instance_id, attachment.id, body, key))
        if self.refusal:
            raise self.refusal
        return attachment.written(body)

    def operation_again(self, instance_id: UUID, operation: Operation) -> Operation:
        assert instance_id == INSTANCE
        return self.operations[operation.id]

    def patch_instance(self, before: AppInstance, body: Any, *, key: str) -> AppInstance:
        assert self.instance_record
        self.sent.append((before.etag, body, key))
        if before.etag != self.instance_record.etag:
            raise Conflict("changed meanwhile", status=412)
        return before.model_copy(update=body)

    def member_operation(self, instance_id: UUID, operation_id: UUID) -> Operation:
        return self._operation(instance_id, operation_id, of_instance=False)

    def instance_operation(self, instance_id: UUID, operation_id: UUID) -> Operation:
        return self._operation(instance_id, operation_id, of_instance=True)

    def _operation(self, instance_id: UUID, operation_id: UUID, *, of_instance: bool) -> Operation:
        found = self.operations.get(operation_id)
        if instance_id != INSTANCE or found is None or found.of_instance != of_instance:
            raise NotFound("404")
        return found


def a_member(number: int = 2, **changes: Any) -> Member:
    return serving(
        number, etag=changes.pop("etag", "1"), adapter_detail={"fence": 4} | changes.pop("detail", {}), **changes
    )


def changed(member: Member, etag: str | None = "2", status: str | None = None, **recorded: Any) -> Member:
    """The member after a write of another client."""
    update = {"adapter_detail": member.adapter_detail | recorded, "etag": etag, "status": status or member.status}
    return member.model_copy(update=update)


def writer(platform: Platform, *members: Member, **world: Any) -> RecordWriter:
    for member in members:
        platform.members.setdefault(member.id, member)
    settings: Any = SimpleNamespace(runner_id=ME)
    client: Any = platform
    return RecordWriter(client, settings, cluster(*members).later(**world), SLURM)
