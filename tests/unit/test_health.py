"""One health value for a cluster, and why: by example, by property, and against the table that operators read.

Over 300 lines, because each reason of that table has its example here.
"""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from runner.model.limits import REASONS_SHOWN
from runner.model.platform import Member
from runner.model.world import Policy
from runner.slurm import versions
from runner.slurm.health import health
from runner.slurm.snapshot import Snapshot
from runner.slurm.versions import fits_window
from tests.unit.lifecycle import serving
from tests.unit.worlds import NOW, controller, node, snapshot

ROOT = Path(__file__).parents[2]
ONE, TWO = serving(2), serving(3)
POLICY = Policy()


def ruler(**recorded: Any) -> Member:
    return controller(status="ready", adapter_detail=recorded)


def health_of(
    seen: Snapshot | None, *workers: Member, policy: Policy = POLICY, **recorded: Any
) -> tuple[str, dict[str, dict[str, Any]]]:
    found, reasons = health(seen, (ruler(**recorded), *(workers or (ONE, TWO))), policy)
    assert all(reason.message and reason.code for reason in reasons)
    return found.value, {reason.code: reason.stored() for reason in reasons}


def nodes(**second: Any) -> dict[str, Any]:
    return {"w2": node(), "w3": node(**second)}


def test_a_cluster_that_serves_is_healthy_and_has_no_reasons() -> None:
    assert health_of(snapshot(nodes())) == ("healthy", {})


@pytest.mark.parametrize(
    ("seen", "value", "code"),
    [
        ({"slurmctld": "failed", "ping": "DOWN"}, "unhealthy", "slurmctld_not_active"),
        ({"munge": "inactive", "ping": "DOWN"}, "unhealthy", "munge_not_active"),
        ({"ping": "DOWN"}, "unhealthy", "slurmctld_not_answering"),
        ({"slurmdbd": "failed", "accounting_answers": False}, "degraded", "slurmdbd_not_active"),
        ({"mariadb": "inactive", "accounting_answers": False}, "degraded", "mariadb_not_active"),
        ({"accounting_answers": False, "submit_account": None}, "degraded", "slurmdbd_not_answering"),
        ({"submit_account": None}, "unhealthy", "no_submit_account"),
        ({"config_version": None}, "degraded", "config_unknown"),
        ({"config_intact": False}, "degraded", "config_changed"),
        ({"config_loaded": False}, "degraded", "config_not_loaded"),
        ({"disks": [{"path": "/var", "free_mb": 1023, "size_mb": 9000}]}, "degraded", "disk_nearly_full"),
        ({"clock_skew_seconds": 121.0}, "degraded", "clock_skew"),
        ({"clock_skew_seconds": -121.0}, "degraded", "clock_skew"),
        ({"slurm_version": "22.05.7"}, "degraded", "version_differs"),
        ({"outdated": ["slurmdbd"]}, "degraded", "version_differs"),
    ],
)
def test_each_problem_of_a_controller_has_its_health_and_its_reason(seen: Any, value: str, code: str) -> None:
    found, reasons = health_of(snapshot(nodes(), **seen))
    assert (found, list(reasons)) == (value, [code])
    assert reasons[code]["member_id"] == str(ruler().id)
    assert reasons[code]["host"].startswith("controller-")


