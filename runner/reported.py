"""What a host reports, read as data: a type and a size for each key, and no key that steers the runner. Pure.

Used on both sides of a play: by translate for what goes into a member's record, and by the action plugin of
host_probe for what roles use. It imports nothing that takes time to load, since Ansible loads it in every run.
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
# A short host name, which is what slurmd -Z registers its node by.
NODE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?", re.ASCII)
CODE = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
# Versions, digests, states, paths, phases.
_WORD = re.compile(r"[A-Za-z0-9_.:+~@/ -]{0,160}", re.ASCII)
_GRES = re.compile(r"[A-Za-z0-9_.:,()-]{0,1000}", re.ASCII)
_MULTIARCH = re.compile(r"[a-z0-9_]{1,40}-linux-gnu", re.ASCII)


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


def _matching(pattern: re.Pattern[str]) -> Reader:
    def read(value: Any) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise ValueError("not of the expected form")
        return value

    return read


def _one_of(*words: str) -> Reader:
    return _matching(re.compile("|".join(words)))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("not text")
    return printable(value, TEXT_BYTES)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("neither true nor false")
    return value


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**40:
        raise ValueError("not a count")
    return value


def _moment(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 2**33:
        raise ValueError("not a time in seconds")
    return value


def _texts(value: Any) -> list[str]:
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


def _addresses(value: Any) -> list[str]:
    if not isinstance(value, list):
        raise ValueError("not a list")
    return [one for one in value[:100] if isinstance(one, str) and _is_address(one)]


def _is_address(value: str) -> bool:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return False
    return True


def _fields(**readers: Reader) -> Reader:
    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError("not an object")
        return {key: _read(reader, value.get(key)) for key, reader in readers.items()}

    return read


def _read(reader: Reader, value: Any) -> Any:
    return None if value is None else reader(value)


_word = _matching(_WORD)
_name = _matching(NODE_NAME)

_ANY_MEMBER: Mapping[str, Reader] = {
    "config_version": _word,
    "data_left": _texts,
    "homes_left": _texts,
    "host_cleaned": _flag,
    "host_touched": _flag,
    "logs_kept": _word,
    "package_version": _word,
    "people_version": _word,
    "residue": _texts,
    "slurm_version": _word,
    "switched_at": _moment,
}
# Every key that a play reports, by component. What is not here is the runner's own and cannot come from a host.
DETAIL: Mapping[str, Mapping[str, Reader]] = {
    "controller": {
        **_ANY_MEMBER,
        "cluster_name": _word,
        "controller_hostname": _name,
        "conversion": _fields(since=_word, seconds=_count, idle_seconds=_count, cpu_seconds=_count, last_line=_text),
        "returned": _fields(**{"from": _word, "to": _word, "config": _word}),
        "services_left": _texts,
        "slurmctld_state": _word,
        "slurmdbd_state": _word,
        "slurmdbd_version": _word,
        "upgraded": _fields(**{"from": _word, "to": _word, "backup": _word}),
        "wish": _word,
    },
    "worker": {
        **_ANY_MEMBER,
        "cpus": _count,
        "drain_held_by": _one_of("none", "us", "person", "slurm"),
        "drain_reason": _text,
        "gpus": _count,
        "jobs_remaining": _count,
        "memory_mb": _count,
        "process_control": _one_of("cgroup", "linuxproc"),
        "registered_in_controller": _flag,
        "slurmd_state": _word,
        "worker_hostname": _name,
    },
}
# What roles use of a host's probe.
_PROBE: Mapping[str, Reader] = {
    "addresses": _addresses,
    "cgroup": _fields(version=_one_of("none", "v1", "v2"), writable=_flag),
    "cpus": _count,
    "gres": _matching(_GRES),
    "gres_conf": lambda value: printable(value, 200_000, keep="\n"),
    "hostname": _name,
    "memory_mb": _count,
    "multiarch": _matching(_MULTIARCH),
    "os_id": _word,
    "os_version": _word,
    "process_control": _one_of("cgroup", "linuxproc"),
    "slurm_version": _word,
}


def read_detail(component: str, reported: Any) -> tuple[dict[str, Any], list[str]]:
    """What of a reported detail may go into the member's record, and the keys that may not."""
    if not isinstance(reported, dict):
        return {}, [] if reported is None else ["detail"]
    readers = DETAIL.get(component, {})
    kept: dict[str, Any] = {}
    dropped = []
    for key, value in reported.items():
        try:
            kept[key] = _read(readers[key], value)
        except (KeyError, ValueError, TypeError):
            dropped.append(printable(key, 60))
    return kept, dropped


def read_probe(found: Mapping[str, Any], systems: list[dict[str, Any]]) -> dict[str, Any]:
    """A host's probe by type, with the name of its system from our own list. Raises ValueError naming the wrong key."""
    read: dict[str, Any] = {}
    for key, reader in _PROBE.items():
        try:
            read[key] = reader(found.get(key))
        except (ValueError, TypeError):
            raise ValueError(key) from None
    gpus = found.get("gpus")
    if not isinstance(gpus, list) or len(gpus) > 1024:
        raise ValueError("gpus")
    names = [one["name"] for one in systems if (one["id"], one["version"]) == (read["os_id"], read["os_version"])]
    if not names:
        raise ValueError("os_version")
    return {**read, "gpus": plain(gpus), "system": names[0]}
