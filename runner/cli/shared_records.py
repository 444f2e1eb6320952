"""What the commands of `gpuaas-slurm shared` read and send: for the tenant's administrator, and for a project."""

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from runner.cli.commands import as_operator
from runner.cli.view import Row
from runner.model.attached import AttachedProject
from runner.model.attachments import AttachmentStatus
from runner.model.errors import RequestError
from runner.model.platform import Allocation, AppInstance, Operation
from runner.model.scope import ProjectScope, TenantScope
from runner.observe.find import find_instance, only, read_uuid
from runner.platform.client import Client
from runner.settings import Settings
from runner.slurm.attached import OPEN, ProjectNotes

AS_ADMINISTRATOR = (
    "this command is for the tenant's administrator: set GPUAAS_ORG_ID and your own GPUAAS_OPERATOR_TOKEN, and unset"
    " GPUAAS_PROJECT_ID"
)
ROOT_WARNING = (
    "whoever is root on a worker can read the munge key and act as any user of the cluster: the tenant trusts project"
    " {} with the whole cluster"
)
AS_PROJECT = "this command is for a project: set GPUAAS_PROJECT_ID and a GPUAAS_OPERATOR_TOKEN of that project"


@dataclass(frozen=True)
class Runtime:
    """The shared runtime that a command is about, with a client of its scope."""

    client: Client
    settings: Settings
    record: AppInstance

    def attachments(self) -> list[AttachedProject]:
        """All of them; RequestError if one cannot be read, since what is shown would be incomplete."""
        found = self.client.attachments(self.record.id)
        if found.unreadable:
            raise RequestError(f"{found.unreadable[0]}: have the platform's operators correct the record")
        return list(found)

    def attachment(self, project: str) -> AttachedProject:
        """A project's attachment that is not detached, by the project's id or its start."""
        listed = [one for one in self.attachments() if one.status != AttachmentStatus.DETACHED]
        found = [one for one in listed if project and str(one.project_id).startswith(project)]
        return only(found, project, "attached project", listed, lambda one: f"{one.project_id} {one.status}")

    def change(self, attachment: AttachedProject, body: dict[str, Any]) -> AttachedProject:
        return self.client.patch_attachment(self.record.id, attachment, body, key=uuid.uuid4().hex)

    def attach(self, project: UUID, terms: dict[str, Any]) -> AttachedProject:
        body = {"project_id": str(project), **terms}
        return self.client.create_attachment(self.record.id, body, key=uuid.uuid4().hex)

    def request(self, body: dict[str, Any]) -> Operation:
        return self.client.create_operation(self.record.id, body, key=uuid.uuid4().hex)

    def eligible(self) -> Sequence[Allocation]:
        """Allocations that may be added or contributed now, of every project that may."""
        return self.client.allocations(eligible="true")


@contextlib.contextmanager
def as_administrator() -> Iterator[Runtime]:
    """The tenant's own runtime. Without GPUAAS_SHARED_RUNTIME_ID it is the only one there is."""
    with as_operator() as (client, loaded):
        if isinstance(loaded.scope, ProjectScope):
            raise RequestError(AS_ADMINISTRATOR)
        yield Runtime(client, loaded, find_instance(client, loaded, None))


@contextlib.contextmanager
def as_tenant() -> Iterator[tuple[Client, Settings]]:
    """The tenant alone: a runtime is yet to be made."""
    with as_operator() as (_, loaded):
        if loaded.org_id is None:
            raise RequestError(AS_ADMINISTRATOR)
        own = loaded.model_copy(update={"shared_runtime_id": None})
        assert isinstance(own.scope, TenantScope)
        with Client(own, person=True) as client:
            yield client, own


@contextlib.contextmanager
def as_project(org: str, runtime: str) -> Iterator[tuple[Client, UUID, UUID]]:
    """A project's own token on the runtime that it is attached to; gives the ids of the runtime and the project."""
    ids = {"--org": read_uuid(org), "--runtime": read_uuid(runtime)}
    if wrong := [name for name, found in ids.items() if found is None]:
        raise RequestError(
            f"{wrong[0]} is not an id. The tenant's administrator has it: gpuaas-slurm shared who --json"
        )
    with as_operator() as (_, loaded):
        if loaded.project_id is None:
            raise RequestError(AS_PROJECT)
        update = {"project_id": None, "org_id": ids["--org"], "shared_runtime_id": ids["--runtime"]}
        own = loaded.model_copy(update=update)
        with Client(own, person=True) as client:
            assert own.shared_runtime_id is not None
            yield client, own.shared_runtime_id, loaded.project_id


def row(attachment: AttachedProject) -> Row:
    """One attachment for a person: who may submit where, as the cluster was last made to have it."""
    noted = ProjectNotes.read(attachment.adapter_detail)
    granted, detail = noted.granted, attachment.status_detail or {}
    reasons = [str(one.get("message")) for one in detail.get("reasons") or [] if isinstance(one, dict)]
    limits = ", ".join(f"{name} {value}" for name, value in (granted.limits if granted else {}).items())
    is_open = granted is not None and granted.submission == OPEN
    why = [granted.why_closed] if granted and granted.why_closed else []
    waits = [f"waits for {detail['waiting']}"] if detail.get("waiting") else []
    return {
        "project": attachment.project_id,
        "status": attachment.status,
        "submits": ("yes" if is_open else "no") if granted else "not yet known",
        "partitions": ", ".join(granted.partitions) if granted and is_open else None,
        "limits": limits or None,
        "account": noted.account,
        "users": len(attachment.identities),
        "contributes": _contributes(attachment),
        "why": "; ".join([*why, *waits, *reasons]) or None,
    }


def _contributes(attachment: AttachedProject) -> str | None:
    if not attachment.may_contribute:
        return None
    return "trusted" if attachment.trusted_contributor else "yes"
