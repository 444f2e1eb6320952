"""Records and lists as the API gives them: read strictly, page by page, with what differs noted as gaps."""

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

from pydantic import ValidationError

from runner import log
from runner.intent.errors import first_problem
from runner.model.errors import Unavailable
from runner.model.gaps import Gaps
from runner.model.platform import Allocation, Unreadable
from runner.model.scope import Scope
from runner.platform import evidence, wire
from runner.platform.answers import Listing, M, T, differs, id_of, read, text_of
from runner.platform.transport import Transport

PAGE, MAX_PAGES = 200, 5_000
PROBLEM_CHARS = 200
NOT_OURS = "project_id is not ours"


class Records:
    """Reads and writes through one transport, in one scope."""

    def __init__(self, transport: Transport, scope: Scope, gaps: Gaps, *, etags: bool) -> None:
        self._transport = transport
        self._scope = scope
        self._gaps = gaps
        self._etags = etags

    def body(self, method: str, path: wire.Path, model: type[M], body: Any) -> M:
        """An answer that is not a record with an id."""
        try:
            return read(method, path, model, body)
        except Unavailable as error:
            evidence.note_shape(self._gaps, method, path, error.message.rpartition(f"{model.__name__}: ")[2])
            raise

    def one(
        self,
        method: str,
        path: wire.Path,
        model: type[T],
        body: dict[str, Any] | None = None,
        *,
        key: str | None = None,
        match: str | None = None,
    ) -> T:
        answer = self._transport.call(method, path, json=body, key=key, match=match)
        record = self._record(answer.body)
        if answer.etag and isinstance(record, dict):
            record = {**record, "etag": answer.etag}
        found = self.body(method, path, model, record)
        evidence.note_record(self._gaps, method, path, record, versioned=self._etags)
        return found

    def listing(
        self, kind: str, path: wire.Path, model: type[T], filters: Mapping[str, str | None] | None = None, **owner: UUID
    ) -> Listing[T]:
        """Every record of a list. `owner` names a field that must have this value if the record has the field."""
        found: Listing[T] = Listing()
        for item in self.pages(path, filters or {}):
            record = self._record(item)
            try:
                one = model.model_validate(record)
                problem = next((f"{name} is not ours" for name, own in owner.items() if differs(one, name, own)), "")
                if isinstance(one, Allocation) and not self._scope.has_allocation(one):
                    problem = NOT_OURS
            except ValidationError as error:
                problem = first_problem(error)
                evidence.note_shape(self._gaps, "GET", path, problem)
            if not problem:
                evidence.note_record(self._gaps, "GET", path, record, versioned=self._etags)
                found.append(one)
                continue
            slug, status = text_of(record, "app_slug"), text_of(record, "status")
            odd = Unreadable(kind, id_of(record), problem[:PROBLEM_CHARS], slug, status)
            found.unreadable.append(odd)
            log.get(path=path, id=odd.id).warning("record not readable", kind=kind, problem=odd.problem)
        return found

    def pages(self, path: wire.Path, filters: Mapping[str, str | None]) -> Iterator[Any]:
        cursor: str | None = None
        cursors: set[str] = set()
        seen: set[str] = set()
        while True:
            query = {k: v for k, v in {**filters, "limit": str(PAGE), "cursor": cursor}.items() if v is not None}
            answer = self._transport.call("GET", path, params=query).body
            page: dict[str, Any] = {"items": answer} if isinstance(answer, list) else answer
            items, following = page.get("items"), page.get("next_cursor")
            if not isinstance(items, list) or not isinstance(following, str | None) or following in cursors:
                evidence.note_shape(self._gaps, "GET", path, "a page with items and next_cursor")
                raise Unavailable(f"GET {path}: the answer is not a page of a list", code="bad_answer")
            cursors.add(following or "")
            if len(cursors) > MAX_PAGES:
                raise Unavailable(f"GET {path}: the list does not end", code="bad_answer")
            cursor = following
            for item in items:
                # A list that changes while it is read may contain a record twice.
                identity = str(item.get("id")) if isinstance(item, dict) else repr(item)
                if identity not in seen:
                    seen.add(identity)
                    yield item
            if not cursor:
                return

    def _record(self, body: Any) -> Any:
        """A record as the models read it. Without ETags a field of that name is something else."""
        record = wire.record(body)
        if self._etags or not isinstance(record, dict):
            return record
        return {name: value for name, value in record.items() if name != "etag"}
