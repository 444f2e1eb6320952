"""Starts the metrics and the traces that the settings ask for. Without such a setting nothing is loaded."""

import contextlib
from collections.abc import Callable, Collection, Iterator
from importlib.metadata import version
from pathlib import Path

from pydantic import AnyHttpUrl, SecretStr

from runner.log import SERVICE
from runner.model.metrics import AppMetrics
from runner.settings import Settings, SettingsError
from runner.telemetry.meter import Meter
from runner.telemetry.tracer import Tracer

# Values of a snapshot are shown for this many times the age at which a cluster is observed again, or for five minutes.
FRESH_LOOKS, FRESH_SECONDS = 3, 300.0
PROTOCOL = "http/protobuf"


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


@contextlib.contextmanager
def tracing(
    settings: Settings, app: AppMetrics, bundle: Path, read_error_codes: Callable[[], Collection[str]]
) -> Iterator[Tracer]:
    """A tracer for one run. Spans may show names of the app, files of the bundle, and these codes."""
    url = settings.traces_url
    if url is None:
        yield Tracer()
        return
    if (settings.otel_exporter_otlp_traces_protocol or settings.otel_exporter_otlp_protocol or PROTOCOL) != PROTOCOL:
        raise SettingsError([f"OTEL_EXPORTER_OTLP_PROTOCOL: spans are sent by {PROTOCOL} only: set it so, or unset it"])
    from runner.telemetry.otlp import Sender
    from runner.telemetry.span import Known
    from runner.telemetry.spans import SpanTracer

    headers = settings.otel_exporter_otlp_traces_headers or settings.otel_exporter_otlp_headers or SecretStr("")
    service = {"service.name": SERVICE, "service.version": version("gpuaas-slurm")}
    scope = {f"gpuaas.{name}": value for name, value in settings.scope.ids.items()}
    sender = Sender(url, headers.get_secret_value(), {**service, **scope})
    peers = {
        "platform": _address(settings.base_url),
        "vault": _address(settings.vault_agent_addr or settings.vault_addr),
    }
    names = Known(app.verbs, app.playbooks, read_error_codes(), bundle)
    try:
        yield SpanTracer(sender.send, names, settings.runner_id, peers)
    finally:
        sender.close()


def _address(url: AnyHttpUrl | None) -> tuple[str | None, int | None]:
    return (url.host, url.port) if url is not None else (None, None)
