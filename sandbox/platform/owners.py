"""What members, operations and events belong to: an app instance of a project, or a shared runtime of a tenant.

Both have the same calls and the same rules. Here is what differs: the names in the API, and the project of an object.
"""

import uuid
from dataclasses import dataclass

from sandbox.platform.store import Doc, Row, Tx


@dataclass(frozen=True)
class Owner:
    """A kind of owner, and the kinds of what it has. A kind is also the name in `*_not_found`."""

    kind: str
    member: str
    member_operation: str

    @property
    def id_field(self) -> str:
        return f"{self.kind}_id"


INSTANCE = Owner("app_instance", "member", "member_operation")
RUNTIME = Owner("shared_runtime", "worker", "worker_operation")


def is_runtime(owner: Doc) -> bool:
    return "owner_project_id" in owner


def of(owner: Doc) -> Owner:
    return RUNTIME if is_runtime(owner) else INSTANCE


def project_of(owner: Doc) -> str:
    """The project that is charged for it, whose allocations and credential it was deployed with."""
    return str(owner["owner_project_id"] if is_runtime(owner) else owner["project_id"])


def insert_below(tx: Tx, owner: Doc, kind: str, doc: Doc, *, project: str | None = None) -> Row:
    """Store an object of an owner with the owner's ids.

    What a runtime has is the tenant's, and no project's member sees it, unless it is stored for a project.
    """
    ids = {"id": str(uuid.uuid4()), "org_id": owner["org_id"], of(owner).id_field: owner["id"]}
    if not is_runtime(owner):
        ids["project_id"] = owner["project_id"]
    return tx.insert(kind, {**ids, **doc}, parent=owner["id"], project=project or ids.get("project_id", ids["org_id"]))
