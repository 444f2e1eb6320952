"""Readers for what a host reports: a type and a size for each value. Pure.

It imports nothing that takes time to load, since Ansible loads it in every run.
"""

import ipaddress
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

Reader = Callable[[Any], Any]  # gives the value as it may be kept, or raises ValueError

# In bytes of UTF-8, since a record's limit is in bytes.
TEXT_BYTES = 500
OUTPUT_BYTES = 8000
MESSAGE_BYTES = 1000
LIST_BYTES = 4000
DEPTH = 12
CODE = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)


def printable(value: object, most: int, keep: str = "") -> str:
    """Text of at most so many bytes. What a terminal or JSON could not carry becomes a question mark."""
    text = str(value)[: most + 1]
    text = "".join(one if one.isprintable() or one in keep else "?" for one in text)
    coded = text.encode()
    return text if len(coded) <= most else coded[: most - 3].decode(errors="ignore") + "..."


def message(value: object) -> str:
    return printable(" ".join(str(value or "no message")[: 4 * MESSAGE_BYTES].split()), MESSAGE_BYTES)


def plain(value: Any, depth: int = DEPTH) -> Any:
    """The same structure with bounded text, finite numbers and bounded depth."""
    if isinstance(value, str):
        return printable(value, OUTPUT_BYTES, keep="\n\t")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, int):
        return value
    if depth and isinstance(value, Mapping):
        return {printable(key, TEXT_BYTES): plain(item, depth - 1) for key, item in value.items()}
    if depth and isinstance(value, list | tuple):
        return [plain(item, depth - 1) for item in value]
    return None


def matching(pattern: re.Pattern[str]) -> Reader:
    def read(value: Any) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise ValueError("not of the expected form")
        return value

    return read


def one_of(*values: str) -> Reader:
    return matching(re.compile("|".join(values)))


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("not text")
    return printable(value, TEXT_BYTES)


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("neither true nor false")
    return value


def count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**40:
        raise ValueError("not a count")
    return value


def moment(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 2**33:
        raise ValueError("not a time in seconds")
    return value


def texts(value: Any) -> list[str]:
    if not isinstance(value, list):
        raise ValueError("not a list")
    kept: list[str] = []
    room = LIST_BYTES
    for one in value:
        text = printable(one, TEXT_BYTES) if isinstance(one, str) else "?"
        room -= len(text.encode()) + 3
        if room < 0:
            return [*kept, f"and {len(value) - len(kept)} more"]
        kept.append(text)
    return kept


def addresses(value: Any) -> list[str]:
    if not isinstance(value, list):
        raise ValueError("not a list")
    return [one for one in value[:100] if isinstance(one, str) and _is_address(one)]


def _is_address(value: str) -> bool:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return False
    return True


def fields(**readers: Reader) -> Reader:
    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError("not an object")
        return {key: read_value(reader, value.get(key)) for key, reader in readers.items()}

    return read


def read_value(reader: Reader, value: Any) -> Any:
    return None if value is None else reader(value)
