"""The runner's metrics: which names and labels there are, that labels are bounded, and when values disappear."""

import re
import threading
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from runner.act.play_queue import Bounds, PlayGate
from runner.model.plan import AdapterError, Claim, Finish, Refuse
from runner.model.scope import ProjectScope
from runner.model.world import Outcome
from runner.platform import wire
from runner.slurm.app import SLURM
from runner.telemetry import exposition, labels
from runner.telemetry.clusters import Clusters
from runner.telemetry.meter import Meter
from runner.telemetry.metrics import PrometheusMeter
from runner.translate import RunResult
from tests.other_app import STUDIO
from tests.unit import hostile
from tests.unit.shown_metrics import Clock, Shown, operation, seconds_before
from tests.unit.worlds import NOW, fresh_id, instance, node, snapshot, world

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "usage" / "telemetry.md"
ROW = re.compile(r"^\| `((?:gpuaas|slurm)_\w+)` \| (.+) \|$", re.MULTILINE)
ID = UUID(int=7)
# The value of each label is one of these, or of the form.
CLOSED: dict[str, Any] = {
    "verb": {*SLURM.metrics.verbs, *STUDIO.metrics.verbs, "other"},
    "playbook": {*SLURM.metrics.playbooks, "other"},
    "result": {*labels.RESULTS, *labels.PLAY_RESULTS, "ok", "other"},
    "method": {*labels.METHODS, "other"},
    "route": {*wire.ROUTES, *labels.VAULT_ROUTES, "other"},
    "status": {*labels.STATUS_CLASSES, *labels.INSTANCE_STATUSES, *labels.MEMBER_STATUSES, "other"},
    "health": set(labels.HEALTHS),
    "peer": {"platform", "platform_ca", "vault", "vault_ca"},
    "token": {"platform", "vault", "vault_file"},
    "cluster": re.compile(r"[A-Za-z0-9_-]{1,73}"),
    "version": re.compile(r"[0-9A-Za-z.]{1,20}"),
    "le": re.compile(r"[0-9.]+|\+Inf"),
}


# -- names and labels ------------------------------------------------------------------------------------------


def test_the_manual_lists_every_metric_with_its_type_labels_and_name_in_the_file() -> None:
    registry = PrometheusMeter(SLURM.metrics, "1.1.0", 300).registry
    listed = {name: [cell.strip() for cell in rest.split(" | ")] for name, rest in ROW.findall(PAGE.read_text())}
    made = {family.name + ("_total" if family.type == "counter" else ""): family for family in registry.collect()}
    assert listed.keys() == made.keys()
    of_label = {
        collector._name: collector._labelnames  # type: ignore[attr-defined]
        for collector in registry._collector_to_names
        if hasattr(collector, "_labelnames")
    }
    for name, cells in listed.items():
        family = made[name]
        if name.startswith("slurm_"):
            assert family.type == "gauge" and cells[1].startswith(("Slurm 25.11", "vpenso/")), name
            continue
        assert cells[0] == family.type, name
        if family.name in of_label:
            assert tuple(re.findall(r"`(\w+)`", cells[1])) == of_label[family.name], name
        in_file = "the same" if family.type == "gauge" else f"`{exposition.of_last_run(family).name}`"
        assert cells[-1] == in_file, name


def test_every_playbook_that_a_plan_may_have_is_a_label() -> None:
    by_hand = {"clean_host", "recover", "restore_backup"}
    assert set(SLURM.metrics.playbooks) == {one.stem for one in (ROOT / "playbooks").glob("*.yml")} - by_hand


@pytest.mark.parametrize("text", [*hostile.TEXTS, "x" * 100_000, str(UUID(int=3)), "operation-\udcff"])
def test_no_value_from_outside_becomes_a_label(text: str) -> None:
    shown = Shown()
    meter = shown.meter
    named = instance(status=text, health=text, name=text, config={"cluster_name": text})
    named = named.model_copy(update={"status_detail": {"workers": {text: 3}, "observed_at": text}})
    asked = operation(operation=text, status="accepted", parameters={"deadline_seconds": text})
    meter.passed([named])
    meter.saw(world(instance=named, operations=(asked,), snapshot=snapshot({text[:50]: node(state=text, reason=text)})))
    meter.wrote(Claim("", asked), NOW)
    meter.wrote(Finish("", asked, text, {}), NOW)
    meter.wrote(Refuse("", asked, text), NOW)
    meter.play_ended(text, RunResult({ID: Outcome(error=AdapterError(text, text))}), 1)
    meter.api_call(text, wire.route(text), 999, 1)
    meter.api_call(text, wire.route(f"/api/v1/projects/{text}/app-instances"), -1, 1)
    meter.vault_call(text, labels.vault_route(f"/v1/{text}"), None, 1)
    meter.vault_call("GET", labels.vault_route(f"/v1/secret/data/{text}"), 200, 1)
    other = Shown(PrometheusMeter(STUDIO.metrics, "1.1.0", 300))
    other.meter.saw(world(instance=named, snapshot=None))
    seen = set()
    for registry in (meter.registry, other.meter.registry):
        for family in text_string_to_metric_families(generate_latest(registry).decode()):
            for sample in family.samples:
                for label, value in sample.labels.items():
                    allowed = CLOSED[label]
                    assert value in allowed if isinstance(allowed, set) else allowed.fullmatch(value), (label, value)
                    seen.add(label)
    assert seen == set(CLOSED) - {"peer", "token"}


