"""Vault tokens: login tokens, and wrapping tokens that hold one answer for one reader."""

import json
import secrets
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from sandbox.platform import clock
from sandbox.platform.auth import digest
from sandbox.platform.store import Doc, Tx

# Capabilities by path, as in a policy; a path may end with a star, which matches any rest.
Rights = dict[str, list[str]]
EVERYTHING = ["create", "read", "update", "delete", "list"]


@dataclass(frozen=True)
class VaultToken:
    accessor: str
    rights: Rights
    expires_at: datetime
    wrapped: Doc | None

    @property
    def ttl(self) -> int:
        return max(0, int((self.expires_at - clock.now()).total_seconds()))

    def may(self, capability: str, path: str) -> bool:
        """Whether the rights include the capability. The longest matching path decides; ".." is never allowed."""
        fitting = [one for one in self.rights if path == one or (one[-1:] == "*" and path.startswith(one[:-1]))]
        best = max(fitting, key=len, default=None)
        return best is not None and capability in self.rights[best] and ".." not in path.split("/")


def issue(tx: Tx, rights: Rights, ttl_seconds: int, wrapped: Doc | None = None) -> tuple[str, VaultToken]:
    token = f"hvs.{secrets.token_urlsafe(32)}"
    made = VaultToken(str(uuid.uuid4()), rights, clock.now() + timedelta(seconds=ttl_seconds), wrapped)
    tx.sql.execute(
        "INSERT INTO vault_logins VALUES (?,?,?,?,?)",
        (
            digest(token),
            made.accessor,
            json.dumps(rights),
            clock.stamp(made.expires_at),
            json.dumps(wrapped) if wrapped is not None else None,
        ),
    )
    return token, made


def keep_root(tx: Tx, token: str) -> None:
    """Store the administrators' token. It has all rights and does not expire."""
    tx.sql.execute(
        "INSERT OR REPLACE INTO vault_logins VALUES (?,?,?,?,NULL)",
        (digest(token), "root", json.dumps({"*": [*EVERYTHING, "sudo"]}), "9999-12-31T23:59:59Z"),
    )


def wrap(tx: Tx, data: Doc, ttl_seconds: int) -> tuple[str, datetime]:
    token, made = issue(tx, {}, ttl_seconds=ttl_seconds, wrapped=data)
    return token, made.expires_at


def look_up(tx: Tx, token: str) -> VaultToken | None:
    row = tx.sql.execute(
        "SELECT accessor, rights, expires_at, wrapped FROM vault_logins WHERE token_hash=? AND expires_at>?",
        (digest(token), clock.stamp()),
    ).fetchone()
    if row is None:
        return None
    wrapped = json.loads(row[3]) if row[3] is not None else None
    return VaultToken(row[0], json.loads(row[1]), clock.parse(row[2]), wrapped)


def revoke(tx: Tx, token: str) -> None:
    tx.sql.execute("DELETE FROM vault_logins WHERE token_hash=?", (digest(token),))


def unwrap(tx: Tx, token: str) -> Doc | None:
    """The wrapped data. The token is deleted in the same transaction, so a second call returns None."""
    found = look_up(tx, token)
    if found is None or found.wrapped is None:
        return None
    revoke(tx, token)
    return found.wrapped
