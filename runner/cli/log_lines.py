"""Reads log files for `explain --log`: JSON lines of the runner, among whatever else a file may hold.

A file is untrusted: lines may be binary, endless or of another program. What is not a line of ours about this
correlation id is passed over, and everything that is shown is bounded.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from runner.cli.story import Entry, matches
from runner.model.errors import RequestError
from runner.model.host_data import plain, printable
from runner.model.times import read_time

LINE_BYTES = 256 * 1024
MOST_LINES = 2000
VALUE_BYTES, TEXT_BYTES = 200, 600
STDIN = "-"
TIMES, TEXTS, LEVELS = ("timestamp", "time", "ts"), ("event", "message", "msg"), ("level", "severity")
# Not shown with a line: they are the same on all of them, or stand elsewhere in it.
SHARED = frozenset(
    {*TIMES, *TEXTS, *LEVELS, "correlation_id", "org_id", "project_id", "app_slug", "app_instance_id", "operation_id"}
    | {"service", "trace_id", "span_id", "resource_name", "logger"}
)


def read(names: Iterable[str], correlation: str) -> list[Entry]:
    """The lines of these files about the id. Above a bound the last ones are kept, and a line says how many."""
    kept: list[Entry] = []
    more = 0
    for name in names:
        with _opened(name) as file:
            for line in _lines(file, name):
                found = _entry(line, correlation)
                if found:
                    kept.append(found)
                    if len(kept) > MOST_LINES:
                        kept, more = kept[MOST_LINES // 2 :], more + MOST_LINES // 2
    left = [Entry(None, "log", f"{more} earlier lines of the log are left out")] if more else []
    return [*kept, *left]


@contextmanager
def _opened(name: str) -> Iterator[IO[bytes]]:
    if name == STDIN:
        yield sys.stdin.buffer
        return
    try:
        with Path(name).open("rb") as file:
            yield file
    except OSError as error:
        raise RequestError(f"--log {name}: {error.strerror}") from None


def _lines(file: IO[bytes], name: str) -> Iterator[bytes]:
    """Lines of a bounded length; of a longer one nothing is kept."""
    whole = True
    try:
        while part := file.readline(LINE_BYTES):
            complete = part.endswith(b"\n") or len(part) < LINE_BYTES
            if whole and complete:
                yield part
            whole = complete
    except OSError as error:
        raise RequestError(f"--log {name}: {error.strerror}") from None


def _entry(line: bytes, correlation: str) -> Entry | None:
    begin = line.find(b"{")  # a journal puts its own words before the line
    if begin < 0 or b"correlation_id" not in line:
        return None
    try:
        found = json.loads(line[begin:].decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not _is_about(found, correlation):
        return None
    text = next((str(found[key]) for key in TEXTS if found.get(key)), "")
    level = next((str(found[key]) for key in LEVELS if found.get(key)), "")
    rest = {key: value for key, value in found.items() if key not in SHARED and value is not None}
    more = " ".join(f"{printable(key, 60)}={printable(_flat(value), VALUE_BYTES)}" for key, value in rest.items())
    at = next((time for key in TIMES if (time := read_time(found.get(key)))), None)
    shown = printable(f"{level} {text}{f'; {more}' if more else ''}", TEXT_BYTES)
    return Entry(at, "log", shown, {"fields": plain({key: value for key, value in found.items() if key != "event"})})


def _is_about(found: dict[str, Any], correlation: str) -> bool:
    shared = found.get("correlation_ids")
    return matches(found.get("correlation_id"), correlation) or (
        isinstance(shared, list) and any(matches(one, correlation) for one in shared)
    )


def _flat(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(plain(value), default=str)