def test_routes_have_no_ids_and_cover_every_call_of_the_client() -> None:
    own = ProjectScope(ID)
    assert wire.route(wire.instance(own, fresh_id())) == "/projects/{id}/app-instances/{id}"
    assert wire.route(wire.members(own, ID).item(fresh_id())) == "/projects/{id}/app-instances/{id}/members/{id}"
    assert wire.route(wire.TOKEN) == "/auth/service-account/token"
    assert wire.route(f"{wire.members(own, ID)}/x") == "other"
    assert labels.vault_route("/v1/team/kv/data/projects/1/app-instances/2") == "{mount}/data/{path}"
    assert labels.vault_route("/v1/auth/my/approle/login") == "auth/{mount}/login"


# -- clusters --------------------------------------------------------------------------------------------------


def test_a_cluster_that_is_gone_loses_its_series() -> None:
    shown = Shown()
    other = instance(id=fresh_id(), config={"cluster_name": "train"})
    for one in (instance(), other):
        shown.meter.saw(world(instance=one, snapshot=snapshot({"w1": node()})))
    shown.meter.passed([instance(), other])
    assert len(shown.values("slurm_nodes")) == 2
    shown.meter.passed([other])
    assert shown.values("slurm_nodes") == {("train",): 1}
    assert {key[0] for key in shown.values("gpuaas_cluster_status")} == {"train"}


def test_two_clusters_of_one_name_have_different_labels() -> None:
    shown = Shown()
    made = [instance(id=UUID(int=one << 96), config={"cluster_name": "train"}) for one in (10, 11)]
    for one in made:
        shown.meter.saw(world(instance=one))
    assert set(shown.values("gpuaas_operations_open")) == {("train-0000000a",), ("train-0000000b",)}


def test_values_of_an_old_snapshot_are_not_shown_and_its_age_is() -> None:
    shown = Shown()
    one = instance(status="running", status_detail={"observed_at": "2026-01-02T03:04:05Z"})
    seen = snapshot({"w1": node()})
    shown.meter.saw(world(instance=one, snapshot=seen))
    shown.clock.now += 300
    shown.meter.saw(world(instance=one, snapshot=None))  # a look that failed
    assert shown.value("slurm_nodes") == 1
    shown.clock.now += 1
    assert shown.value("slurm_nodes") is None
    assert shown.value("gpuaas_cluster_last_observation_timestamp_seconds") == NOW.timestamp()
    shown.meter.saw(world(instance=one, snapshot=seen))  # the same look, in a later round of the tick
    assert shown.value("slurm_nodes") is None
    shown.meter.saw(world(instance=one, snapshot=snapshot({})))
    assert shown.value("slurm_nodes") == 0


def test_a_running_cluster_that_was_never_observed_is_visible() -> None:
    shown = Shown()
    shown.meter.saw(world(instance=instance(status="running")))
    assert shown.value("gpuaas_cluster_last_observation_timestamp_seconds") == 0
    shown.meter.saw(world(instance=instance(status="deploying")))
    assert shown.value("gpuaas_cluster_last_observation_timestamp_seconds") is None


def test_open_operations_show_their_number_and_the_age_of_the_oldest() -> None:
    shown = Shown()
    waiting, claimed = (
        operation(created_at=seconds_before(60)),
        operation(created_at=seconds_before(600), status="running"),
    )
    shown.meter.saw(world(operations=(waiting,), instance_operations=(claimed,)))
    shown.clock.now += 5
    assert [
        shown.value(f"gpuaas_{name}")
        for name in (
            "operations_open",
            "operations_waiting",
            "operation_oldest_age_seconds",
            "operation_oldest_waiting_age_seconds",
        )
    ] == [2, 1, 605, 65]


def test_status_health_and_members_are_one_series_for_each_value() -> None:
    shown = Shown()
    one = instance(status="running", health="degraded", status_detail={"workers": {"ready": 3, "failed": 1}})
    shown.meter.saw(world(instance=one))
    assert {key[1] for key, value in shown.values("gpuaas_cluster_health").items() if value} == {"degraded"}
    assert {key[1]: value for key, value in shown.values("gpuaas_cluster_members").items() if value} == {
        "ready": 3,
        "failed": 1,
    }
    assert shown.values("gpuaas_cluster_status")["gs00000000", "running"] == 1


