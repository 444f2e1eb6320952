"""Vault tokens: those that log in, and those that wrap one answer for one reader."""

import json
import secrets
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from sandbox.platform import clock
from sandbox.platform.auth import digest
from sandbox.platform.store import Doc, Tx


@dataclass(frozen=True)
class VaultToken:
    accessor: str
    prefix: str
    expires_at: datetime
    wrapped: Doc | None

    @property
    def ttl(self) -> int:
        return max(0, int((self.expires_at - clock.now()).total_seconds()))


def issue(tx: Tx, prefix: str, ttl_seconds: int, wrapped: Doc | None = None) -> tuple[str, VaultToken]:
    token = f"hvs.{secrets.token_urlsafe(32)}"
    made = VaultToken(str(uuid.uuid4()), prefix, clock.now() + timedelta(seconds=ttl_seconds), wrapped)
    tx.sql.execute(
        "INSERT INTO vault_tokens VALUES (?,?,?,?,?)",
        (
            digest(token),
            made.accessor,
            prefix,
            clock.stamp(made.expires_at),
            json.dumps(wrapped) if wrapped is not None else None,
        ),
    )
    return token, made


def wrap(tx: Tx, data: Doc, ttl_seconds: int) -> tuple[str, datetime]:
    token, made = issue(tx, prefix="", ttl_seconds=ttl_seconds, wrapped=data)
    return token, made.expires_at


def look_up(tx: Tx, token: str) -> VaultToken | None:
    row = tx.sql.execute(
        "SELECT accessor, prefix, expires_at, wrapped FROM vault_tokens WHERE token_hash=? AND expires_at>?",
        (digest(token), clock.stamp()),
    ).fetchone()
    if row is None:
        return None
    return VaultToken(row[0], row[1], clock.parse(row[2]), json.loads(row[3]) if row[3] is not None else None)


def revoke(tx: Tx, token: str) -> None:
    tx.sql.execute("DELETE FROM vault_tokens WHERE token_hash=?", (digest(token),))


def unwrap(tx: Tx, token: str) -> Doc | None:
    """The wrapped data, once: the token is gone in the same transaction that reads it."""
    found = look_up(tx, token)
    if found is None or found.wrapped is None:
        return None
    revoke(tx, token)
    return found.wrapped
