"""Holds lines of the runner's log to contract/log-line.schema.json."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

SCHEMA: dict[str, Any] = json.loads(
    (Path(__file__).resolve().parents[1] / "contract" / "log-line.schema.json").read_text()
)
_VALIDATOR = Draft202012Validator(SCHEMA)
Line = dict[str, Any]


def problems_of(line: Line) -> list[str]:
    return [f"{'.'.join(map(str, one.path))}: {one.message[:200]}" for one in _VALIDATOR.iter_errors(line)]


def read_lines(text: str) -> list[Line]:
    """The lines of a log; AssertionError names each that is not as the schema has it."""
    lines: list[Line] = []
    wrong: list[str] = []
    for one in filter(None, map(str.strip, text.splitlines())):
        try:
            line = json.loads(one)
        except ValueError:
            wrong.append(f"not JSON: {one[:200]}")
            continue
        lines.append(line)
        wrong += [f"{problem} in {one[:200]}" for problem in problems_of(line)]
    assert wrong == []
    return lines


def named(lines: Iterable[Line], event: str) -> list[Line]:
    return [one for one in lines if one["event"] == event]