@pytest.mark.parametrize(
    ("shown", "value", "code"),
    [
        ({"state": "DOWN", "reason": "Not responding", "reason_by": "slurm"}, "degraded", "worker_down"),
        ({"flags": {"NOT_RESPONDING"}}, "degraded", "worker_not_responding"),
        (
            {"flags": {"INVALID_REG", "DRAIN"}, "reason": "Low RealMemory", "reason_by": "slurm"},
            "degraded",
            "worker_invalid",
        ),
        ({"flags": {"DRAIN"}, "reason": "Kill task failed", "reason_by": "root"}, "degraded", "worker_drained"),
        ({"flags": {"DRAIN"}, "reason": "Prolog error", "reason_by": "slurm"}, "degraded", "worker_drained"),
        ({"flags": {"DRAIN"}, "reason": "gpuaas:1234: new disk", "reason_by": "root"}, "degraded", "worker_drained"),
        ({"flags": {"DRAIN"}, "reason": "bad fan", "reason_by": "root"}, "healthy", "worker_held_by_person"),
        ({"flags": {"DRAIN"}, "reason": "gpuaas:manual: hot"}, "healthy", "worker_held_by_person"),
        ({"state": "DOWN", "reason": "bad fan", "reason_by": "alice"}, "healthy", "worker_held_by_person"),
        ({"state": "DOWN"}, "degraded", "worker_down"),
        ({"flags": {"REBOOT_ISSUED"}}, "degraded", "worker_not_schedulable"),
        ({"state": "UNKNOWN"}, "degraded", "worker_not_schedulable"),
        ({"cpus": 1}, "degraded", "worker_wrong_resources"),
        ({"slurm_version": "24.11.5"}, "degraded", "worker_version_unfit"),
        ({"slurmd_started_at": NOW + timedelta(seconds=121)}, "degraded", "worker_clock_skew"),
    ],
)
def test_each_problem_of_one_worker_of_two_has_its_health_and_its_reason(shown: Any, value: str, code: str) -> None:
    found, reasons = health_of(snapshot(nodes(**shown)))
    assert (found, list(reasons)) == (value, [code])
    assert reasons[code]["member_id"] == str(TWO.id)


def test_a_worker_the_controller_does_not_have_is_absent_and_not_repaired_by_itself() -> None:
    value, reasons = health_of(snapshot({"w2": node()}))
    assert value == "degraded"
    assert reasons["worker_absent"]["class"] == "intervention"
    assert "op remove" in reasons["worker_absent"]["message"]


def test_a_clock_that_a_repair_found_wrong_is_a_reason_of_its_own() -> None:
    error = {"last_adapter_error": {"code": "clock_skew", "message": "600 s ahead"}}
    _, reasons = health_of(snapshot(nodes(flags={"NOT_RESPONDING"})), ONE, serving(3, adapter_detail=error))
    assert list(reasons) == ["worker_not_responding", "worker_clock_skew"]


def test_a_failed_worker_is_shown_with_its_own_error() -> None:
    error = {"last_adapter_error": {"code": "package_install_failed", "message": "apt failed"}}
    value, reasons = health_of(snapshot({"w2": node()}), ONE, serving(3, status="failed", adapter_detail=error))
    assert (value, reasons["package_install_failed"]["message"]) == ("degraded", "apt failed")


def test_a_cluster_without_a_worker_that_serves_is_unhealthy() -> None:
    value, reasons = health_of(snapshot({"w2": node(state="DOWN"), "w3": node(flags={"NOT_RESPONDING"})}))
    assert value == "unhealthy"
    assert list(reasons) == ["no_worker_serves", "worker_down", "worker_not_responding"]


def test_a_cluster_whose_workers_are_all_drained_by_persons_is_healthy() -> None:
    held = node(flags={"DRAIN"}, reason="maintenance", reason_by="alice")
    assert health_of(snapshot({"w2": held, "w3": held}))[0] == "healthy"


def test_one_worker_held_by_a_person_and_the_other_down_is_unhealthy() -> None:
    held = node(flags={"DRAIN"}, reason="maintenance", reason_by="alice")
    value, reasons = health_of(snapshot({"w2": held, "w3": node(state="DOWN")}))
    assert (value, set(reasons)) == ("unhealthy", {"no_worker_serves", "worker_held_by_person", "worker_down"})


def test_a_node_that_a_person_set_down_is_shown_as_held_with_the_persons_reason() -> None:
    value, reasons = health_of(snapshot(nodes(state="DOWN", reason="bad fan", reason_by="alice")))
    assert value == "healthy" and "bad fan" in reasons["worker_held_by_person"]["message"]


def test_munge_that_is_down_alone_is_the_only_reason() -> None:
    """Nothing can be read without munge, so missing nodes are not a reason of their own."""
    value, reasons = health_of(snapshot(None, munge="inactive", ping="UP"))
    assert (value, list(reasons)) == ("unhealthy", ["munge_not_active"])


