"""Translates between our names and those of the platform's contract. The default contract changes nothing. Pure."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from runner.platform import wire
from runner.platform.contract import Contract, Kind

_ABSENT = object()


class Dialect:
    """One contract, as the transport uses it."""

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        self._fields = {kind: tuple(names.items()) for kind, names in contract.fields.items()}

    def url(self, path: wire.Path) -> str:
        """The path as this platform has it."""
        return wire.filled(self.contract, path)

    def project_header(self, path: wire.Path) -> str | None:
        """The project that the path belongs to, if the platform's path does not name it."""
        named = "{project_id}" in wire.template(self.contract, path)
        return None if named else path.ids.get("project_id")

    def query(self, ours: Mapping[str, str]) -> dict[str, str]:
        names = dict(self.contract.query)
        return {names.get(name, name): value for name, value in ours.items()}

    def outgoing(self, path: wire.Path, body: Any) -> Any:
        """A body that we send."""
        return _renamed(body, self._fields_of("login" if path.kind == "token" else path.kind))

    def incoming(self, method: str, path: wire.Path, body: Any) -> Any:
        """A successful answer: one record, or a page of records in our envelope."""
        pairs = [(theirs, ours) for ours, theirs in self._fields_of(path.kind)]
        if method != "GET" or not path.is_list:
            return _renamed(body, pairs)
        if isinstance(body, dict) and dict(self.contract.page) != {"items": "items", "next_cursor": "next_cursor"}:
            envelope = ((theirs, ours) for ours, theirs in dict(self.contract.page).items())
            body = _renamed(body, [(source, target) for source, target in envelope if source != target])
        items = body.get("items") if isinstance(body, dict) else body
        if not pairs or not isinstance(items, list):
            return body
        renamed = [_renamed(one, pairs) for one in items]
        return {**body, "items": renamed} if isinstance(body, dict) else renamed

    def refusal(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body of an error, in our flat envelope."""
        found = {ours: _read(body, theirs.split(".")) for ours, theirs in dict(self.contract.error).items()}
        return {name: value for name, value in found.items() if value is not _ABSENT}

    def _fields_of(self, kind: Kind | None) -> tuple[tuple[str, str], ...]:
        return self._fields.get(kind, ()) if kind else ()


def _renamed(record: Any, pairs: Iterable[tuple[str, str]]) -> Any:
    """The record with the value of each first name under the second one. A name that is absent stays absent."""
    pairs = tuple(pairs)
    if not pairs or not isinstance(record, dict):
        return record
    made = copy.deepcopy(record)
    moved = [(target, _pop(made, source.split("."))) for source, target in pairs]
    for target, value in moved:
        if value is not _ABSENT:
            _put(made, target.split("."), value)
    return made


def _read(record: Any, keys: list[str]) -> Any:
    for key in keys:
        if not isinstance(record, dict) or key not in record:
            return _ABSENT
        record = record[key]
    return record


def _pop(record: dict[str, Any], keys: list[str]) -> Any:
    """Take a value out, with the parents that are empty then."""
    parent = _read(record, keys[:-1])
    if not isinstance(parent, dict) or keys[-1] not in parent:
        return _ABSENT
    value = parent.pop(keys[-1])
    if not parent and len(keys) > 1:
        _pop(record, keys[:-1])
    return value


def _put(record: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        below = record.get(key)
        if not isinstance(below, dict):
            below = record[key] = {}
        record = below
    record[keys[-1]] = value
