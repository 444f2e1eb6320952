"""Changes of who belongs to a project, and of the project's tenant, with what they mean for its attachments."""

import uuid

from sandbox.platform import attached, attachments, owners, projects
from sandbox.platform.errors import ApiError
from sandbox.platform.store import Doc, Tx

PLATFORM = {"actor_type": "platform", "id": "platform"}


def set_identities(tx: Tx, project_id: str, people: list[Doc]) -> None:
    """Replace the people of a project, also in its attachments."""
    projects.org_of(tx, project_id)
    projects.set_identities(tx, project_id, people)
    for row in attached.of_project(tx, project_id):
        tx.save(row, {"identities": people})


def leave_tenant(tx: Tx, project_id: str) -> str:
    """Move a project to a tenant of its own. Its attachments begin to detach."""
    org = projects.org_of(tx, project_id)
    runtimes = [row.doc for row in tx.rows(owners.RUNTIME.kind, parent=org)]
    owned = [one["id"] for one in runtimes if one["owner_project_id"] == project_id and one["status"] != "deleted"]
    if owned:
        raise ApiError(
            409, "project_owns_runtime", "the project pays for a shared runtime; delete that first", id=owned
        )
    for row in attached.of_project(tx, project_id):
        if row.doc["status"] != "detaching":
            runtime = next(one for one in runtimes if one["id"] == row.doc["shared_runtime_id"])
            attachments.change(
                tx,
                runtime,
                row,
                {"status": "detaching"},
                correlation_id=str(uuid.uuid4()),
                actor=PLATFORM,
                reason="project_left_tenant",
            )
    new_org = str(uuid.uuid4())
    projects.move(tx, project_id, new_org)
    return new_org
