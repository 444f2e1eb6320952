"""What a person sees of a request while it is carried out, and whether it has ended."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import yaml

from runner.act import bundle
from runner.cli import view
from runner.cli.commands import FAILED, OK
from runner.cli.tables import ID_CHARS, Row
from runner.model.claims import is_about
from runner.model.platform import (
    OPEN,
    AppInstance,
    Health,
    InstanceStatus,
    Member,
    MemberStatus,
    Operation,
    OperationStatus,
)
from runner.slurm import waiting

MEMBERS_SHOWN = 20
GONE = (InstanceStatus.FAILED, InstanceStatus.STOPPED, InstanceStatus.DELETING, InstanceStatus.DELETED)
NOT_DONE = (OperationStatus.FAILED, OperationStatus.CANCELLED)


@dataclass(frozen=True)
class RequestState:
    """One look at a request: rows of its progress, its record, and its exit code once it has ended."""

    rows: Sequence[Row]
    record: AppInstance | Operation
    code: int | None = None
    failure: Sequence[str] = ()


@dataclass(frozen=True)
class Records:
    """The records of one instance, as read at one time. `operations` are all of them, or the open ones."""

    instance: AppInstance
    members: Sequence[Member]
    operations: Sequence[Operation]
    now: datetime
    patience: timedelta

    def operation_row(self, one: Operation) -> Row:
        open_now = [other for other in self.operations if other.status in OPEN]
        waits = waiting.of_operation(one, self.instance, self.members, open_now, self.now, self.patience)
        return view.operation_row(one, waits)

    def member_row(self, one: Member) -> Row:
        return view.member_row(one, self.operations, self.now)


def of_operation(operation: Operation, records: Records) -> RequestState:
    concerned = [
        one
        for one in records.members
        if is_about(operation, one) or (operation.of_instance and one.status != MemberStatus.DELETED)
    ]
    rows = [_operation(operation, records), _instance(records), *_members(concerned, records)]
    if operation.status == OperationStatus.SUCCEEDED:
        return RequestState(rows, operation, OK)
    if operation.status in NOT_DONE:
        return RequestState(rows, operation, FAILED, _failure_of(operation))
    return RequestState(rows, operation)


def of_deploy(records: Records) -> RequestState:
    """Done once the instance is running and healthy, and no operation of it is open or has failed."""
    instance, operations = records.instance, records.operations
    rows = [_instance(records), *(_operation(one, records) for one in operations), *_members(records.members, records)]
    failed = next((one for one in operations if one.status in NOT_DONE), None)
    busy = any(one.status in OPEN for one in operations)
    if instance.status in GONE or (failed and not busy):
        return RequestState(rows, instance, FAILED, _failure_of(failed) if failed else _failure_of_instance(instance))
    healthy = instance.status == InstanceStatus.RUNNING and instance.health == Health.HEALTHY
    return RequestState(rows, instance, OK if healthy and not busy else None)


def _operation(one: Operation, records: Records) -> Row:
    row = records.operation_row(one)
    return _row(one.label, one.status, None, row["waiting"], row["error"])


def _instance(records: Records) -> Row:
    one = records.instance
    taken = one.status != InstanceStatus.REQUESTED
    waits = None if taken else waiting.not_taken(one.created_at, records.now, records.patience)
    name = f"instance {one.name or str(one.id)[:ID_CHARS]}"
    return _row(name, one.status, one.health, waits, view.instance_row(one)["why"])


def _members(members: Sequence[Member], records: Records) -> list[Row]:
    """Those that are not ready first, and how many are left out."""
    ordered = sorted(members, key=lambda one: one.status == MemberStatus.READY)
    found = [records.member_row(one) for one in ordered[:MEMBERS_SHOWN]]
    rows = [
        _row(f"{row['member']} {row['host'] or ''}".strip(), row["status"], row["phase"], row["waiting"], row["error"])
        for row in found
    ]
    more = len(members) - len(found)
    return [*rows, *([_row(f"and {more} more members", None, None)] if more else [])]


def _row(subject: str, status: str | None, phase: str | None, *detail: str | None) -> Row:
    return {
        "subject": subject,
        "status": status,
        "phase": phase,
        "detail": "; ".join(one for one in detail if one) or None,
    }


def _failure_of(operation: Operation) -> list[str]:
    error = operation.error or {}
    code = str(error.get("code") or operation.status)
    message = str(error.get("message") or f"{operation.label} is {operation.status}")
    return _failure(code, message, operation.correlation_id)


def _failure_of_instance(instance: AppInstance) -> list[str]:
    reason = next(iter(instance.notes.reasons or []), None)
    code, message = (reason.code, reason.message) if reason else (None, None)
    message = message or f"the instance is {instance.status}"
    return _failure(code or instance.status, message, instance.correlation_id)


def _failure(code: str, message: str, correlation_id: str) -> list[str]:
    step = next_step(code)
    return [
        f"error: {code}: {message}",
        *([f"next: {step}"] if step else []),
        f"correlation {correlation_id}; all about it: gpuaas-slurm explain {correlation_id}",
    ]


def next_step(code: str) -> str | None:
    """What an operator does about an error, by the table of codes."""
    with contextlib.suppress(OSError):
        rows = yaml.safe_load((bundle.bundle_dir() / "app" / "error_codes.yaml").read_text())
        return next((str(row["text"]) for row in rows if code in row["codes"]), None)
    return None
