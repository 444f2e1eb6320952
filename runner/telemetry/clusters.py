"""Series of each cluster: its record, its open operations, and what the app reads from the last snapshot."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from runner.model.metrics import AppMetrics
from runner.model.platform import InstanceStatus, OperationStatus
from runner.model.world import World
from runner.telemetry.labels import HEALTHS, INSTANCE_STATUSES, MEMBER_STATUSES, cluster_labels, one_of

OPEN, WAITING = "gpuaas_operations_open", "gpuaas_operations_waiting"
OLDEST, OLDEST_WAITING = "gpuaas_operation_oldest_age_seconds", "gpuaas_operation_oldest_waiting_age_seconds"
OBSERVED = "gpuaas_cluster_last_observation_timestamp_seconds"
STATUS, HEALTH, MEMBERS = "gpuaas_cluster_status", "gpuaas_cluster_health", "gpuaas_cluster_members"
HELP = {
    OPEN: "Operations that have not ended",
    WAITING: "Open operations that no runner has claimed yet",
    OLDEST: "Age of the oldest open operation; 0 if there is none",
    OLDEST_WAITING: "Age of the oldest operation that no runner has claimed yet; 0 if there is none",
    OBSERVED: "When the cluster was last observed; 0 if it runs and never was",
    STATUS: "1 for the status of the instance, 0 for the others",
    HEALTH: "1 for the health of the instance, 0 for the others",
    MEMBERS: "Members other than the lead by status, as the instance was last reported",
}
OF_STATUS = {STATUS: ("status", INSTANCE_STATUSES), HEALTH: ("health", HEALTHS), MEMBERS: ("status", MEMBER_STATUSES)}


@dataclass
class Seen:
    """One instance, as a tick saw it last."""

    world: World
    name: str
    record_samples: Mapping[str, float]
    snapshot: Any = None
    samples: Mapping[str, float] = field(default_factory=dict)
    samples_at: float = 0.0


class Clusters(Collector):
    """`fresh_seconds`: after that time the values of a snapshot are not shown any more."""

    def __init__(self, app: AppMetrics, fresh_seconds: float, clock: Callable[[], float] = time.time) -> None:
        self._app = app
        self._fresh_seconds = fresh_seconds
        self._clock = clock
        self._seen: dict[UUID, Seen] = {}
        self._lock = threading.Lock()

    def saw(self, world: World) -> None:
        with self._lock:
            before = self._seen.get(world.instance.id)
            seen = Seen(world, self._app.cluster(world.instance), self._app.record_samples(world))
            if world.snapshot is not None and (before is None or world.snapshot is not before.snapshot):
                seen.snapshot, seen.samples_at = world.snapshot, self._clock()
                seen.samples = self._app.samples(world.snapshot)
            elif before is not None:
                seen.snapshot, seen.samples, seen.samples_at = before.snapshot, before.samples, before.samples_at
            self._seen[world.instance.id] = seen

    def keep_only(self, instances: Collection[UUID]) -> None:
        """Clusters that are gone lose their series."""
        with self._lock:
            self._seen = {one: seen for one, seen in self._seen.items() if one in instances}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        with self._lock:
            seen = dict(self._seen)
        now = self._clock()
        labels = cluster_labels({one: found.name for one, found in seen.items()})
        families = {
            name: GaugeMetricFamily(
                name, text, labels=["cluster", *([OF_STATUS[name][0]] if name in OF_STATUS else [])]
            )
            for name, text in {**HELP, **self._app.families}.items()
        }
        for instance_id, found in sorted(seen.items(), key=lambda one: labels[one[0]]):
            label = labels[instance_id]
            for name, value in self._values(found, now).items():
                families[name].add_metric([label], value)
            for name, (_, values) in OF_STATUS.items():
                for status, count in self._counts(name, found, values).items():
                    families[name].add_metric([label, status], count)
        yield from families.values()

    def _values(self, found: Seen, now: float) -> dict[str, float]:
        world = found.world
        operations = [*world.operations, *world.instance_operations]
        waiting = [one for one in operations if one.status == OperationStatus.ACCEPTED]
        observed = world.instance.notes.observed_at
        values: dict[str, float] = {
            OPEN: len(operations),
            WAITING: len(waiting),
            OLDEST: max((_age(one.created_at, now) for one in operations), default=0),
            OLDEST_WAITING: max((_age(one.created_at, now) for one in waiting), default=0),
        }
        if observed is not None:
            values[OBSERVED] = observed.timestamp()
        elif world.instance.status == InstanceStatus.RUNNING:
            values[OBSERVED] = 0
        fresh = found.samples if now - found.samples_at <= self._fresh_seconds else {}
        return values | dict(found.record_samples) | dict(fresh)

    def _counts(self, name: str, found: Seen, values: Collection[str]) -> dict[str, float]:
        instance = found.world.instance
        counts = dict.fromkeys(values, 0.0)
        if name == MEMBERS:
            for status, count in self._app.members(instance).items():
                counts[one_of(status, values)] += count
        else:
            counts[one_of(instance.status if name == STATUS else instance.health, values)] = 1
        return counts


def _age(created: datetime | None, now: float) -> float:
    if created is None:
        return 0
    aware = created if created.tzinfo else created.replace(tzinfo=UTC)
    return max(0.0, now - aware.timestamp())
