"""Metrics of one runner, as a scrape shows them."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from runner.model.platform import Operation
from runner.slurm.app import SLURM
from runner.telemetry.metrics import PrometheusMeter
from tests.unit.worlds import NOW, fresh_id


@dataclass
class Clock:
    now: float = NOW.timestamp()

    def __call__(self) -> float:
        return self.now


@dataclass
class Shown:
    """Metrics, and the clock by which the ages of clusters are counted."""

    meter: PrometheusMeter = field(default_factory=lambda: PrometheusMeter(SLURM.metrics, "1.1.0", 300))
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.meter._clusters._clock = self.clock

    def values(self, name: str, registry: Any = None) -> dict[tuple[str, ...], float]:
        """Values by the labels' values, in the order of the labels' names."""
        found = {}
        for family in text_string_to_metric_families(generate_latest(registry or self.meter.registry).decode()):
            for sample in family.samples:
                if sample.name == name:
                    found[tuple(value for _, value in sorted(sample.labels.items()))] = sample.value
        return found

    def value(self, name: str) -> float | None:
        return next(iter(self.values(name).values()), None)


def operation(**changes: Any) -> Operation:
    made: dict[str, Any] = {"operation": "drain", "created_at": NOW - timedelta(minutes=2), "correlation_id": "c-1"}
    return Operation(id=fresh_id(), **({"status": "accepted"} | made | changes))


def seconds_before(seconds: float) -> Any:
    return NOW - timedelta(seconds=seconds)
