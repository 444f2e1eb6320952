"""Finds attachments: which projects use a shared runtime, and may do what there."""

from sandbox.platform.store import Row, Tx

KIND = "attachment"
CLOSED = "detached"


def open_ones(tx: Tx, runtime_id: str) -> list[Row]:
    return [row for row in tx.rows(KIND, parent=runtime_id) if row.doc["status"] != CLOSED]


def current(tx: Tx, runtime_id: str, project_id: str) -> Row | None:
    """The project's attachment that is not detached; it has one at most."""
    found = [row for row in tx.rows(KIND, project=project_id, parent=runtime_id) if row.doc["status"] != CLOSED]
    return found[0] if found else None


def of_project(tx: Tx, project_id: str) -> list[Row]:
    """The project's attachments to any runtime that are not detached."""
    runtimes = tx.sql.execute(
        "SELECT DISTINCT parent_id FROM objects WHERE kind=? AND project_id=?", (KIND, project_id)
    )
    found = [current(tx, row[0], project_id) for row in runtimes.fetchall()]
    return [row for row in found if row is not None]


def may_contribute(row: Row | None) -> bool:
    return row is not None and row.doc["status"] == "active" and bool(row.doc["may_contribute"])


def was_ever(tx: Tx, runtime_id: str, project_id: str) -> bool:
    """Whether the project is or was attached."""
    return bool(tx.rows(KIND, project=project_id, parent=runtime_id))
