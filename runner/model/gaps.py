"""Gaps: where the platform's public contract lacks what an adapter needs, or answers in another way. Pure.

A gap is data: it is logged, counted once and shown by `gpuaas-slurm gaps`. The platform client's collector
(`Client.gaps`, shared by its clones) has those that were met in this process.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum

# Different gaps that one process keeps. An API that differs in more places is another API.
LIMIT = 256
TEXT_CHARS = 300


class Basis(StrEnum):
    """Whether the platform's public documents show the call or field, or we assume it."""

    STATED = "stated"
    ASSUMED = "assumed"


class Kind(StrEnum):
    """Who has to act on a gap that a first run shows."""

    PRIMITIVE = "platform_primitive"  # the platform lacks something that every app needs
    READ_SURFACE = "read_surface"  # it exists, and no public call shows it
    PERMISSION = "permission"  # a service account cannot get the right to it
    APP = "app"  # the adapter itself is wrong
    ENVIRONMENT = "environment"  # this installation is wrong: network, certificate, clock, credentials


class PilotKind(StrEnum):
    """What the core of the platform has to change, as a pilot of an app collects it."""

    PRIMITIVE = "core_primitive"
    COUPLING = "core_coupling"  # the core interprets what belongs to the app
    ACTION_KEY = "action_key"
    EVENT = "event"
    ATTRIBUTION = "usage_attribution"


@dataclass(frozen=True)
class Gap:
    """One deviation: what was expected of which call, what came, and what the adapter does as long as it lasts."""

    call: str  # method and route, without ids
    basis: Basis
    expected: str
    came: str
    kind: Kind
    meanwhile: str
    pilot: PilotKind | None = None  # None: nothing for the core to change

    def __post_init__(self) -> None:
        for name in ("expected", "came", "meanwhile"):
            object.__setattr__(self, name, getattr(self, name)[:TEXT_CHARS])

    @property
    def identity(self) -> tuple[str, str, str]:
        """Two gaps with the same identity are one: what exactly came may differ from call to call."""
        return self.call, self.expected, self.kind.value

    def as_row(self) -> dict[str, str | None]:
        """As it is logged and printed."""
        return asdict(self)


class Gaps:
    """The gaps that were met, each once and at most LIMIT. Clients in several threads share one collector."""

    def __init__(self, on_new: Callable[[Gap], None] | None = None) -> None:
        self._met: dict[tuple[str, str, str], Gap] = {}
        self._on_new = on_new
        self.left_out = 0  # further ones, over the limit

    def add(self, gap: Gap) -> None:
        if gap.identity in self._met:
            return
        if len(self._met) >= LIMIT:
            self.left_out += 1
            return
        if self._met.setdefault(gap.identity, gap) is gap and self._on_new:
            self._on_new(gap)

    def __iter__(self) -> Iterator[Gap]:
        return iter(list(self._met.values()))

    def __len__(self) -> int:
        return len(self._met)
