"""The SQLite database: the schema, transactions, and one table for all objects of the API.

Objects of all kinds share a table because the platform treats them alike: an id, a project, a parent, a status to
filter by, a version that becomes the ETag, and a document that the platform mostly does not interpret.
"""

import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.platform import clock
from sandbox.platform.errors import not_found

Doc = dict[str, Any]

SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  kind TEXT NOT NULL, id TEXT NOT NULL, project_id TEXT NOT NULL, parent_id TEXT NOT NULL DEFAULT '',
  app_slug TEXT NOT NULL DEFAULT '', status TEXT NOT NULL DEFAULT '', updated_at TEXT NOT NULL,
  version INTEGER NOT NULL, doc TEXT NOT NULL, UNIQUE (kind, id));
CREATE INDEX IF NOT EXISTS objects_listing ON objects (kind, project_id, parent_id, seq);
CREATE TABLE IF NOT EXISTS audit (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, project_id TEXT, actor_type TEXT, actor_id TEXT,
  action TEXT NOT NULL, object_kind TEXT, object_id TEXT, request_id TEXT, correlation_id TEXT, user_agent TEXT,
  changes TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS idempotency (
  principal TEXT NOT NULL, key TEXT NOT NULL, fingerprint TEXT NOT NULL, status INTEGER NOT NULL, headers TEXT NOT NULL,
  body TEXT NOT NULL, at TEXT NOT NULL, PRIMARY KEY (principal, key));
CREATE TABLE IF NOT EXISTS violations (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, side TEXT NOT NULL, method TEXT NOT NULL, path TEXT NOT NULL,
  problems TEXT NOT NULL, request_id TEXT, user_agent TEXT);
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS signing_keys (
  kid TEXT PRIMARY KEY, secret TEXT NOT NULL, created_at TEXT NOT NULL, valid_until TEXT);
CREATE TABLE IF NOT EXISTS principals (
  id TEXT PRIMARY KEY, actor_type TEXT NOT NULL, org_id TEXT NOT NULL, project_id TEXT NOT NULL, name TEXT NOT NULL,
  action_keys TEXT NOT NULL, active INTEGER NOT NULL DEFAULT 1);
CREATE TABLE IF NOT EXISTS account_keys (
  key_id TEXT PRIMARY KEY, principal_id TEXT NOT NULL, secret_hash TEXT NOT NULL, revoked INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS runtime_operators (principal_id TEXT PRIMARY KEY, shared_runtime_id TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS projects (id TEXT PRIMARY KEY, org_id TEXT NOT NULL, name TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS project_identities (project_id TEXT PRIMARY KEY, identities TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS artifact_rules (
  id TEXT PRIMARY KEY, scope TEXT NOT NULL, owner_id TEXT NOT NULL DEFAULT '', effect TEXT NOT NULL,
  artifact TEXT NOT NULL, reason TEXT, source TEXT);
CREATE TABLE IF NOT EXISTS vault_logins (
  token_hash TEXT PRIMARY KEY, accessor TEXT NOT NULL, rights TEXT NOT NULL, expires_at TEXT NOT NULL, wrapped TEXT);
CREATE TABLE IF NOT EXISTS vault_mounts (path TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS vault_policies (name TEXT PRIMARY KEY, rights TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS vault_approles (
  mount TEXT NOT NULL, name TEXT NOT NULL, role_id TEXT NOT NULL, policies TEXT NOT NULL, PRIMARY KEY (mount, name));
CREATE TABLE IF NOT EXISTS vault_secret_ids (role_id TEXT NOT NULL, secret_hash TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS vault_kv (
  path TEXT NOT NULL, version INTEGER NOT NULL, created_at TEXT NOT NULL, deleted_at TEXT NOT NULL DEFAULT '',
  data TEXT NOT NULL, PRIMARY KEY (path, version));
"""


@dataclass(frozen=True)
class Row:
    """A stored object; `shown()` is its form in the API."""

    seq: int
    version: int
    doc: Doc

    @property
    def etag(self) -> str:
        return f'"v{self.version}"'

    def shown(self) -> Doc:
        return {**self.doc, "etag": self.etag}


class Tx:
    """One transaction. It has every change of a request, its audit row and its idempotency record."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.sql = connection

    def insert(self, kind: str, doc: Doc, *, parent: str = "", app_slug: str = "", project: str | None = None) -> Row:
        """Store a new object. The caller gives its `id` and its project, in the object or as an argument."""
        moment = clock.stamp()
        doc = {**doc, "created_at": moment, "updated_at": moment}
        cursor = self.sql.execute(
            "INSERT INTO objects (kind, id, project_id, parent_id, app_slug, status, updated_at, version, doc)"
            " VALUES (?,?,?,?,?,?,?,1,?)",
            (
                kind,
                doc["id"],
                doc["project_id"] if project is None else project,
                parent,
                app_slug,
                doc.get("status", ""),
                moment,
                json.dumps(doc),
            ),
        )
        return Row(int(cursor.lastrowid or 0), 1, doc)

    def find(self, kind: str, object_id: str, *, project: str | None = None, parent: str = "") -> Row | None:
        """An object by id, only inside the given project and parent."""
        query = "SELECT seq, version, doc FROM objects WHERE kind=? AND id=? AND parent_id=?"
        values = [kind, object_id, parent]
        if project is not None:
            query += " AND project_id=?"
            values.append(project)
        row = self.sql.execute(query, values).fetchone()
        return Row(row[0], row[1], json.loads(row[2])) if row else None

    def get(self, kind: str, object_id: str, *, project: str | None = None, parent: str = "") -> Row:
        """The same; an object that is not there is answered with 404."""
        row = self.find(kind, object_id, project=project, parent=parent)
        if row is None:
            raise not_found(kind)
        return row

    def save(self, row: Row, changes: Doc) -> Row:
        """Apply changes. An unchanged object keeps its version, so that its ETag changes only with its content."""
        doc = {**row.doc, **changes}
        if doc == row.doc:
            return row
        doc["updated_at"] = clock.stamp()
        self.sql.execute(
            "UPDATE objects SET doc=?, status=?, updated_at=?, version=version+1 WHERE seq=?",
            (json.dumps(doc), doc.get("status", ""), doc["updated_at"], row.seq),
        )
        return Row(row.seq, row.version + 1, doc)

    def rows(self, kind: str, *, project: str | None = None, parent: str = "") -> list[Row]:
        """All objects of a kind below a parent, only those of the project if one is given."""
        query = "SELECT seq, version, doc FROM objects WHERE kind=? AND parent_id=?"
        values = [kind, parent]
        if project is not None:
            query += " AND project_id=?"
            values.append(project)
        return [Row(row[0], row[1], json.loads(row[2])) for row in self.sql.execute(f"{query} ORDER BY seq", values)]

    def setting(self, name: str, default: str) -> str:
        row = self.sql.execute("SELECT value FROM settings WHERE name=?", (name,)).fetchone()
        return str(row[0]) if row else default

    def set_setting(self, name: str, value: str) -> None:
        self.sql.execute("INSERT OR REPLACE INTO settings VALUES (?,?)", (name, value))


class Store:
    """A SQLite file in WAL mode: readers never wait, writers take turns, and a killed process loses no commit."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The file holds secrets (of the Vault stand-in too), so it is created with mode 0600 before SQLite opens it.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        self._path = path
        self._local = threading.local()
        self._connection().executescript(SCHEMA)

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = sqlite3.connect(self._path, isolation_level=None, timeout=30)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            self._local.connection = connection
        return connection

    @contextmanager
    def transaction(self, *, write: bool) -> Iterator[Tx]:
        connection = self._connection()
        connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
        try:
            yield Tx(connection)
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")
