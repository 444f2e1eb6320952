"""The real promtool accepts the alert rules, and a real Prometheus scrapes a runner that works with a real platform."""

import functools
import http.server
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import pytest

from runner.loop import run as loop
from runner.loop.shared import Signals
from runner.platform.client import Client
from runner.slurm.app import SLURM
from runner.telemetry.start import metering
from tests.commands import ends
from tests.contract.simulated_hosts import Hosts
from tests.platform_process import Project
from tests.prometheus import (
    CONFIG,
    RULE_TESTS,
    RULES,
    Prometheus,
    alerts,
    dashboard_expressions,
    free_port,
    panels,
    promtool,
    scraping,
)
from tests.runner_process import environment, gpuaas_slurm, settings
from tests.waits import until


def test_promtool_accepts_the_rules_and_the_configuration() -> None:
    ends(promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES)), 0)
    ends(promtool("check", "config", str(CONFIG)), 0)


def test_promtool_finds_that_each_alert_fires_when_it_should() -> None:
    ends(promtool("test", "rules", str(RULE_TESTS)), 0)


@pytest.mark.parametrize(("limit", "changed"), [("> 600", "> 60000"), ('result="failed"', 'result="succeeded"')])
def test_the_tests_of_the_rules_fail_for_a_wrong_rule(tmp_path: Path, limit: str, changed: str) -> None:
    text = RULES.read_text()
    assert limit in text
    (tmp_path / RULES.name).write_text(text.replace(limit, changed))
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "x.yml").write_text(RULE_TESTS.read_text())
    ends(promtool("test", "rules", str(tmp_path / "tests" / "x.yml")), 1)


@dataclass
class Watched:
    """A runner that stays, a file of a run that ended, and a Prometheus that reads both."""

    prometheus: Prometheus
    endpoint: str
    instance_id: str

    @property
    def cluster(self) -> str:
        return f"gs{self.instance_id[:8]}"


@pytest.fixture
def watched(dialable: Project, hosts: Hosts, tmp_path: Path) -> Iterator[Watched]:
    made = dialable.deploy(workers=2)
    file = tmp_path / "gpuaas-slurm.prom"
    own = settings(dialable, metrics_file=str(file), observe_seconds=0)
    with metering(own, SLURM.metrics, stays=False) as meter, Client(own, meter=meter) as client:
        assert loop.run(client, own, SLURM).problems == []
    handler = functools.partial(_Handler, directory=str(tmp_path))
    signals = Signals()
    staying = settings(dialable, metrics_listen=str(port := free_port()), observe_seconds=0, watch_seconds=0.5)
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as node,
        ThreadPoolExecutor(2) as pool,
        metering(staying, SLURM.metrics, stays=True) as meter,
        Client(staying, meter=meter) as client,
    ):
        threading.Thread(target=node.serve_forever, daemon=True).start()
        run = pool.submit(loop.run, client, staying, SLURM, forever=True, signals=signals)
        try:
            with scraping(tmp_path, {"gpuaas-slurm": port, "node": node.server_port}) as prometheus:
                yield Watched(prometheus, f"http://127.0.0.1:{port}/metrics", str(made["id"]))
        finally:
            signals.stop.set()
            node.shutdown()
        assert run.result(60).problems == []


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the text file, as node_exporter does."""

    def guess_type(self, _path: object) -> str:
        return "text/plain; version=0.0.4"

    def do_GET(self) -> None:
        self.path = "/gpuaas-slurm.prom"
        super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


def test_prometheus_reads_endpoint_and_file_and_evaluates_every_rule_and_panel(watched: Watched) -> None:
    prometheus, cluster = watched.prometheus, watched.cluster
    both = {"gpuaas-slurm": 2.0, "node": 2.0}
    until(lambda: prometheus.values(f'slurm_nodes{{cluster="{cluster}"}}') == both, 30, "both show the nodes")
    running = f'gpuaas_cluster_status{{cluster="{cluster}",status="running"}}'
    assert prometheus.values(running) == {"gpuaas-slurm": 1, "node": 1}
    assert prometheus.values("time() - gpuaas_last_pass_timestamp_seconds < 120").keys() == both.keys()
    until(lambda: prometheus.values('gpuaas_ticks_total{result="ok"}').get("gpuaas-slurm", 0) > 2, 30, "ticks count")
    assert prometheus.values('gpuaas_run_ticks{result="ok"}')["node"] >= 1
    assert prometheus.values('gpuaas_run_operations{verb="add",result="succeeded"}') == {"node": 1}
    assert prometheus.values('gpuaas_run_operation_queue_seconds{verb="add"}').keys() == {"node"}
    assert prometheus.values('gpuaas_run_plays{playbook="deploy",result="ok"}') == {"node": 1}
    assert prometheus.values('gpuaas_plays_total{playbook="observe",result="ok"}')["gpuaas-slurm"] >= 1
    assert prometheus.values('sum by (job) (gpuaas_api_requests_total{status="2xx"})')["gpuaas-slurm"] > 5
    assert prometheus.values('sum by (job) (gpuaas_api_requests_total{route="other"})') == {}

    def rules() -> list[str]:
        groups = prometheus.get("rules")["groups"]
        found = [rule for group in groups for rule in group["rules"]]
        assert {rule["name"] for rule in found} == alerts().keys()
        return [rule["health"] for rule in found]

    until(lambda: set(rules()) == {"ok"}, 30, "every rule was evaluated", seen=rules)
    rare = ("certificate", "vault", "operation_duration", "operation_queue", "gpuaas_operations_total")
    expected = [expr for expr in dashboard_expressions() if not any(name in expr for name in rare)]

    def empty() -> list[str]:
        return [expr for expr in expected if not prometheus.get("query", query=expr)["result"]]

    until(lambda: not empty(), 60, "every panel that concerns this run shows something", seen=empty)
    for expr in dashboard_expressions():
        prometheus.get("query", query=expr)  # an error if it is not an expression
    assert len(panels()) > 20


def test_what_a_runner_shows_is_in_the_usual_form(watched: Watched) -> None:
    with urlopen(watched.endpoint, timeout=10) as answer:
        text = answer.read().decode()
    complaints = promtool("check", "metrics", stdin=text).stderr.splitlines()
    # Names that others chose are kept as they are.
    assert [line for line in complaints if not line.startswith("slurm_")] == []


def test_the_command_serves_metrics_only_while_it_stays(dialable: Project, tmp_path: Path) -> None:
    file = tmp_path / "x.prom"
    variables = environment(dialable, GPUAAS_METRICS_LISTEN="70000", GPUAAS_METRICS_FILE=str(file))
    refused = ends(gpuaas_slurm(variables, "run"), 2)
    assert "GPUAAS_METRICS_LISTEN" in refused.stderr and not file.exists()
    variables["GPUAAS_METRICS_LISTEN"] = "0"
    done = ends(gpuaas_slurm(variables, "run"), 0)
    assert "metrics endpoint listens" not in done.stderr
    assert "gpuaas_runner_info" in file.read_text()
