"""Vault's KV v2: versioned secrets with check-and-set."""

import json
from dataclasses import dataclass

from sandbox.platform import clock
from sandbox.platform.store import Doc, Tx


class CasError(Exception):
    """The check-and-set number is not the current version: another client wrote first."""


@dataclass(frozen=True)
class Version:
    number: int
    created_at: str
    deleted_at: str
    data: Doc | None

    def metadata(self) -> Doc:
        return {
            "created_time": self.created_at,
            "custom_metadata": None,
            "deletion_time": self.deleted_at,
            "destroyed": False,
            "version": self.number,
        }


def versions(tx: Tx, path: str) -> list[Version]:
    return [
        Version(row[0], row[1], row[2], json.loads(row[3]) if not row[2] else None)
        for row in tx.sql.execute(
            "SELECT version, created_at, deleted_at, data FROM vault_kv WHERE path=? ORDER BY version", (path,)
        )
    ]


def latest(tx: Tx, path: str) -> Version | None:
    found = versions(tx, path)
    return found[-1] if found else None


def write(tx: Tx, path: str, data: Doc, cas: int | None) -> Version:
    before = latest(tx, path)
    number = before.number if before else 0
    if cas is not None and cas != number:
        raise CasError
    made = Version(number + 1, clock.stamp(), "", data)
    tx.sql.execute(
        "INSERT INTO vault_kv (path, version, created_at, data) VALUES (?,?,?,?)",
        (path, made.number, made.created_at, json.dumps(data)),
    )
    return made


def delete_latest(tx: Tx, path: str) -> None:
    """Mark the latest version as deleted, as Vault does; its data can then not be read."""
    found = latest(tx, path)
    if found is not None and not found.deleted_at:
        tx.sql.execute(
            "UPDATE vault_kv SET deleted_at=? WHERE path=? AND version=?", (clock.stamp(), path, found.number)
        )


def undelete(tx: Tx, path: str, numbers: list[int]) -> None:
    for number in numbers:
        tx.sql.execute("UPDATE vault_kv SET deleted_at='' WHERE path=? AND version=?", (path, number))


def destroy(tx: Tx, path: str) -> None:
    tx.sql.execute("DELETE FROM vault_kv WHERE path=?", (path,))


def destroy_mount(tx: Tx, mount: str) -> None:
    tx.sql.execute("DELETE FROM vault_kv WHERE substr(path, 1, ?)=?", (len(mount) + 1, f"{mount}:"))


def children(tx: Tx, path: str) -> list[str]:
    """Names directly under a path; folders end with a slash."""
    folder = f"{path.rstrip('/')}/" if path.strip("/") else ""
    rows = tx.sql.execute("SELECT DISTINCT path FROM vault_kv WHERE substr(path, 1, ?)=?", (len(folder), folder))
    names = set()
    for (full,) in rows:
        head, slash, _ = full[len(folder) :].partition("/")
        names.add(head + slash)
    return sorted(names)
