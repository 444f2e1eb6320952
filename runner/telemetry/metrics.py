"""The metrics of the core, for Prometheus. The app adds its own by `AppMetrics`.

Every label is bounded (labels.py). Counters whose first increase matters have their series from the start: Prometheus
sees no increase in a series that begins with 1.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from runner.model import claims
from runner.model.metrics import AppMetrics
from runner.model.plan import Claim, Finish, Refuse, Step
from runner.model.platform import AppInstance, Operation, OperationStatus
from runner.model.world import World
from runner.telemetry import labels
from runner.telemetry.clusters import Clusters
from runner.telemetry.labels import one_of
from runner.telemetry.meter import Meter, PlayCounts
from runner.translate import RunResult

CALL_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
TICK_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
PLAY_BUCKETS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600)
QUEUE_BUCKETS = (1, 5, 15, 30, 60, 120, 300, 600, 1800, 3600)
OPERATION_BUCKETS = (10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400)


class PrometheusMeter(Meter):
    is_on = True

    def __init__(
        self, app: AppMetrics, version: str, fresh_seconds: float, after_pass: Callable[[], None] = lambda: None
    ) -> None:
        """`after_pass` is called in each pass but the first, in which no cluster has been seen yet."""
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        self._verbs, self._playbooks = frozenset(app.verbs), frozenset(app.playbooks)
        self._clusters = Clusters(app, fresh_seconds)
        self._plays_now = _PlaysNow()
        self._after_pass, self._is_first_pass = after_pass, True
        registry.register(self._clusters)
        registry.register(self._plays_now)

        def counter(name: str, text: str, *label: str) -> Counter:
            return Counter(f"gpuaas_{name}", text, label, registry=registry)

        def gauge(name: str, text: str, *label: str) -> Gauge:
            return Gauge(f"gpuaas_{name}", text, label, registry=registry)

        def histogram(name: str, text: str, buckets: Sequence[float], *label: str) -> Histogram:
            return Histogram(f"gpuaas_{name}", text, label, registry=registry, buckets=buckets)

        gauge("runner_info", "1, with the version of the runner", "version").labels(version).set(1)
        self._last_pass = gauge("last_pass_timestamp_seconds", "When the list of instances was last read; 0: never")
        self._instances = gauge("instances", "Instances in that list")
        self._ticks = counter("ticks", "Ticks of one instance that ended", "result")
        self._tick_seconds = histogram("tick_duration_seconds", "Duration of a tick", TICK_BUCKETS)
        self._operations = counter("operations", "Operations that this runner ended", "verb", "result")
        self._operation_seconds = histogram(
            "operation_duration_seconds",
            "From the request of an operation to its end",
            OPERATION_BUCKETS,
            "verb",
            "result",
        )
        self._queue_seconds = histogram(
            "operation_queue_seconds", "From the request of an operation to its first claim", QUEUE_BUCKETS, "verb"
        )
        self._takeovers = counter("leases_taken_over", "Operations taken over from a runner whose lease expired")
        self._plays = counter("plays", "Plays that ended", "playbook", "result")
        self._play_seconds = histogram("play_duration_seconds", "Duration of a play", PLAY_BUCKETS, "playbook")
        self._calls = {
            to: (
                counter(f"{to}_requests", f"Calls to {title}, each attempt", "method", "route", "status"),
                histogram(
                    f"{to}_request_duration_seconds", f"Duration of a call to {title}", CALL_BUCKETS, "method", "route"
                ),
            )
            for to, title in (("api", "the platform"), ("vault", "Vault"))
        }
        self._certificates = gauge("certificate_expiry_timestamp_seconds", "When a certificate ends", "peer")
        self._tokens = gauge("token_expiry_timestamp_seconds", "When a token expires", "token")
        for result in ("ok", "failed"):
            self._ticks.labels(result)
        for verb in (*sorted(self._verbs), labels.OTHER):
            for result in labels.RESULTS:
                self._operations.labels(verb, result)

    # -- ticks and operations ------------------------------------------------------------------------------

    def passed(self, instances: Sequence[AppInstance]) -> None:
        self._last_pass.set(time.time())
        self._instances.set(len(instances))
        self._clusters.keep_only({one.id for one in instances})
        if not self._is_first_pass:
            self._after_pass()
        self._is_first_pass = False

    def tick_ended(self, seconds: float, *, failed: bool) -> None:
        self._ticks.labels("failed" if failed else "ok").inc()
        self._tick_seconds.observe(seconds)

    def saw(self, world: World) -> None:
        self._clusters.saw(world)

    def wrote(self, step: Step, now: datetime) -> None:
        match step:
            case Claim(subject=Operation() as operation):
                self._claimed(operation, now)
            case Finish(operation=operation, status=status):
                self._ended(operation, status, now)
            case Refuse(operation=operation):
                self._ended(operation, OperationStatus.FAILED, now)

    def _claimed(self, operation: Operation, now: datetime) -> None:
        if operation.status == OperationStatus.ACCEPTED and operation.created_at:
            verb = one_of(operation.operation, self._verbs)
            self._queue_seconds.labels(verb).observe(_seconds(operation.created_at, now))
        if claims.ran_out(operation):
            self._takeovers.inc()

    def _ended(self, operation: Operation, status: str, now: datetime) -> None:
        labelled = one_of(operation.operation, self._verbs), one_of(status, labels.RESULTS)
        self._operations.labels(*labelled).inc()
        if operation.created_at:
            self._operation_seconds.labels(*labelled).observe(_seconds(operation.created_at, now))

    # -- plays ---------------------------------------------------------------------------------------------

    def play_ended(self, playbook: str, result: RunResult | None, seconds: float) -> None:
        name = one_of(playbook, self._playbooks)
        for one in labels.PLAY_RESULTS:
            self._plays.labels(name, one)
        self._plays.labels(name, labels.play_result(result)).inc()
        self._play_seconds.labels(name).observe(seconds)

    def watch_plays(self, counts: Callable[[], PlayCounts]) -> None:
        self._plays_now.counts = counts

    # -- calls ---------------------------------------------------------------------------------------------

    def api_call(self, method: str, route: str, status: int | None, seconds: float) -> None:
        self._call("api", method, route, status, seconds)

    def vault_call(self, method: str, route: str, status: int | None, seconds: float) -> None:
        self._call("vault", method, route, status, seconds)

    def _call(self, to: str, method: str, route: str, status: int | None, seconds: float) -> None:
        requests, durations = self._calls[to]
        where = one_of(method, labels.METHODS), route
        for one in labels.STATUS_CLASSES:
            requests.labels(*where, one)
        requests.labels(*where, labels.status_class(status)).inc()
        durations.labels(*where).observe(seconds)

    def certificate(self, peer: str, ends: float | None) -> None:
        if ends is not None:
            self._certificates.labels(peer).set(ends)

    def token(self, name: str, ends: float) -> None:
        self._tokens.labels(name).set(ends)


class _PlaysNow(Collector):
    """Read when the metrics are read: no play has to report that it waits or has stalled."""

    counts: Callable[[], PlayCounts] = staticmethod(lambda: PlayCounts(0, 0, 0))

    def collect(self) -> Iterator[GaugeMetricFamily]:
        now = self.counts()
        yield GaugeMetricFamily("gpuaas_plays_running", "Plays under way", now.running)
        yield GaugeMetricFamily("gpuaas_plays_waiting", "Plays that wait for a place", now.waiting)
        yield GaugeMetricFamily("gpuaas_plays_stalled", "Plays under way without an event for too long", now.stalled)


def _seconds(since: datetime, now: datetime) -> float:
    aware = since if since.tzinfo else since.replace(tzinfo=UTC)
    return max(0.0, (now - aware).total_seconds())
