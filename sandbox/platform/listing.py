"""Reads the page that a list call's parameters select."""

from sandbox.platform import clock
from sandbox.platform.api import Call, Reply
from sandbox.platform.pages import Listing, read


def page_of(
    call: Call, kind: str, *, of_instance: bool, app_slugs: list[str] | None = None, etags: bool = True
) -> Reply:
    query = call.given.query
    since = query.get("updated_since")
    return Reply(
        read(
            call.tx,
            Listing(
                kind=kind,
                project=call.project,
                parent=call.current.doc["id"] if of_instance else "",
                statuses=query.get("status", []),
                # In the stored format, so that it compares as text.
                updated_since=clock.stamp(clock.parse(since)) if since else None,
                app_slugs=app_slugs,
                limit=query.get("limit", 100),
                cursor=query.get("cursor"),
                show_etag=etags,
            ),
        )
    )