def closed(**states: str) -> Snapshot:
    return snapshot(nodes()).model_copy(update={"partitions": states})


@pytest.mark.parametrize("state", ["DOWN", "DRAIN", "INACTIVE"])
def test_a_cluster_without_an_open_partition_is_unhealthy(state: str) -> None:
    value, reasons = health_of(closed(main=state, debug="DOWN"))
    assert (value, list(reasons)) == ("unhealthy", ["no_partition_open"])
    assert f"main is {state}" in reasons["no_partition_open"]["message"]


@pytest.mark.parametrize("state", ["DOWN", "DRAIN", "INACTIVE"])
def test_a_closed_partition_among_others_degrades_and_is_named(state: str) -> None:
    value, reasons = health_of(closed(main="UP", debug=state))
    assert (value, list(reasons)) == ("degraded", ["partition_closed"])
    message = reasons["partition_closed"]["message"]
    assert f"debug is {state}" in message and "main" not in message


def test_a_cluster_with_no_partition_at_all_is_unhealthy() -> None:
    assert health_of(closed())[0] == "unhealthy"


def test_partitions_that_cannot_be_known_are_not_taken_for_open() -> None:
    value, reasons = health_of(snapshot(nodes()).model_copy(update={"partitions": None}))
    assert (value, list(reasons)) == ("unknown", ["partitions_unknown"])


def test_many_closed_partitions_are_counted() -> None:
    many = {f"p{number:04}": "DOWN" for number in range(2_000)}
    _, reasons = health_of(closed(**many))
    assert "p0000 is DOWN" in reasons["no_partition_open"]["message"]


@pytest.mark.parametrize(
    ("ours", "theirs", "value"),
    [("linuxproc", "cgroup", "degraded"), ("linuxproc", "linuxproc", "healthy"), ("cgroup", "cgroup", "healthy")],
)
def test_process_control_weaker_than_a_workers_host_allows_is_shown(ours: str, theirs: str, value: str) -> None:
    able = serving(3, adapter_detail={"process_control": theirs})
    found, reasons = health_of(snapshot(nodes(), process_control=ours), ONE, able)
    assert found == value and ("confinement_weaker" in reasons) == (value == "degraded")
    if reasons:
        message = reasons["confinement_weaker"]["message"]
        assert "(ctl)" in message and "w3" in message and "w2" not in message


@pytest.mark.parametrize("theirs", [None, "no idea"])
def test_a_worker_without_reported_process_control_gives_no_reason(theirs: str | None) -> None:
    unknown = serving(3, adapter_detail={"process_control": theirs})
    assert health_of(snapshot(nodes(), process_control="linuxproc"), ONE, unknown)[0] == "healthy"


def test_a_cluster_without_workers_is_healthy() -> None:
    assert health(snapshot({}), (ruler(),), POLICY)[0] == "healthy"


def test_a_dead_slurmctld_is_named_although_nothing_is_known_of_the_nodes() -> None:
    value, reasons = health_of(snapshot(None, slurmctld="failed", ping="DOWN"))
    assert (value, list(reasons)) == ("unhealthy", ["slurmctld_not_active"])
    assert "journalctl -u slurmctld" in reasons["slurmctld_not_active"]["message"]


def test_nodes_that_cannot_be_known_are_not_taken_for_absent() -> None:
    value, reasons = health_of(snapshot(None))
    assert (value, list(reasons)) == ("unknown", ["nodes_unknown"])


def test_a_controller_that_cannot_be_reached_makes_health_unknown_with_the_cause() -> None:
    error = {"code": "host_unreachable", "message": "ssh to the host failed: no route"}
    value, reasons = health_of(None, last_adapter_error=error)
    assert (value, list(reasons)) == ("unknown", ["controller_unknown"])
    assert "no route" in reasons["controller_unknown"]["message"]


def test_the_worst_reason_decides_and_comes_first() -> None:
    value, reasons = health_of(
        snapshot(nodes(flags={"DRAIN"}, reason="bad fan"), slurmctld="failed", slurmdbd="failed")
    )
    assert value == "unhealthy"
    assert list(reasons) == ["slurmctld_not_active", "slurmdbd_not_active"]


