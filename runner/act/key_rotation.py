"""The steps that replace a runtime secret, as changes to the values in Vault. Pure.

A secret's name always holds the value that hosts must have. The next value is stored under a name of its own, and
replaces the current one when the hosts are ready to change. Every step can be repeated, so a runner that was killed
starts again from the first.
"""

from collections.abc import Callable, Mapping
from typing import Any

Values = dict[str, Any]
Step = Callable[[Mapping[str, Any], str, Callable[[], str]], Values | None]


def next_name(name: str) -> str:
    return f"{name}_next"


def ensure(values: Mapping[str, Any], name: str, make: Callable[[], str]) -> Values | None:
    """The values with the secret, generated on first use; None if nothing has to be written."""
    return None if isinstance(values.get(name), str) else {**values, name: make()}


def stage(values: Mapping[str, Any], name: str, make: Callable[[], str]) -> Values | None:
    """The values with a next secret beside the current one."""
    return ensure(values, next_name(name), make)


def promote(values: Mapping[str, Any], name: str, make: Callable[[], str]) -> Values | None:
    """The values with the next secret as the current one. Without a next one it was promoted already."""
    if not isinstance(values.get(next_name(name)), str):
        return ensure(values, name, make)
    rest = {key: value for key, value in values.items() if key != next_name(name)}
    return {**rest, name: values[next_name(name)]}


def drop(values: Mapping[str, Any], name: str, make: Callable[[], str]) -> Values | None:
    """The values without a next secret: one that hosts have received and not used is not used later."""
    if next_name(name) not in values:
        return ensure(values, name, make)
    return {key: value for key, value in values.items() if key != next_name(name)}


# For each step: the change, and the name under which the requested secret is then stored.
STEPS: dict[str, tuple[Step, Callable[[str], str]]] = {
    "current": (ensure, str),
    "stage": (stage, next_name),
    "promote": (promote, str),
    "drop": (drop, str),
}
