"""Whether an audit export has every change that a smoke run requested. Pure.

The platform does not state the form of its audit. So an export is JSON lines of any form, and a line is about a request
if it has both its correlation id and the id of the record, wherever in the line they are.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Mutation:
    """A request of the run. An operation that has ended was also written by a runner, so it has two lines or more."""

    step: str
    record_id: str
    correlation_id: str
    least: int = 1


def read(text: str) -> tuple[list[frozenset[str]], int]:
    """The texts of each line, and how many lines are not JSON objects."""
    lines, odd = [], 0
    for line in text.splitlines():
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            lines.append(frozenset(_texts(found)))
        else:
            odd += 1
    return lines, odd


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)


def missing(lines: Sequence[frozenset[str]], mutations: Iterable[Mutation]) -> list[str]:
    """A sentence for each request that the audit does not have, or of which it has too little."""
    problems = []
    for one in mutations:
        found = sum({one.record_id, one.correlation_id} <= line for line in lines)
        if found < one.least:
            expected = f"{one.least} or more" if one.least > 1 else "one"
            problems.append(f"{one.step}: {found} lines with {one.record_id} and {one.correlation_id}, not {expected}")
    return problems