def test_an_app_that_is_not_slurm_has_its_own_series() -> None:
    shown = Shown(PrometheusMeter(STUDIO.metrics, "1.1.0", 300))
    shown.meter.saw(world(instance=instance(name="atelier"), snapshot=4))
    assert shown.values("studio_pictures") == {("atelier",): 4}
    assert "slurm" not in generate_latest(shown.meter.registry).decode()


# -- operations, plays and calls -------------------------------------------------------------------------------


def test_an_operation_is_counted_with_its_duration_and_its_wait() -> None:
    shown = Shown()
    before = shown.values("gpuaas_operations_total")
    assert before["failed", "drain"] == 0, "a series that begins with 1 shows no increase"
    shown.meter.wrote(Claim("", operation(created_at=seconds_before(40))), NOW)
    shown.meter.wrote(Claim("", operation(status="running", created_at=seconds_before(40))), NOW)  # again
    shown.meter.wrote(Finish("", operation(created_at=seconds_before(100)), "failed", {}), NOW)
    shown.meter.wrote(Refuse("", operation(operation="paint"), "operation_unknown"), NOW)
    ended = shown.values("gpuaas_operations_total")
    assert ended["failed", "drain"] == 1 and ended["failed", "other"] == 1
    assert shown.values("gpuaas_operation_duration_seconds_sum")["failed", "drain"] == 100
    assert shown.values("gpuaas_operation_queue_seconds_sum") == {("drain",): 40}
    assert shown.values("gpuaas_operation_queue_seconds_count") == {("drain",): 1}


def test_only_an_operation_whose_lease_expired_counts_as_taken_over() -> None:
    shown = Shown()
    expired = operation(status="running", updated_at=seconds_before(300), lease_expires_at=seconds_before(180))
    handed_back = operation(status="running", updated_at=seconds_before(300), lease_expires_at=seconds_before(300))
    for one in (operation(), handed_back):
        shown.meter.wrote(Claim("", one), NOW)
    assert shown.value("gpuaas_leases_taken_over_total") == 0
    shown.meter.wrote(Claim("", expired), NOW)
    assert shown.value("gpuaas_leases_taken_over_total") == 1


@pytest.mark.parametrize(
    ("result", "shown_as"),
    [
        (None, "error"),
        (RunResult(), "cancelled"),
        (RunResult({ID: Outcome("serving")}), "ok"),
        (RunResult({ID: Outcome(error=AdapterError("disk_full", ""))}), "failed"),
        (RunResult({ID: Outcome(error=AdapterError("play_timeout", ""))}), "timeout"),
        (RunResult({ID: Outcome(error=AdapterError("play_stalled", ""))}), "stalled"),
    ],
)
def test_a_play_is_counted_by_its_result(result: RunResult | None, shown_as: str) -> None:
    shown = Shown()
    shown.meter.play_ended("deploy", result, 3)
    assert {key: value for key, value in shown.values("gpuaas_plays_total").items() if value} == {
        ("deploy", shown_as): 1
    }
    assert shown.values("gpuaas_play_duration_seconds_sum") == {("deploy",): 3}


def test_running_waiting_and_stalled_plays_are_read_from_the_queue() -> None:
    shown, clock = Shown(), Clock(0.0)
    gate = PlayGate(Bounds(plays=1, forks=1, memory_mb=1000, stall_seconds=60), clock)
    shown.meter.watch_plays(gate.counts)
    for _ in range(2):
        gate._queue.join(requested=True, hosts=1)
    gate._queue.admit()
    now = [shown.value(f"gpuaas_plays_{name}") for name in ("running", "waiting", "stalled")]
    clock.now = 60.0
    assert (now, shown.value("gpuaas_plays_stalled")) == ([1, 1, 0], 1)


def test_calls_are_counted_by_the_class_of_their_status() -> None:
    shown = Shown()
    for status in (200, 204, 404, 503, None):
        shown.meter.api_call("GET", "/projects/{id}/allocations", status, 0.2)
    counted = {key[2]: value for key, value in shown.values("gpuaas_api_requests_total").items()}
    assert counted == {"2xx": 2, "3xx": 0, "4xx": 1, "5xx": 1, "none": 1}


def test_the_meter_that_counts_overrides_every_call() -> None:
    calls = {name for name in vars(Meter) if not name.startswith("_") and name != "playing"}
    assert calls <= vars(PrometheusMeter).keys()


def test_clusters_can_be_read_while_ticks_report_them() -> None:
    shown = Shown()
    clusters: Clusters = shown.meter._clusters
    failed: list[BaseException] = []

    def report() -> None:
        try:
            for number in range(300):
                clusters.saw(world(instance=instance(id=UUID(int=number << 96)), snapshot=snapshot({"w1": node()})))
                clusters.keep_only({UUID(int=number << 96)})
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=report) for _ in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        generate_latest(shown.meter.registry)
    assert failed == []
