"""Idempotency keys: a write with the same key happens once, however often it is retried.

Only successes are kept. An error changed nothing, so the same key may be used again.
"""

import hashlib
import json
from dataclasses import dataclass

from sandbox.platform import clock
from sandbox.platform.errors import ApiError
from sandbox.platform.store import Tx


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: str


def fingerprint(method: str, path: str, body: object) -> str:
    """A digest of method, path and body; headers and the order of keys in the body do not matter."""
    text = json.dumps([method, path, body], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def recall(tx: Tx, principal: str, key: str, print_: str) -> Answer | None:
    row = tx.sql.execute(
        "SELECT fingerprint, status, headers, body FROM idempotency WHERE principal=? AND key=?",
        (principal, key),
    ).fetchone()
    if row is None:
        return None
    if row[0] != print_:
        raise ApiError(409, "idempotency_conflict", "this Idempotency-Key was used for another request; use a new one")
    return Answer(row[1], {**json.loads(row[2]), "Idempotent-Replayed": "true"}, row[3])


def remember(tx: Tx, principal: str, key: str, print_: str, answer: Answer) -> None:
    tx.sql.execute(
        "INSERT INTO idempotency VALUES (?,?,?,?,?,?,?)",
        (principal, key, print_, answer.status, json.dumps(answer.headers), answer.body, clock.stamp()),
    )
