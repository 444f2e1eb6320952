"""Lists: filters and cursors.

A cursor is the position of the last object on the page, not an offset. So a client never skips an object or gets one
twice, even if objects are added or changed while it reads.
"""

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass, field

from sandbox.platform.errors import ApiError
from sandbox.platform.store import Doc, Row, Tx


@dataclass(frozen=True)
class Listing:
    kind: str
    project: str | None
    parent: str = ""
    statuses: list[str] = field(default_factory=list)
    updated_since: str | None = None
    app_slugs: list[str] | None = None
    ids: list[str] | None = None
    limit: int = 100
    cursor: str | None = None
    show_etag: bool = True

    @property
    def _mark(self) -> str:
        """Binds a cursor to its filters: with other filters it would skip objects."""
        parts = [self.kind, self.project, self.parent, self.statuses, self.updated_since, self.app_slugs]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]

    def _position(self) -> int:
        if self.cursor is None:
            return 0
        try:
            mark, _, position = base64.urlsafe_b64decode(self.cursor.encode()).decode().partition(":")
            if mark == self._mark and 0 <= int(position) < 2**63:
                return int(position)
        except (binascii.Error, ValueError):
            pass
        raise ApiError(400, "invalid_request", "cursor does not belong to this list and its filters")

    def _next(self, position: int) -> str:
        return base64.urlsafe_b64encode(f"{self._mark}:{position}".encode()).decode()


def read(tx: Tx, listing: Listing) -> Doc:
    """One page, as the API shows it."""
    where = ["kind=?", "parent_id=?", "seq>?"]
    values: list[str | int] = [listing.kind, listing.parent, listing._position()]
    if listing.project is not None:
        where.append("project_id=?")
        values.append(listing.project)
    if listing.ids is not None:
        where.append("id IN (SELECT value FROM json_each(?))")
        values.append(json.dumps(listing.ids))
    if listing.statuses:
        where.append(f"status IN ({','.join('?' * len(listing.statuses))})")
        values += listing.statuses
    if listing.app_slugs is not None:
        where.append(f"app_slug IN ({','.join('?' * len(listing.app_slugs))})")
        values += listing.app_slugs
    if listing.updated_since:
        where.append("updated_at>=?")
        values.append(listing.updated_since)
    found = tx.sql.execute(
        f"SELECT seq, version, doc FROM objects WHERE {' AND '.join(where)} ORDER BY seq LIMIT ?",  # noqa: S608 - placeholders only
        [*values, listing.limit + 1],
    ).fetchall()
    rows = [Row(row[0], row[1], json.loads(row[2])) for row in found[: listing.limit]]
    return {
        "items": [row.shown() if listing.show_etag else row.doc for row in rows],
        "next_cursor": listing._next(rows[-1].seq) if len(found) > listing.limit else None,
    }
