"""Starts the metrics that the settings ask for. Without such a setting nothing is loaded."""

import contextlib
from collections.abc import Iterator
from importlib.metadata import version

from runner.model.metrics import AppMetrics
from runner.settings import Settings
from runner.telemetry.meter import Meter

# Values of a snapshot are shown for this many times the age at which a cluster is observed again, or for five minutes.
FRESH_LOOKS, FRESH_SECONDS = 3, 300.0


@contextlib.contextmanager
def metering(settings: Settings, app: AppMetrics, *, stays: bool) -> Iterator[Meter]:
    """A meter for one run. `stays`: the process does not end by itself, so that the endpoint can be scraped."""
    listen = settings.metrics_address if stays else None
    if listen is None and settings.metrics_file is None:
        yield Meter()
        return
    from runner.telemetry import certificates, exposition
    from runner.telemetry.metrics import PrometheusMeter

    def write() -> None:
        if settings.metrics_file is not None:
            exposition.write_file(meter.registry, settings.metrics_file)

    fresh = max(FRESH_SECONDS, FRESH_LOOKS * settings.observe_seconds)
    meter = PrometheusMeter(app, version("gpuaas-slurm"), fresh, after_pass=write)
    for peer, bundle in (("platform_ca", settings.ca_bundle), ("vault_ca", settings.vault_cacert)):
        if bundle is not None:
            meter.certificate(peer, certificates.end_of_bundle(bundle))
    with contextlib.ExitStack() as until_the_end:
        if listen is not None:
            until_the_end.enter_context(exposition.served(meter.registry, *listen))
        until_the_end.callback(write)
        yield meter
