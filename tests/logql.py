"""The part of LogQL that our queries use, evaluated on lines of a log. No Loki is needed, and none is replaced.

A query is a stream selector of equalities, then stages: `|= "text"`, `!= "text"`, `|~ "pattern"`, `!~ "pattern"`, which
look at the line, `| json`, and after it filters of labels by `=`, `!=`, `=~`, `!~`, where `and` or a comma means both
and `or` means one of them. As in Loki, a pattern of the line is searched, one of a label has to match all of it, a
field that is absent is the empty text, and the names of nested fields are joined by `_`. Anything else is refused.
"""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

Labels = dict[str, str]
Stage = Callable[[str, Labels], bool]
_TOKEN = re.compile(r'\s*(\|=|\|~|!=|!~|=~|==|[{}|,=()]|"(?:[^"\\]|\\.)*"|`[^`]*`|[A-Za-z_][A-Za-z0-9_]*)')
_COMPARE: dict[str, Callable[[str, str], bool]] = {
    "=": lambda found, wanted: found == wanted,
    "!=": lambda found, wanted: found != wanted,
    "=~": lambda found, wanted: re.fullmatch(wanted, found) is not None,
    "!~": lambda found, wanted: re.fullmatch(wanted, found) is None,
}
_LINE: dict[str, Callable[[str, str], bool]] = {
    "|=": lambda line, wanted: wanted in line,
    "!=": lambda line, wanted: wanted not in line,
    "|~": lambda line, wanted: re.search(wanted, line) is not None,
    "!~": lambda line, wanted: re.search(wanted, line) is None,
}


class NotSupported(ValueError):
    """The query uses more of LogQL than is evaluated here, or is not LogQL."""


@dataclass
class _Tokens:
    rest: list[str]

    def peek(self) -> str:
        return self.rest[0] if self.rest else ""

    def next_token(self, *wanted: str) -> str:
        found = self.peek()
        if not found or (wanted and found not in wanted):
            raise NotSupported(f"{found or 'the end'!r} where {' or '.join(wanted) or 'more'} has to be")
        return self.rest.pop(0)

    def text(self) -> str:
        found = self.next_token()
        if found[0] == "`":
            return found[1:-1]
        if found[0] != '"':
            raise NotSupported(f"{found!r} is not a text in quotes")
        return str(json.loads(found))

    def name(self) -> str:
        found = self.next_token()
        if not re.fullmatch(r"[A-Za-z_]\w*", found):
            raise NotSupported(f"{found!r} is not a label")
        return found


@dataclass(frozen=True)
class Query:
    stream: Labels
    stages: tuple[Stage, ...]
    fields: frozenset[str]  # the labels that it compares

    def selects(self, line: str, stream: Labels) -> bool:
        if any(stream.get(name) != value for name, value in self.stream.items()):
            return False
        labels = dict(stream)
        return all(stage(line, labels) for stage in self.stages)


def parse(query: str) -> Query:
    tokens, at = list[str](), 0
    query = query.strip()
    while at < len(query):
        match = _TOKEN.match(query, at)
        if match is None:
            raise NotSupported(f"not read: {query[at : at + 30]!r}")
        tokens.append(match[1])
        at = match.end()
    return _query(_Tokens(tokens))


def _query(tokens: _Tokens) -> Query:
    stream: Labels = {}
    tokens.next_token("{")
    while tokens.peek() != "}":
        name = tokens.name()
        tokens.next_token("=")
        stream[name] = tokens.text()
        if tokens.peek() != "}":
            tokens.next_token(",")
    tokens.next_token("}")
    if not stream:
        raise NotSupported("a stream selector needs a label")
    stages, fields, parsed = list[Stage](), set[str](), False
    while tokens.peek():
        sign = tokens.next_token(*_LINE, "|")
        if sign != "|":
            stages.append(_line_filter(sign, tokens.text()))
        elif tokens.peek() == "json":
            tokens.next_token()
            stages.append(_json)
            parsed = True
        elif parsed:
            stages.append(_any_of(tokens, fields))
        else:
            raise NotSupported("a label is compared before `| json`")
    return Query(stream, tuple(stages), frozenset(fields))


def _line_filter(sign: str, wanted: str) -> Stage:
    return lambda line, _labels: _LINE[sign](line, wanted)


def _any_of(tokens: _Tokens, fields: set[str]) -> Stage:
    parts = [_all_of(tokens, fields)]
    while tokens.peek() == "or":
        tokens.next_token()
        parts.append(_all_of(tokens, fields))
    return lambda line, labels: any(one(line, labels) for one in parts)


def _all_of(tokens: _Tokens, fields: set[str]) -> Stage:
    parts = [_comparison(tokens, fields)]
    while tokens.peek() in ("and", ","):
        tokens.next_token()
        parts.append(_comparison(tokens, fields))
    return lambda line, labels: all(one(line, labels) for one in parts)


def _comparison(tokens: _Tokens, fields: set[str]) -> Stage:
    name = tokens.name()
    sign, wanted = tokens.next_token(*_COMPARE), tokens.text()
    fields.add(name)
    return lambda _line, labels: _COMPARE[sign](labels.get(name, ""), wanted)


def _json(line: str, labels: Labels) -> bool:
    """Adds the fields of the line. A line that is not JSON stays, without them."""
    try:
        found = json.loads(line)
    except ValueError:
        return True
    if isinstance(found, dict):
        # A field with the name of a label of the stream does not replace it.
        labels |= {name: value for name, value in _flat(found).items() if name not in labels}
    return True


def _flat(found: dict[str, Any], before: str = "") -> Labels:
    flat: Labels = {}
    for name, value in found.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{before}{name}_")
        elif not isinstance(value, list) and value is not None:
            flat[before + name] = value if isinstance(value, str) else json.dumps(value)
    return flat


def select(query: str, lines: Iterable[str], stream: Labels) -> list[str]:
    """The lines of this stream that the query selects."""
    read = parse(query)
    return [line for line in lines if read.selects(line, stream)]
