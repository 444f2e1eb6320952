"""How spans are sent: as real protobuf, in bounded time, with one warning, and not at all without an endpoint."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from runner import settings as all_settings
from runner.settings import Settings, SettingsError
from runner.slurm.app import SLURM
from runner.telemetry.otlp import FLUSH_SECONDS, Sender
from runner.telemetry.span import MOST, Span
from runner.telemetry.start import tracing
from tests.otlp import collecting, never_answering
from tests.prometheus import free_port
from tests.waits import until

ROOT = Path(__file__).resolve().parents[2]
SECRET = "canary-3b2a1c0d9e8f"
VALUES = {"GPUAAS_BASE_URL": "http://127.0.0.1:1", "GPUAAS_PROJECT_ID": str(UUID(int=1))}
RESOURCE: dict[str, str | int] = {"service.name": "gpuaas-slurm"}


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in VALUES.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def made(**changes: Any) -> Settings:
    return Settings(**changes)


def span(number: int = 1, **changes: Any) -> Span:
    ids = {"trace_id": "a" * 32, "span_id": f"{number:016x}", "parent_id": None}
    given: dict[str, Any] = {"name": "tick", **ids, "start": 5, "end": 9}
    return Span(**{**given, **changes})


def sent(sender: Sender, *spans: Span) -> float:
    """Send them, and end as a run ends. Returns how long that took."""
    for one in spans:
        sender.send(one)
    began = time.monotonic()
    sender.close()
    return time.monotonic() - began


def test_a_span_arrives_as_it_was_made() -> None:
    with collecting() as collector:
        given = span(
            parent_id="b" * 16,
            attributes={"gpuaas.host": "w1", "gpuaas.attempt": 2, "secret": SECRET, "gpuaas.role": None},
            error="failed",
            links=(("c" * 32, "d" * 16),),
        )
        sent(Sender(f"{collector.url}/v1/traces", f"authorization=Bearer {SECRET},x-a=b", RESOURCE), given, span(2))
    first, second = collector.spans
    assert (first.trace_id, first.span_id, first.parent_id) == ("a" * 32, f"{1:016x}", "b" * 16)
    assert (first.name, first.start, first.end, first.failed) == ("tick", 5, 9, True)
    assert first.attributes == {"gpuaas.host": "w1", "gpuaas.attempt": 2, "error.type": "failed"}
    assert first.links == [("c" * 32, "d" * 16)]
    assert (second.parent_id, second.failed, second.attributes, second.links) == ("", False, {}, [])
    assert collector.resources[0]["service.name"] == "gpuaas-slurm"
    assert collector.headers[0]["authorization"] == f"Bearer {SECRET}" and collector.headers[0]["x-a"] == "b"
    assert collector.headers[0]["content-type"] == "application/x-protobuf"
    assert SECRET.encode() not in b"".join(collector.raw)


def test_spans_are_sent_while_the_run_goes_on() -> None:
    with collecting() as collector:
        sender = Sender(f"{collector.url}/v1/traces", "", RESOURCE)
        sender.send(span())
        until(lambda: collector.spans, 20, "the span arrives before the end")
        sender.close()


def test_a_span_that_cannot_be_made_costs_itself_and_one_warning() -> None:
    with collecting() as collector, capture_logs() as lines:
        sender = Sender(f"{collector.url}/v1/traces", "", RESOURCE)
        sent(sender, span(1), *(span(number, trace_id="no id") for number in (2, 3)), span(4))
    assert [one.span_id for one in collector.spans] == [f"{1:016x}", f"{4:016x}"]
    assert [(line["log_level"], line["problem"]) for line in lines] == [("warning", "ValueError")]


def test_a_number_that_otlp_cannot_hold_costs_no_other_span() -> None:
    odd = (span(2, attributes={"gpuaas.attempt": 2**70, "gpuaas.fence": 7}), span(3, start=-5, end=2**80))
    with collecting() as collector, capture_logs() as lines:
        sent(Sender(f"{collector.url}/v1/traces", "", RESOURCE), span(1), *odd)
    first, second, third = collector.spans
    assert (first.attributes, second.attributes) == ({}, {"gpuaas.fence": 7})
    assert (third.start, third.end) == (0, MOST) and lines == []


@contextmanager
def refusing(status: int) -> Iterator[str]:
    with collecting(status) as collector:
        yield collector.url


@contextmanager
def absent() -> Iterator[str]:
    yield f"http://127.0.0.1:{free_port()}"


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        (absent, "ConnectionError"),
        (never_answering, "no answer in time"),
        (lambda: refusing(400), "HTTP 400"),
        (lambda: refusing(401), "HTTP 401"),
        (lambda: refusing(503), "HTTP 503"),
    ],
)
def test_a_collector_that_takes_nothing_costs_a_bounded_wait_and_one_warning(
    place: Callable[[], AbstractContextManager[str]], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1" if problem == "HTTP 503" else "10")
    with capture_logs() as lines, place() as url:
        sender = Sender(f"{url}/v1/traces", f"authorization={SECRET}", RESOURCE)
        for number in range(1, 40):
            sender.send(span(number))
        if problem == "HTTP 503":
            until(lambda: lines, 20, "the warning")
        took = sent(sender, span(99))
    assert took < FLUSH_SECONDS + 1.5
    warnings = [line for line in lines if line["log_level"] == "warning"]
    assert len(warnings) == 1 and warnings[0]["problem"].startswith(problem.split("Error")[0]), warnings
    assert SECRET not in repr(lines)


def test_the_end_does_not_wait_for_a_collector_that_refused_before() -> None:
    with absent() as url, capture_logs() as lines:
        sender = Sender(f"{url}/v1/traces", "", RESOURCE)
        sender.send(span())
        pipeline = sender._pipeline
        assert pipeline is not None
        until(lambda: pipeline.problem, 30, "an attempt has failed")
        assert sent(sender, *(span(number) for number in range(2, 50))) < 1
    assert [line["problem"] for line in lines] == ["ConnectionError"]


def test_the_queue_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "600")
    with never_answering() as url, capture_logs() as lines:
        sender = Sender(f"{url}/v1/traces", "", RESOURCE)
        began = time.monotonic()
        for number in range(1, 5_000):
            sender.send(span(number))
        assert time.monotonic() - began < 5
        sender.close()
    assert len(lines) == 1 and lines[0]["spans"] == 4_999


@pytest.mark.parametrize("name", ["OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "OTEL_BSP_SCHEDULE_DELAY"])
def test_a_wrong_setting_of_the_sdk_costs_the_spans_alone(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "-1")
    with capture_logs() as lines:
        sent(Sender("http://127.0.0.1:1/v1/traces", "", RESOURCE), span(), span(2))
    assert [line["problem"] for line in lines] == ["ValueError"]


def test_a_header_that_cannot_be_sent_is_not_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    with collecting() as collector, capture_logs() as lines:
        sent(Sender(f"{collector.url}/v1/traces", f"authorization={SECRET}%0Ax: y", RESOURCE), span())
    assert SECRET not in repr(lines) + "".join(capsys.readouterr())


# -- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({}, None),
        ({"ENDPOINT": "http://c:4318"}, "http://c:4318/v1/traces"),
        ({"ENDPOINT": "http://c:4318/base/"}, "http://c:4318/base/v1/traces"),
        ({"ENDPOINT": "http://c:4318", "TRACES_ENDPOINT": "https://t/x"}, "https://t/x"),
        ({"ENDPOINT": "", "TRACES_ENDPOINT": ""}, None),
    ],
)
def test_the_endpoint_is_that_of_opentelemetrys_variables(
    variables: pytest.MonkeyPatch, given: dict[str, str], url: str | None
) -> None:
    for name, value in given.items():
        variables.setenv(f"OTEL_EXPORTER_OTLP_{name}", value)
    assert made().traces_url == url


@pytest.mark.parametrize(
    ("name", "value", "on"),
    [
        *(
            ("OTEL_SDK_DISABLED", value, on)
            for value, on in (("true", False), ("TRUE", False), ("1", True), ("", True))
        ),
        *(("OTEL_TRACES_EXPORTER", value, on) for value, on in (("none", False), ("otlp", True), ("console", False))),
    ],
)
def test_traces_can_be_off_with_an_endpoint(variables: pytest.MonkeyPatch, name: str, value: str, on: bool) -> None:
    variables.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318")
    variables.setenv(name, value)
    assert (made().traces_url is not None) is on


def tracer_of(own: Settings) -> bool:
    with tracing(own, SLURM.metrics, ROOT, tuple) as tracer:
        return tracer.is_on


def test_another_protocol_is_refused_only_if_spans_would_be_sent(variables: pytest.MonkeyPatch) -> None:
    variables.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    assert not tracer_of(made())
    variables.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317")
    with pytest.raises(SettingsError, match="OTEL_EXPORTER_OTLP_PROTOCOL: spans are sent by http/protobuf only"):
        tracer_of(made())
    variables.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    assert tracer_of(made())


def test_headers_are_a_secret_that_no_child_inherits(variables: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"):
        variables.setenv(name, f"authorization={SECRET}")
    own = made()
    assert SECRET not in repr(own) and own.otel_exporter_otlp_headers == SecretStr(f"authorization={SECRET}")
    all_settings.clear_secrets()
    assert SECRET not in repr(dict(os.environ))


def test_without_an_endpoint_nothing_of_opentelemetry_is_loaded() -> None:
    code = (
        "import sys, threading; from pathlib import Path; from runner.cli import main\n"
        "from runner.settings import Settings; from runner.telemetry.start import tracing\n"
        "from runner.slurm.app import SLURM; from runner.model.cause import Cause; from runner import context\n"
        "loaded = lambda: sorted({one.partition('.')[0] for one in sys.modules if one.startswith('opentelemetry')})\n"
        "with tracing(Settings(), SLURM.metrics, Path(), tuple) as tracer, context.bound(Cause('c-1')):\n"
        "    with tracer.calling('platform', 'GET', '/x') as call: assert call.traceparent is None\n"
        "print(loaded(), 'runner.telemetry.spans' in sys.modules, threading.active_count())\n"
        "own = Settings(OTEL_EXPORTER_OTLP_ENDPOINT='http://127.0.0.1:1')\n"
        "with tracing(own, SLURM.metrics, Path(), tuple) as tracer:\n"
        "    print(tracer.is_on, loaded(), threading.active_count())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=VALUES, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["[] False 1", "True [] 1"], done.stderr


def test_the_sdk_writes_nothing_itself() -> None:
    code = (
        "from runner.telemetry.otlp import Sender; from runner.telemetry.span import Span\n"
        f"sender = Sender('http://127.0.0.1:1/v1/traces', 'no header,authorization={SECRET}', {{}})\n"
        "sender.send(Span('x', 'a' * 32, 'b' * 16, None, 1, 2)); sender.close()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=VALUES, capture_output=True, text=True, check=False
    )
    assert done.stderr == "" and done.stdout.count("\n") == 1 and SECRET not in done.stdout, done