@pytest.mark.parametrize(
    ("note", "policy", "text"),
    [
        ({}, Policy(repair=False), "GPUAAS_REPAIR"),
        (
            {"attempts": 1, "outcome": "unit_failed", "next_at": "2026-01-02T03:09:05Z"},
            POLICY,
            "due at 2026-01-02T03:09:05Z",
        ),
        ({"attempts": 3, "outcome": "unit_failed"}, POLICY, "Nothing more is tried"),
    ],
)
def test_drift_reports_what_was_tried_and_who_is_next(note: Any, policy: Policy, text: str) -> None:
    _, reasons = health_of(snapshot(nodes(), slurmdbd="failed"), policy=policy, repair=note)
    assert reasons["slurmdbd_not_active"]["class"] == "drift"
    assert text in reasons["slurmdbd_not_active"]["message"]


def test_a_threshold_for_disks_can_be_chosen() -> None:
    seen = snapshot(nodes(), disks=[{"path": "/var", "free_mb": 10, "size_mb": 100}])
    assert health_of(seen, policy=Policy(min_free_mb=10))[0] == "healthy"
    assert health_of(seen, policy=Policy(min_free_mb=11))[0] == "degraded"


def test_many_reasons_are_counted_not_listed() -> None:
    workers = tuple(serving(number) for number in range(2, 60))
    _, reasons = health(snapshot({}), (ruler(), *workers), POLICY)
    assert len(reasons) == REASONS_SHOWN + 1
    assert reasons[0].code == "no_worker_serves" and reasons[-1].code == "more"


def test_the_version_window_is_the_one_that_joins_are_held_to() -> None:
    variables = yaml.safe_load((ROOT / "roles" / "preflight" / "vars" / "main.yml").read_text())
    assert {key: list(taken) for key, taken in versions.WINDOW.items()} == variables["preflight_slurm_window"]
    assert fits_window("23.11.4", "24.11.5") and not fits_window("22.05.8", "24.11.5")


@given(st.sampled_from(["IDLE", "DOWN", "MIXED"]), st.booleans(), st.sampled_from(["slurm", "root", None]))
def test_no_drain_whoever_set_it_is_ever_drift(state: str, invalid: bool, by: str | None) -> None:
    flags = {"DRAIN", "NOT_RESPONDING"} | ({"INVALID_REG"} if invalid else set())
    _, reasons = health_of(snapshot(nodes(state=state, flags=flags, reason="why", reason_by=by)))
    assert "drift" not in {reason["class"] for reason in reasons.values()}


STATES = st.sampled_from(["IDLE", "MIXED", "ALLOCATED", "DOWN", "UNKNOWN", "ERROR"])
FLAGS = st.frozensets(st.sampled_from(["DRAIN", "NOT_RESPONDING", "INVALID_REG", "REBOOT_ISSUED", "COMPLETING"]))
UNIT_STATES = st.sampled_from(["active", "inactive", "failed", "activating", "unknown", None])


@given(
    st.fixed_dictionaries(
        dict.fromkeys(("munge", "slurmctld", "slurmdbd", "mariadb"), UNIT_STATES)
        | {"ping": st.sampled_from(["UP", "DOWN", "UNKNOWN"])}
    ),
    st.none() | st.dictionaries(st.sampled_from(["w2", "w3", "w9"]), st.tuples(STATES, FLAGS)),
)
def test_healthy_is_reported_only_if_everything_was_observed_in_order(daemons: dict[str, Any], shown: Any) -> None:
    seen = None if shown is None else {name: node(state=state, flags=flags) for name, (state, flags) in shown.items()}
    value, reasons = health_of(snapshot(seen, **daemons))
    in_order = {daemons[name] for name in ("munge", "slurmctld", "slurmdbd", "mariadb")} == {"active"}
    if value == "healthy":
        assert seen is not None and in_order and daemons["ping"] == "UP"
        for name in ("w2", "w3"):
            assert "DRAIN" in seen[name].flags or seen[name].state in ("IDLE", "MIXED", "ALLOCATED")
    else:
        assert reasons, "not healthy, and no reason is given"
    assert value != "progressing"
