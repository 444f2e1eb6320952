"""The LogQL queries of the runbook find what they are for, on lines that real runs wrote. No Loki is used.

The files for Promtail and the collector are checked by their structure.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.model.plan import AdapterError
from tests.contract.killable_runner import FileHosts
from tests.contract.stage import Stage
from tests.log_lines import SCHEMA, Line, read_lines
from tests.logql import parse, select

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "runbook.md").read_text()
STREAM = {"service": "gpuaas-slurm"}
# What the controller of a deploy met, one attempt after the other.
MET = ("disk_full", "host_unreachable", "host_key_missing")


def queries() -> dict[str, str]:
    """Each query of the runbook, by the heading above it."""
    found: dict[str, str] = {}
    for section in re.split(r"^##+ ", PAGE, flags=re.MULTILINE)[1:]:
        for block in re.findall(r"```logql\n(.*?)```", section, flags=re.DOTALL):
            found[section.splitlines()[0]] = " ".join(block.split())
    return found


QUERIES = queries()


@dataclass
class Logged:
    lines: list[Line]
    ids: dict[str, str]

    def found_by(self, heading: str) -> list[Line]:
        query = QUERIES[heading]
        for name, value in self.ids.items():
            query = query.replace(f'"{name}"', f'"{value}"')
        return [json.loads(one) for one in select(query, map(json.dumps, self.lines), STREAM)]


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logged]:
    """A deploy that fails in several ways and is tried again, a drain, a worker that dies, closed partitions."""
    stage = Stage(tmp_path_factory.mktemp("queries"))
    control, text = stage.platform.control, ""
    try:
        for number, code in enumerate(MET):
            _change(stage, ctl_error=AdapterError(code, f"the host met {code}"))
            if number:
                stage.ask_whole("retry")
            text += stage.settle()
        stage.retry()
        sealed = {"errors": ["Vault is sealed"]}
        control.inject_fault("status", "^/v1/", status=503, body=sealed)
        control.inject_fault("status", "/members$", method="GET", status=503)
        text += stage.settle()
        drain = stage.ask("drain", 2)
        conflict = {"code": "precondition_failed", "message": "changed meanwhile"}
        control.inject_fault("status", "/member-operations/", method="PATCH", status=412, body=conflict)
        text += stage.settle()
        control.clear_faults()
        _change(stage, partitions={"main": "DOWN"})
        text += stage.settle(GPUAAS_OBSERVE_SECONDS="0")
        ids = {"ID": drain["correlation_id"], "OPERATION": drain["id"], "INSTANCE": stage.made["id"]}
        yield Logged(read_lines(text), ids)
    finally:
        stage.close()


def _change(stage: Stage, **changes: Any) -> None:
    hosts = FileHosts.load(stage._hosts)
    for name, value in changes.items():
        setattr(hosts, name, value)
    hosts.save(stage._hosts)


def test_every_symptom_of_the_runbook_has_a_query() -> None:
    symptoms = re.findall(r"^### (.*)$", PAGE[PAGE.index("\n## Symptoms\n") :], flags=re.MULTILINE)
    assert len(symptoms) >= 10
    assert [one for one in symptoms if one not in QUERIES] == []


@pytest.mark.parametrize("heading", QUERIES)
def test_a_query_compares_fields_of_the_schema_in_the_stream_of_the_runner(heading: str) -> None:
    read = parse(QUERIES[heading])
    assert read.stream == STREAM
    assert read.fields <= set(SCHEMA["properties"])


# By heading: a field of every line that the query has to find, and the values it may have.
FINDS: dict[str, tuple[str, str]] = {
    "Start from a correlation id": ("event", "claim|play|report .*|finish.*|.*"),
    "Deploying for too long": ("error_code", ".+"),
    "A drain that does not end": ("event", ".*"),
    "No way to the hosts": ("error_code", "host_unreachable"),
    "Vault sealed": ("error_code", "vault_.*"),
    "Wrong host key": ("error_code", "host_key_missing"),
    "Platform away": ("event", "call retried"),
    "Two runners": ("event", "left to another runner"),
    "Disk full": ("error_code", "disk_full"),
    "Cluster unhealthy": ("event", "report running/unhealthy"),
}
# Of a line that these runs do not write: the hosts here have no daemon that dies.
MADE_UP = {"A worker that flaps": {"event": "report ready", "why": "worker_down: repair 1 of at most 3"}}


def test_every_query_is_run() -> None:
    assert FINDS.keys() | MADE_UP.keys() == QUERIES.keys()


@pytest.mark.parametrize("heading", FINDS)
def test_a_query_finds_the_lines_it_is_for_and_no_others(logged: Logged, heading: str) -> None:
    field, value = FINDS[heading]
    found = logged.found_by(heading)
    assert found and len(found) < len(logged.lines)
    assert [line for line in found if not re.fullmatch(value, str(line.get(field, "")))] == []
    if value != ".+" and ".*" not in value:
        missed = [line for line in logged.lines if line not in found and re.fullmatch(value, str(line.get(field, "")))]
        assert missed == []


def test_a_correlation_id_finds_every_line_of_the_drain_and_nothing_else(logged: Logged) -> None:
    found = logged.found_by("Start from a correlation id")
    assert {line.get("operation_id") for line in found} == {logged.ids["OPERATION"]}
    assert found == logged.found_by("A drain that does not end")
    assert {"claim", "play", "left to another runner"} <= {line["event"] for line in found}


@pytest.mark.parametrize("heading", MADE_UP)
def test_a_query_for_what_is_not_caused_here_finds_a_line_of_that_form(logged: Logged, heading: str) -> None:
    made = next(line for line in logged.lines if "app_instance_id" in line) | MADE_UP[heading]
    assert logged.found_by(heading) == []
    assert Logged([*logged.lines, made], logged.ids).found_by(heading) == [made]


# -- the files in deploy/ ------------------------------------------------------------------------------------


def _yaml(path: str) -> Any:
    return yaml.safe_load((ROOT / "deploy" / path).read_text())


def test_promtail_reads_the_units_journal_with_one_label_and_the_time_of_the_line() -> None:
    found = _yaml("promtail/promtail.yaml")
    (job,) = found["scrape_configs"]
    assert job["journal"]["labels"] == STREAM
    assert job["journal"]["matches"] == "_SYSTEMD_UNIT=gpuaas-slurm.service"
    assert (ROOT / "deploy" / "systemd" / "gpuaas-slurm.service").exists()
    stages = {name: stage for one in job["pipeline_stages"] for name, stage in one.items()}
    assert "labels" not in stages, "an id as a label makes a stream of each request"
    assert set(stages["json"]["expressions"].values()) <= set(SCHEMA["properties"])
    assert stages["timestamp"]["source"] in stages["json"]["expressions"]
    assert found["server"]["http_listen_address"] == "127.0.0.1"
    assert [one["url"] for one in found["clients"]] == ["${LOKI_URL}"]


def test_the_collector_listens_on_loopback_and_every_part_of_its_pipelines_exists() -> None:
    found = _yaml("otel/collector.yaml")
    protocols = found["receivers"]["otlp"]["protocols"]
    assert {name: one["endpoint"] for name, one in protocols.items()} == {
        "grpc": "127.0.0.1:4317",
        "http": "127.0.0.1:4318",
    }
    pipelines = found["service"]["pipelines"]
    assert {name: one["exporters"] for name, one in pipelines.items()} == {
        "traces": ["otlp/tempo"],
        "metrics": ["prometheusremotewrite"],
        "logs": ["otlphttp/loki"],
    }
    for kind in ("receivers", "processors", "exporters"):
        assert {name for one in pipelines.values() for name in one[kind]} == found[kind].keys()
    assert all("${env:" in one["endpoint"] for one in found["exporters"].values())


def test_the_collector_reads_fields_of_the_schema_and_keeps_the_line() -> None:
    logs = _yaml("otel/collector.yaml")["receivers"]["filelog"]
    assert logs["resource"]["service"] == STREAM["service"]
    read = re.findall(r"attributes\.line\.(\w+)", json.dumps(logs["operators"]))
    assert set(read) == {"timestamp", "level", "trace_id", "span_id"} <= set(SCHEMA["properties"])
    assert [one["type"] for one in logs["operators"]] == ["container", "json_parser", "remove"]
    assert logs["operators"][-1]["field"] == "attributes.line", "fields that are kept twice get other names in Loki"
