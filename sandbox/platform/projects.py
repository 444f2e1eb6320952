"""Projects: their tenant, and who belongs to them. The control API of the sandbox changes both."""

import json
import uuid
from typing import Any

from sandbox.platform.errors import not_found
from sandbox.platform.store import Doc, Tx


def create(tx: Tx, name: str, org_id: str | None) -> Doc:
    """A project of a tenant; of a new tenant if none is given."""
    made = {"project_id": str(uuid.uuid4()), "org_id": org_id or str(uuid.uuid4())}
    tx.sql.execute("INSERT INTO projects VALUES (?,?,?)", (made["project_id"], made["org_id"], name))
    return made


def org_of(tx: Tx, project_id: str) -> str:
    row = tx.sql.execute("SELECT org_id FROM projects WHERE id=?", (project_id,)).fetchone()
    if row is None:
        raise not_found("project")
    return str(row[0])


def move(tx: Tx, project_id: str, org_id: str) -> None:
    """Give a project and its principals to another tenant."""
    tx.sql.execute("UPDATE projects SET org_id=? WHERE id=?", (org_id, project_id))
    tx.sql.execute("UPDATE principals SET org_id=? WHERE project_id=?", (org_id, project_id))


def identities(tx: Tx, project_id: str) -> list[Any]:
    row = tx.sql.execute("SELECT identities FROM project_identities WHERE project_id=?", (project_id,)).fetchone()
    found: list[Any] = json.loads(row[0]) if row else []
    return found


def set_identities(tx: Tx, project_id: str, people: list[Doc]) -> None:
    tx.sql.execute("INSERT OR REPLACE INTO project_identities VALUES (?,?)", (project_id, json.dumps(people)))
