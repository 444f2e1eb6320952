"""Reads the page that a list call's parameters select."""

from sandbox.platform import clock
from sandbox.platform.calls import Call, Reply
from sandbox.platform.pages import Listing, read


def page_of(
    call: Call,
    kind: str,
    *,
    parent: str | None = None,
    app_slugs: list[str] | None = None,
    ids: list[str] | None = None,
    etags: bool = True,
) -> Reply:
    """A page of what the path's instance or runtime has, or of what is below another parent."""
    query = call.given.query
    since = query.get("updated_since")
    return Reply(
        read(
            call.tx,
            Listing(
                kind=kind,
                # Under a runtime's path the ids say which allocations are shown, whosever they are.
                project=call.sees if ids is None else query.get("project_id"),
                parent=call.current.doc["id"] if parent is None else parent,
                statuses=query.get("status", []),
                # In the stored format, so that it compares as text.
                updated_since=clock.stamp(clock.parse(since)) if since else None,
                app_slugs=app_slugs,
                ids=ids,
                limit=query.get("limit", 100),
                cursor=query.get("cursor"),
                show_etag=etags,
            ),
        )
    )
