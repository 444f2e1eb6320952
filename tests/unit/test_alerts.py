"""Alert rules and dashboard: they use metrics that exist, work with endpoint and file, and name their runbook page."""

import json
import re
from pathlib import Path

import yaml

from runner.slurm.app import SLURM
from runner.telemetry.exposition import of_last_run
from runner.telemetry.metrics import PrometheusMeter
from tests.prometheus import DASHBOARD, NAME, ROOT, RULE_TESTS, alerts, dashboard_expressions, panels

RUNBOOK = ROOT / "docs" / "runbook.md"
PROVISIONING = ROOT / "deploy" / "grafana" / "provisioning"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def names() -> tuple[set[str], set[str]]:
    """Names of samples at the endpoint, and in the file."""
    endpoint, file = set(), set()
    for family in PrometheusMeter(SLURM.metrics, "1.1.0", 300).registry.collect():
        ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        endpoint |= {family.name + end for end in ends}
        file.add(family.name if family.type == "gauge" else of_last_run(family).name)
    return endpoint, file


def test_every_metric_in_a_rule_or_a_panel_exists() -> None:
    exported = set.union(*names())
    expressions = [*(one["expr"] for one in alerts().values()), *dashboard_expressions()]
    used = {name for expr in expressions for name in NAME.findall(expr)}
    assert len(used) > 30
    assert used - exported == set()
    fed = " ".join(one["series"].partition("{")[0] for case in _cases() for one in case["input_series"])
    assert set(NAME.findall(fed)) - exported == set()


def test_every_alert_has_an_expression_for_the_endpoint_and_for_the_file() -> None:
    endpoint, file = names()
    for name, rule in alerts().items():
        used = set(NAME.findall(rule["expr"]))
        assert used & endpoint and used & file, name


def test_every_alert_has_a_severity_a_time_a_summary_and_its_page_of_the_runbook() -> None:
    made = alerts()
    assert len(made) >= 12
    titles = set(re.findall(r"^#+ (.+)$", RUNBOOK.read_text(), re.MULTILINE))
    for name, rule in made.items():
        assert rule["labels"]["severity"] in ("critical", "warning"), name
        assert "for" in rule and rule["annotations"]["summary"].endswith("."), name
        assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{name.lower()}", name
        assert name in titles, name


def _cases() -> list[dict[str, list[dict[str, str]]]]:
    cases: list[dict[str, list[dict[str, str]]]] = yaml.safe_load(RULE_TESTS.read_text())["tests"]
    return cases


def test_every_alert_is_tested_to_fire_and_not_to_fire() -> None:
    checks = [check for case in _cases() for check in case["alert_rule_test"]]
    assert {check["alertname"] for check in checks if check["exp_alerts"]} == alerts().keys()
    assert {check["alertname"] for check in checks if not check["exp_alerts"]} == alerts().keys()


def test_every_alert_on_counters_is_tested_with_the_file_too() -> None:
    for name, rule in alerts().items():
        of_run = {one for one in NAME.findall(rule["expr"]) if one.startswith("gpuaas_run_")}
        fed = {
            name_of[0]
            for case in _cases()
            if any(check["alertname"] == name and check["exp_alerts"] for check in case["alert_rule_test"])
            for one in case["input_series"]
            if (name_of := NAME.match(one["series"]))
        }
        assert of_run <= fed, name


def test_the_dashboard_needs_no_input_and_takes_any_prometheus() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    assert "__inputs" not in dashboard and "__requires" not in dashboard and dashboard.get("id") is None
    variables = {one["name"]: one for one in dashboard["templating"]["list"]}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    assert variables["cluster"]["datasource"] == DATASOURCE
    for panel in panels():
        assert panel["datasource"] == DATASOURCE, panel["title"]
        assert panel["targets"] and all(one["datasource"] == DATASOURCE for one in panel["targets"]), panel["title"]
    ids = [one["id"] for one in dashboard["panels"]]
    assert len(set(ids)) == len(ids)


def test_panels_do_not_overlap() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


def test_grafana_is_given_the_folder_of_the_dashboard_and_a_datasource() -> None:
    (provider,) = yaml.safe_load((PROVISIONING / "dashboards" / "gpuaas-slurm.yaml").read_text())["providers"]
    assert provider["type"] == "file" and Path(provider["options"]["path"]).is_absolute()
    (source,) = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yaml").read_text())["datasources"]
    # Grafana overwrites a data source of the same name, and may have one default only.
    assert source["type"] == "prometheus" and source["name"] == "gpuaas-prometheus" and "isDefault" not in source
