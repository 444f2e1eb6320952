"""Where metrics are read: an HTTP endpoint of a runner that stays, and a text file of a runner that ends.

node_exporter reads the file with its textfile collector. A counter of a process that ends after each run starts again
at zero, so the file has gauges only: `gpuaas_X_total` is `gpuaas_run_X` there, its value in the last run.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from runner import log
from runner.settings import SettingsError

CLIENT_TIMEOUT_SECONDS = 10


@contextlib.contextmanager
def served(registry: CollectorRegistry, host: str, port: int) -> Iterator[int]:
    """Serve the metrics on a thread; gives the port. SettingsError if the address cannot be used."""
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        reason = error.strerror or error
        raise SettingsError([f"GPUAAS_METRICS_LISTEN: cannot listen on {host} port {port}: {reason}"]) from None
    # A client that sends nothing must not keep its thread.
    server.RequestHandlerClass.timeout = CLIENT_TIMEOUT_SECONDS  # type: ignore[attr-defined]
    log.get().info("metrics endpoint listens", host=host, port=server.server_port)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write_file(registry: Collector, path: Path) -> None:
    """Replace the file at once. A file that cannot be written is a warning: the run itself is not affected."""
    content = generate_latest(_Gauges(registry))
    try:
        with contextlib.ExitStack() as undo:
            # node_exporter ignores a name that does not end in .prom.
            handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
            undo.callback(Path(name).unlink)
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                os.fchmod(file.fileno(), 0o644)  # node_exporter runs as another user
            Path(name).replace(path)
            undo.pop_all()
    except OSError as error:
        log.get().warning("metrics file not written", path=str(path), problem=error.strerror)


class _Gauges(Collector):
    def __init__(self, registry: Collector) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        return [family if family.type == "gauge" else of_last_run(family) for family in self._registry.collect()]


def of_last_run(family: Metric) -> GaugeMetricFamily:
    """A counter, or the sum of a histogram, as a gauge of the last run."""
    wanted = f"{family.name}_sum" if family.type == "histogram" else f"{family.name}_total"
    names = sorted({name for sample in family.samples if sample.name == wanted for name in sample.labels})
    gauge = GaugeMetricFamily(
        family.name.replace("gpuaas_", "gpuaas_run_", 1), f"{family.documentation}: in the last run", labels=names
    )
    for sample in family.samples:
        if sample.name == wanted:
            gauge.add_metric([sample.labels[name] for name in names], sample.value)
    return gauge
