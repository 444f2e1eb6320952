"""Traces of real work on a real platform. A collector holds the spans, as real protobuf.

Over 300 lines, because each way in which work or the collector can fail needs its own run.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from runner.act import bundle
from runner.loop import run as loop
from runner.loop.shared import Summary
from runner.model import trace
from runner.model.cause import Cause
from runner.platform.client import Client
from runner.slurm.app import SLURM
from runner.telemetry.start import tracing
from sandbox.fleet.keys import KeyPair
from tests.contract.shared_runtime import KEY
from tests.contract.simulated_hosts import Hosts, run_once
from tests.leases import end_leases
from tests.otlp import Collector, Received, collecting, never_answering
from tests.platform_process import Doc, Platform, Project
from tests.prometheus import free_port
from tests.runner_process import environment, settings
from tests.waits import until

SENDER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SECRETS = {"header": "canary-of-a-header-8f2k1", "host": "canary-of-a-host-7d3m9"}


def run_traced(project: Project, url: str | None, **changes: Any) -> Summary:
    if url is not None:
        changes["OTEL_EXPORTER_OTLP_ENDPOINT"] = url
    own = settings(project, **changes)
    with (
        tracing(own, SLURM.metrics, bundle.bundle_dir(), bundle.error_codes) as tracer,
        Client(own, tracer=tracer) as client,
    ):
        return loop.run(client, own, SLURM)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as started:
        yield started


def operations(project: Project, made: Doc) -> list[Doc]:
    return list(project.shown(made, "/member-operations"))


def add(project: Project, made: Doc, number: int, **headers: str) -> Doc:
    body = {
        "operation": "add",
        "component_key": "worker",
        "allocation_ids": [project.allocation_ids[number]],
    }
    path = f"{project.path}/app-instances/{made['id']}/member-operations"
    answer = project.operator.post(path, body, **headers)
    assert answer.status_code == 201, answer.text
    asked: Doc = answer.json()
    return asked


def assert_whole(collector: Collector) -> None:
    """Each span has an id of its own and a parent that was received, up to the request or to a routine tick."""
    places = [(one.trace_id, one.span_id) for one in collector.spans]
    assert len(set(places)) == len(places)
    roots = [one.trace_id for one in collector.spans if not one.parent_id]
    assert len(set(roots)) == len(roots), [one for one in collector.spans if not one.parent_id]
    for span in collector.spans:
        assert span.end >= span.start
        if span.parent_id:
            assert (span.trace_id, span.parent_id) in places, span
    for resource in collector.resources:
        assert resource["service.name"] == "gpuaas-slurm" and resource["service.version"]


# -- requests, ticks, plays and calls ------------------------------------------------------------------------------


def test_a_deploy_and_its_add_are_one_trace_from_the_request_to_each_call(
    dialable: Project, hosts: Hosts, collector: Collector
) -> None:
    made = dialable.deploy(workers=2)
    before = dialable.platform.control.requests()["last"]
    assert run_traced(dialable, collector.url).problems == []
    rows = dialable.platform.control.requests(before)["requests"]
    assert_whole(collector)
    expected = trace.trace_id_of(made["correlation_id"])
    assert {one.trace_id for one in collector.spans} == {expected}
    asked_for = {one.name: one for one in collector.of("request")}
    assert asked_for.keys() == {"deploy", "add"} and asked_for["add"].parent_id == asked_for["deploy"].span_id
    (play,) = collector.of("play")
    assert collector.above(play) == ["tick", "request", "request"] and play.name == "play deploy"
    assert play.attributes["cicd.pipeline.task.run.result"] == "success"
    (asked,) = operations(dialable, made)
    assert asked["result"]["trace_id"] == expected
    assert {one["adapter_detail"]["trace_id"] for one in dialable.shown(made, "/members")} == {expected}
    for request in collector.of("request"):
        # Its age is by the platform's clock, which is known to the second.
        others = [one for one in collector.spans if one.kind != "request"]
        assert request.start <= min(one.start for one in others) + 10**9 and not request.failed
        assert request.end >= max(one.end for one in others if one.kind == "play")
    # Each call carried its own span.
    calls = [one for one in rows if made["id"] in one["path"]]
    sent = {one["traceparent"] for one in calls}
    received = {trace.traceparent(one.trace_id, one.span_id) for one in collector.of("call")}
    assert len(sent) == len(calls) > 10 and sent <= received


def test_the_trace_of_the_sender_is_continued_and_a_broken_one_ignored(
    dialable: Project, hosts: Hosts, collector: Collector
) -> None:
    made = dialable.deploy(workers=0)
    run_once(dialable)
    given = add(dialable, made, 1, traceparent=SENDER)
    broken = add(dialable, made, 2, traceparent=SENDER.replace("00-", "ff-", 1))
    assert (given["traceparent"], broken["traceparent"]) == (SENDER, None)
    run_traced(dialable, collector.url)
    spans = {one.attributes["gpuaas.operation_id"]: one for one in collector.of("request")}
    assert (spans[given["id"]].trace_id, spans[given["id"]].parent_id) == tuple(SENDER.split("-")[1:3])
    assert spans[broken["id"]].trace_id == trace.trace_id_of(broken["correlation_id"])
    assert spans[broken["id"]].parent_id == ""
    shown = {one["id"]: one["result"]["trace_id"] for one in operations(dialable, made)}
    assert shown == {one: span.trace_id for one, span in spans.items()}


def test_a_play_for_two_operations_has_a_span_in_the_trace_of_each(
    dialable: Project, hosts: Hosts, collector: Collector
) -> None:
    made = dialable.deploy(workers=0)
    run_once(dialable)
    asked = [add(dialable, made, number) for number in (1, 2)]
    run_traced(dialable, collector.url)
    assert_whole(collector)
    joins = [one for one in collector.of("play") if one.name == "play add_worker"]
    assert {one.trace_id for one in joins} == {trace.trace_id_of(one["correlation_id"]) for one in asked}
    first, second = joins
    assert first.links == [(second.trace_id, second.span_id)] and second.links == [(first.trace_id, first.span_id)]
    details = [one["adapter_detail"] for one in dialable.shown(made, "/members") if one["component_key"] == "worker"]
    assert {one["trace_id"] for one in details} == {one.trace_id for one in joins}


def test_a_tick_that_finds_nothing_to_do_sends_nothing_and_a_look_has_its_own_trace(
    dialable: Project, hosts: Hosts, collector: Collector
) -> None:
    made = dialable.deploy(workers=1)
    run_once(dialable)
    run_traced(dialable, collector.url, observe_seconds=3600)
    assert collector.spans == [] and collector.raw == []
    run_traced(dialable, collector.url, observe_seconds=0)
    assert_whole(collector)
    looks = collector.of("play")
    assert [one.name for one in looks] == ["play observe"]
    correlation = str(looks[0].attributes["gpuaas.correlation_id"])
    assert correlation.startswith("refresh-an-old-observation-")
    assert looks[0].trace_id == trace.trace_id_of(correlation) != trace.trace_id_of(made["correlation_id"])
    assert collector.above(looks[0]) == ["tick"] and collector.of("request") == []


def test_a_refused_operation_has_its_span_with_the_code(dialable: Project, hosts: Hosts, collector: Collector) -> None:
    made = dialable.deploy(workers=0)
    run_once(dialable)
    add(dialable, made, 0)  # the controller's own machine
    run_traced(dialable, collector.url)
    (asked,) = operations(dialable, made)
    (request,) = collector.of("request")
    assert request.failed and request.attributes["error.type"] == asked["error"]["code"] != "other"
    assert request.attributes["cicd.pipeline.result"] == "failure"
    assert asked["result"] == {"trace_id": request.trace_id}


def test_without_a_collector_the_trace_of_the_sender_is_passed_on_as_it_is(dialable: Project, hosts: Hosts) -> None:
    unsampled = SENDER.removesuffix("01") + "00"
    made = dialable.deploy(workers=0)
    run_once(dialable)
    asked = {one["id"]: one for one in (add(dialable, made, 1, traceparent=unsampled), add(dialable, made, 2))}
    before = dialable.platform.control.requests()["last"]
    run_traced(dialable, None)
    rows = dialable.platform.control.requests(before)["requests"]
    given = {one["correlation_id"] for one in asked.values() if one["traceparent"]}
    assert {row["traceparent"] for row in rows if row["correlation_id"] in given} == {unsampled}
    assert {row["traceparent"] for row in rows if row["correlation_id"] not in given} == {None}
    for one in operations(dialable, made):
        own = SENDER.split("-")[1] if asked[one["id"]]["traceparent"] else None
        assert one["result"].get("trace_id") == own
    details = [one["adapter_detail"] for one in dialable.shown(made, "/members") if one["component_key"] == "worker"]
    assert {one["trace_id"] for one in details} == {SENDER.split("-")[1], None}


# -- a collector that does not work --------------------------------------------------------------------------------


@contextlib.contextmanager
def answering(status: int) -> Iterator[str]:
    with collecting(status) as collector:
        yield collector.url


@pytest.mark.parametrize("kind", ["absent", "silent", "refusing"])
def test_a_collector_that_does_not_work_costs_the_spans_and_one_warning(
    dialable: Project, hosts: Hosts, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    dialable.deploy(workers=1)
    places: dict[str, AbstractContextManager[str]] = {
        "absent": contextlib.nullcontext(f"http://127.0.0.1:{free_port()}"),
        "silent": never_answering(),
        "refusing": answering(400),
    }
    headers = f"authorization=Bearer {SECRETS['header']}"
    capsys.readouterr()
    with places[kind] as url:
        done = run_traced(dialable, url, OTEL_EXPORTER_OTLP_HEADERS=headers)
    assert (done.problems, done.failed_operations, done.plays) == ([], 0, 1)
    shown = "".join(capsys.readouterr())
    assert shown.count("the collector does not take spans") == 1, shown
    assert "Traceback" not in shown and SECRETS["header"] not in shown


# -- hosts and tasks: real Ansible, in a runner that is killed -----------------------------------------------------


@dataclass
class Killed:
    """A join whose runner was killed in mid-play, and what a second runner made of it."""

    collector: Collector
    until_then: list[Received]
    asked: Doc
    logs: str
    project: Project
    made: Doc


@pytest.fixture(scope="module")
def killed(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    home = tmp_path_factory.mktemp("killed")
    project = platform.project(allocations=3)
    control = platform.control
    control.put_credential(
        project.project_id, project.credential_id, username="ops", private_key=KeyPair.generate().private
    )
    for number, allocation_id in enumerate(project.allocation_ids):
        connection = {"host": f"10.99.0.{number + 1}", "port": 22, "username": "ops", "host_keys": [KEY]}
        control.put_allocation(project.project_id, allocation_id, connection=connection, gpus=0)
    made = project.deploy(workers=0)
    with pytest.MonkeyPatch.context() as patch:
        from runner.act import play_secrets
        from runner.loop import tick

        patch.setattr(tick, "play", Hosts().play)
        patch.setattr(play_secrets, "access", lambda *_: contextlib.nullcontext(play_secrets.Access({})))
        assert run_once(project).problems == []
    asked = add(project, made, 1)
    flag, log = home / "go on", home / "log"
    with collecting() as collector:
        given = environment(
            project,
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
            OTEL_EXPORTER_OTLP_HEADERS=f"authorization=Bearer {SECRETS['header']}",
            OTEL_BSP_SCHEDULE_DELAY="100",
            GPUAAS_LOG_FORMAT="json",
            GPUAAS_LOG_LEVEL="debug",
            GPUAAS_OBSERVE_SECONDS="3600",
        )

        def start(number: int) -> "subprocess.Popen[bytes]":
            command = [sys.executable, "-m", "tests.contract.local_runner"]
            return subprocess.Popen(
                [*command, str(home / f"bundle-{number}"), str(flag), SECRETS["host"]],
                env={**os.environ, **given, "TMPDIR": str(home)},
                stderr=log.open("ab"),
                stdout=subprocess.DEVNULL,
            )

        first = start(1)
        try:
            waits = f"until [ -e {flag} ]"
            asked_file = home / "bundle-1" / "asked.jsonl"
            until(lambda: asked_file.exists() and "converge_host" in asked_file.read_text(), 60, waits)
            until(lambda: len(collector.of("task")) >= 3, 30, "tasks are sent while the play runs")
        finally:
            first.kill()
            first.wait()
        until_then = list(collector.spans)
        flag.touch()
        end_leases(project.adapter, f"{project.path}/app-instances/{made['id']}")
        assert start(2).wait(120) == 0, log.read_text()[-3000:]
        yield Killed(collector, until_then, asked, log.read_text(), project, made)


def test_a_killed_run_keeps_the_spans_of_what_its_hosts_had_done(killed: Killed) -> None:
    kinds = [one.kind for one in killed.until_then]
    assert kinds.count("task") >= 3 and kinds.count("call") >= 3
    assert not {"play", "host", "request"} & set(kinds)
    assert {one.trace_id for one in killed.until_then if one.kind == "task"} == {
        trace.trace_id_of(killed.asked["correlation_id"])
    }


def test_after_a_kill_the_second_attempt_is_whole_in_the_same_trace(killed: Killed) -> None:
    collector, own = killed.collector, trace.trace_id_of(killed.asked["correlation_id"])
    assert [one.name for one in collector.spans if one.trace_id == own and not one.parent_id] == ["add"]
    (request,) = collector.of("request")
    assert request.trace_id == own and request.attributes["gpuaas.attempt"] == 2
    assert request.span_id == Cause("x", UUID(killed.asked["id"])).root_span_id
    (play,) = collector.of("play", own)
    assert (play.name, collector.above(play)) == ("play add_worker", ["tick", "request"])
    tasks = [one for one in collector.of("task", own) if one not in killed.until_then]
    hosts = collector.of("host", own)
    members = killed.project.shown(killed.made, "/members")
    assert {one.attributes["gpuaas.member_id"] for one in hosts} == {one["id"] for one in members}
    assert len(tasks) > 10
    assert {tuple(collector.above(one)) for one in tasks} == {("host", "play", "tick", "request")}
    assert {one.parent_id for one in tasks} == {one.span_id for one in hosts}
    # What the killed runner sent is under spans of its own, which it could not send.
    lost = {one.parent_id for one in killed.until_then if one.kind == "task"}
    assert not lost & {one.span_id for one in hosts}
    converge = next(one for one in tasks if one.attributes.get("gpuaas.role") == "slurmd")
    assert converge.attributes["gpuaas.task.path"].startswith("roles/slurmd/tasks/main.yml:")
    assert converge.attributes["cicd.pipeline.task.name"]


def test_calls_to_the_platform_and_to_vault_are_in_the_play_that_they_are_for(killed: Killed) -> None:
    (play,) = killed.collector.of("play")
    within = [one for one in killed.collector.of("call") if one.parent_id == play.span_id]
    assert {one.attributes["peer.service"] for one in within} == {"platform", "vault"}
    routes = {one.attributes["http.route"] for one in within}
    assert {"sys/wrapping/unwrap", "{mount}/data/{path}"} <= routes


def test_log_lines_name_the_span_that_they_belong_to(killed: Killed) -> None:
    lines = [json.loads(line) for line in killed.logs.splitlines() if line.startswith("{")]
    received = {(one.trace_id, one.span_id) for one in killed.collector.spans}
    second = [line for line in lines if line["event"] == "play ended"]
    assert len(second) == 1 and {(line["trace_id"], line["span_id"]) for line in second} <= received
    for line in lines:
        if "operation_id" in line:
            assert line["trace_id"] == trace.trace_id_of(killed.asked["correlation_id"])


def test_no_span_and_no_log_line_has_a_secret_or_a_hosts_word(killed: Killed) -> None:
    held = b"".join(killed.collector.raw)
    assert killed.asked["id"].encode() in held
    for secret in SECRETS.values():
        assert secret.encode() not in held
    assert SECRETS["header"] not in killed.logs
    assert {one["authorization"] for one in killed.collector.headers} == {f"Bearer {SECRETS['header']}"}
    assert set(killed.collector.paths) == {"/v1/traces"}
