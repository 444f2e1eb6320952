"""The steps of a smoke run, as data: what each requests and what has to be seen then. Pure.

An app gives its table of steps. Allocations are named by their place in the list that a person gives. Everything that
identifies a run on the platform is derived from its run id, so that a killed run is found again and continued.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid5

_NAMESPACE = UUID("6f0b1c1e-2f0a-5d3b-9a63-0c6f4f2f6a11")
RUN_ID = re.compile(r"[a-z0-9][a-z0-9-]{3,30}")


@dataclass(frozen=True)
class At:
    """The member of a component on the allocation at a place."""

    component: str
    place: int


@dataclass(frozen=True)
class State:
    """What has to be seen; a field that is None may be anything. `configured`: the desired configuration is live."""

    member: At | None = None
    status: str | None = None
    instance: str | None = None
    health: str | None = None
    configured: bool = False


@dataclass(frozen=True)
class Deploy:
    """Request the instance, with its lead at one place and its first members at others."""

    lead: int
    others: tuple[int, ...] = ()


@dataclass(frozen=True)
class Ask:
    """Request an operation, and follow it until it has ended and the state is seen.

    `seeded`: the deploy has requested it. `nowhere`: it names an allocation that does not exist, so that it fails and
    touches nothing. Without `follows` it is only requested, twice with one key; a later step waits for its end.
    """

    verb: str
    component: str | None = None  # None: of the whole instance
    member: At | None = None
    places: tuple[int, ...] = ()
    nowhere: bool = False
    parameters: Mapping[str, Any] = field(default_factory=dict)
    seeded: bool = False
    follows: bool = True
    ends: str = "succeeded"
    then: State = State()


@dataclass(frozen=True)
class Wait:
    """Wait until the operation of an earlier step has ended so, if one is named, and for the state."""

    then: State
    after: str | None = None
    ends: str = "succeeded"


@dataclass(frozen=True)
class Look:
    """Check something once, or change the instance's record. `about` names the step whose request it is about; with
    `of_instance` it is about the instance. `again`: later steps do not change what it sees."""

    check: str
    about: str | None = None
    fields: tuple[str, ...] = ()
    again: bool = False
    of_instance: bool = False


@dataclass(frozen=True)
class Chapter:
    """Steps that are chosen together. `always`: the others depend on it. `default`: without a choice it is done."""

    name: str
    what: str
    always: bool = False
    default: bool = True


@dataclass(frozen=True)
class Step:
    """`needs`: how many allocations it takes. `blocks`: after its failure only what is `last` is done."""

    name: str
    chapter: Chapter
    what: str
    does: Deploy | Ask | Wait | Look
    needs: int = 1
    blocks: bool = True
    last: bool = False

    @property
    def requests(self) -> bool:
        """Whether the platform keeps a record of it."""
        return isinstance(self.does, Deploy | Ask)


@dataclass(frozen=True)
class Planned:
    """A step, and why it is left out, if it is."""

    step: Step
    left_out: str | None = None


def planned(steps: Sequence[Step], chosen: Sequence[str], allocations: int, *, keep: bool) -> tuple[Planned, ...]:
    """The steps of the chosen chapters in their order; those that cannot be done have the reason."""
    found = []
    for step in steps:
        chapter = step.chapter
        if not (chapter.always or chapter.name in chosen or (not chosen and chapter.default)):
            continue
        why = None
        if step.needs > allocations:
            why = f"needs {step.needs} allocations, and {allocations} {'was' if allocations == 1 else 'were'} given"
        elif step.last and keep:
            why = "--keep leaves the instance"
        found.append(Planned(step, why))
    return tuple(found)


def instance_name(run: str) -> str:
    return f"smoke-{run}"


def correlation_id(run: str, step: str) -> str:
    """Of everything that a step causes. By it a run finds its own requests again."""
    return str(uuid5(_NAMESPACE, f"{run}/{step}"))


def idempotency_key(run: str, step: str) -> str:
    return f"smoke-{run}-{step}"


def nowhere(run: str) -> UUID:
    """The id of an allocation that does not exist."""
    return uuid5(_NAMESPACE, f"{run}: no allocation")
