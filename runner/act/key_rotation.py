"""How a runtime secret gives way to the next: what stands in Vault before and after each step. Pure.

A secret's name always holds the one that hosts must have. The next one is made beside it, under a name of its own, and
takes its place when the hosts are ready to change: from that write on the old one is not valid any more. Every step may
be done again, so whoever was killed in the middle simply starts over.
"""

from collections.abc import Callable, Mapping
from typing import Any

Values = dict[str, Any]
Step = Callable[[Mapping[str, Any], str, Callable[[], str]], Values | None]

# Only these can be replaced while a cluster runs.
REPLACEABLE = ("munge_key",)


def beside(name: str) -> str:
    return f"{name}_next"


def made(values: Mapping[str, Any], name: str, make: Callable[[], str]) -> Values | None:
    """With the secret itself, made on first use; None if nothing has to be written."""
    return None if isinstance(values.get(name), str) else {**values, name: make()}


def staged(values: Mapping[str, Any], name: str, make: Callable[[], str]) -> Values | None:
    """With the next one beside the current one."""
    return made(values, beside(name), make)


def promoted(values: Mapping[str, Any], name: str, make: Callable[[], str]) -> Values | None:
    """With the next one in its place. If there is none, it has been promoted already, and what stands is right."""
    if not isinstance(values.get(beside(name)), str):
        return made(values, name, make)
    rest = {key: value for key, value in values.items() if key != beside(name)}
    return {**rest, name: values[beside(name)]}


def dropped(values: Mapping[str, Any], name: str, make: Callable[[], str]) -> Values | None:
    """Without a next one; one that hosts have seen and not used is not used later either."""
    if beside(name) not in values:
        return made(values, name, make)
    return {key: value for key, value in values.items() if key != beside(name)}


# What can be asked for, and under which name the answer then stands.
STEPS: dict[str, tuple[Step, Callable[[str], str]]] = {
    "current": (made, str),
    "stage": (staged, beside),
    "promote": (promoted, str),
    "drop": (dropped, str),
}
