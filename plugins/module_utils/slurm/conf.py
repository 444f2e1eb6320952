"""Render slurm.conf. Values from outside cannot add lines to it.

The same settings give the same bytes, since their digest is the version that a cluster reports.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..host.digest import short_digest
from ..host.errors import INTERVENTION, AdapterError
from .accounting_state import CLOSED

KEY = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
# No control character, comment or continuation: a value cannot end its line.
VALUE = re.compile(r"[^\x00-\x1f\x7f#\\]+")
LISTENER = re.compile(r"^SlurmctldHost=(?P<host>[A-Za-z0-9.-]+)\((?P<at>[A-Za-z0-9.:-]+)\)$", re.MULTILINE)
# Lines of nodes, partitions and included files are not settings.
STRUCTURAL = frozenset({"nodename", "nodeset", "partitionname", "include", "downnodes", "frontendname", "switchname"})
HEADER = "# Written by gpuaas-slurm. A change made here is replaced; use the instance's configuration."
# The first line has a digest of the others, which shows a change by hand.
SEALED = re.compile(re.escape(HEADER) + r" Digest ([0-9a-f]{16})\.")


@dataclass(frozen=True)
class Partition:
    """A partition, and the node set of its workers: those that register with its feature."""

    name: str
    nodeset: str
    feature: str
    default: bool = False
    max_time: str = "INFINITE"
    state: str = "UP"
    default_time: str = ""
    # With it the partition admits no account at slurmctld's start, and then those that account_lists.py has on file.
    account_list: bool = False

    def options(self) -> dict[str, object]:
        options = {"Default": self.default, "MaxTime": self.max_time, "Nodes": self.nodeset, "State": self.state}
        if self.default_time:
            options["DefaultTime"] = self.default_time
        return {**options, "AllowAccounts": CLOSED} if self.account_list else options


# The same as a module argument.
PARTITION_ARGUMENT: dict[str, Any] = {
    "type": "list",
    "elements": "dict",
    "default": [],
    "options": {
        "name": {"type": "str", "required": True},
        "nodeset": {"type": "str", "required": True},
        "feature": {"type": "str", "required": True},
        "default": {"type": "bool", "default": False},
        "max_time": {"type": "str", "default": "INFINITE"},
        "state": {"type": "str", "default": "UP", "choices": ["UP", "DOWN", "DRAIN", "INACTIVE"]},
        "default_time": {"type": "str", "default": ""},
        "account_list": {"type": "bool", "default": False},
    },
}


def render(managed: dict[str, object], requested: dict[str, object], partitions: Sequence[Partition]) -> str:
    """slurm.conf with the adapter's `managed` settings. A request for one of these is refused, not ignored."""
    ours = {key.lower() for key in managed}
    for key in requested:
        if key.lower() in ours or key.lower() in STRUCTURAL:
            raise _refused(f"{key} is set by the adapter itself and cannot be requested")
    settings = {**managed, **requested}
    if len({key.lower() for key in settings}) != len(settings):
        raise _refused("a setting is given twice, in different spelling")
    lines = [_setting(key, settings[key]) for key in sorted(settings, key=str.lower)]
    return _sealed("\n".join(lines + _partition_lines(partitions)) + "\n")


def _partition_lines(partitions: Sequence[Partition]) -> list[str]:
    """Node sets before the partitions that name them, each kind sorted."""
    if len({one.name.lower() for one in partitions}) != len(partitions):
        raise _refused("two partitions have the same name")
    if sum(one.default for one in partitions) > 1:
        raise _refused("more than one partition is the default")
    nodesets = {one.nodeset: one.feature for one in partitions}
    if any(nodesets[one.nodeset] != one.feature for one in partitions):
        raise _refused("a node set is given with two features")
    lines = [_line("NodeSet", name, {"Feature": nodesets[name]}) for name in sorted(nodesets)]
    return lines + [
        _line("PartitionName", one.name, one.options()) for one in sorted(partitions, key=lambda one: one.name)
    ]


def keep_controller_name(managed: dict[str, object], good: str | None) -> dict[str, object]:
    """`managed` with the SlurmctldHost of the last good slurm.conf, if that has a name and ours has an address.

    Releases before ledger format 2 wrote the name from the platform's record. Writing its address instead would restart
    every daemon of a running cluster, so such a cluster keeps the name.
    """
    live = LISTENER.search(good or "")
    ours = LISTENER.fullmatch(f"SlurmctldHost={managed.get('SlurmctldHost')}")
    if live and ours and live["host"] == ours["host"] and not _is_address(live["at"]) and _is_address(ours["at"]):
        return {**managed, "SlurmctldHost": f"{live['host']}({live['at']})"}
    return managed


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_intact(text: str) -> bool:
    """Whether `render` made this text and no byte was changed."""
    first, _, rest = text.partition("\n")
    seal = SEALED.fullmatch(first)
    return seal is not None and seal.group(1) == short_digest(rest.encode())


def _sealed(body: str) -> str:
    return f"{HEADER} Digest {short_digest(body.encode())}.\n{body}"


def replace_settings(text: str, replacements: dict[str, str]) -> str:
    """The configuration with some settings replaced; `""` removes a setting."""
    names = {key.lower() for key in replacements}
    kept = [line for line in text.splitlines() if line.partition("=")[0].strip().lower() not in names]
    added = [f"{key}={value}" for key, value in replacements.items() if value]
    return "\n".join(kept[:1] + added + kept[1:]) + "\n"


def _setting(key: str, value: object) -> str:
    if not KEY.fullmatch(key):
        raise _refused(f"{key!r} is not the name of a setting")
    return f"{key}={_value(key, value)}"


def _line(kind: str, name: str, options: dict[str, object]) -> str:
    if not NAME.fullmatch(name):
        raise _refused(f"{name!r} is not a valid name for a {kind}")
    rest = [_setting(key, options[key]) for key in sorted(options)]
    if any(" " in item for item in rest):
        raise _refused(f"an option of {kind} {name} has a space in it")
    return " ".join([f"{kind}={name}", *rest])


def _value(key: str, value: object) -> str:
    if isinstance(value, bool):
        return "YES" if value else "NO"
    text = str(value).strip() if isinstance(value, str | int | float) else ""
    if not VALUE.fullmatch(text):
        raise _refused(f"the value of {key} has invalid characters or type")
    return text


def _refused(why: str) -> AdapterError:
    return AdapterError(
        "config_refused", f"The requested Slurm configuration is refused: {why}. Correct it, then retry.", INTERVENTION
    )
