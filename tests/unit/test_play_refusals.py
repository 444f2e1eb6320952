"""Why plays refuse a host or a cluster (plugins/filter/slurm_refusals.py)."""

from typing import Any

import pytest
from ansible.module_utils.host import database

from plugins.filter import slurm_refusals
from plugins.filter.slurm_refusals import (
    clean_refusal,
    follow_refusal,
    join_refusal,
    leave_refusal,
    move_refusal,
    secret_refusal,
    stop_refusal,
)

TARGET = "24.11.5-4"


def code(error: dict[str, str] | None) -> str | None:
    return error["code"] if error else None


def join_look(**changes: Any) -> dict[str, Any]:
    snapshot = {"nodes": {}, "controller": {"ping": "UP", "slurm_version": "24.11.5"}, **changes}
    return {"join_terms": {"skew": 0}, "snapshot": snapshot}


@pytest.mark.parametrize(
    ("look", "expected"),
    [
        (join_look(), None),
        (join_look(nodes=None), "controller_silent"),
        (join_look(controller={"ping": "UP", "slurm_version": None}), "controller_silent"),
        (join_look(controller={"ping": "DOWN", "slurm_version": "24.11.5"}), "controller_silent"),
        ({"snapshot": join_look()["snapshot"]}, "controller_silent"),
        ({}, "controller_silent"),
    ],
)
def test_a_worker_joins_only_a_controller_that_answers(look: dict[str, Any], expected: str | None) -> None:
    error = join_refusal(look, "w1", "")
    assert code(error) == expected
    assert error is None or (error["class"], "--limit 'w1,controller'" in error["message"]) == ("retryable", True)


PASSWORD, JWT_KEY = "a-Z_0" * 5, "a+/9" * 11


@pytest.mark.parametrize(
    ("password", "jwt_key", "named"),
    [
        (PASSWORD, JWT_KEY, None),
        (PASSWORD, f"{JWT_KEY[:43]}=", None),
        ("tooshort", JWT_KEY, "database password"),
        (f"{PASSWORD}'", JWT_KEY, "database password"),
        (f"{PASSWORD}\n", JWT_KEY, "database password"),
        ("a" * 129, JWT_KEY, "database password"),
        (PASSWORD, JWT_KEY[:42], "JWT key"),
        (PASSWORD, f"{JWT_KEY}\n", "JWT key"),
        (PASSWORD, f"{JWT_KEY}===", "JWT key"),
        ("tooshort", "", "database password"),
    ],
)
def test_a_secret_that_could_change_a_file_or_sql_is_refused(password: str, jwt_key: str, named: str | None) -> None:
    error = secret_refusal(password, jwt_key)
    assert code(error) == (None if named is None else "secret_malformed")
    assert error is None or (f"The {named} of" in error["message"] and error["class"] == "intervention")
    assert error is None or not any(secret and secret in error["message"] for secret in (password, jwt_key))


def test_the_role_and_the_module_accept_the_same_passwords() -> None:
    assert slurm_refusals.PASSWORD.pattern == database.PASSWORD.pattern


@pytest.mark.parametrize("snapshot", [None, {}, {"controller": {}}, {"controller": {"config_version": None}}])
def test_a_worker_follows_only_a_configuration_that_its_controller_reports(snapshot: dict[str, Any] | None) -> None:
    error = follow_refusal(snapshot)
    assert error is not None and (error["code"], error["class"]) == ("controller_silent", "retryable")
    assert follow_refusal({"controller": {"config_version": "sha256:abc"}}) is None


# -- moving to another version -------------------------------------------------------------------------------


def refused(error: object, **more: Any) -> dict[str, Any]:
    return {"failed": True, "msg": "it failed", "adapter_error": error, **more}


def planned(host: str, plan: dict[str, Any]) -> dict[str, Any]:
    return {"inventory_hostname": host, "gpuaas_app_instance_id": "ours", "move_plan": plan}


@pytest.mark.parametrize(
    ("plan", "expected", "text"),
    [
        ({"target": TARGET}, None, ""),
        ({"failed": False, "target": TARGET}, None, ""),
        (refused({"code": "x"}, unreachable=True), None, ""),
        ({"target": "24.11.5-5"}, "version_not_offered", f"moves to {TARGET}"),
        (refused({"code": "version_is_older", "message": "too old"}), "version_is_older", "w2: too old"),
        (refused({"code": "conversion_running", "message": "wait"}), "worker_cannot_move", "w2: wait"),
        (refused({"code": ["no_way_back"], "message": {"a": 1}}), "worker_cannot_move", "{'a': 1}"),
        (refused("odd"), "worker_cannot_move", "it failed"),
        (refused({}), "worker_cannot_move", "it failed"),
        ({"failed": True}, "worker_cannot_move", "gave no reason"),
    ],
)
def test_a_worker_that_cannot_move_holds_all_with_a_code_from_the_list(
    plan: dict[str, Any], expected: str | None, text: str
) -> None:
    error = move_refusal([planned("w1", {"target": TARGET}), planned("w2", plan)], "ours", TARGET)
    assert code(error) == expected
    assert error is None or (text in error["message"] and error["class"] == "intervention")


def test_a_refusal_goes_before_another_version() -> None:
    workers = [planned("w1", {"target": "1"}), planned("w2", refused({"code": "no_way_back", "message": "no"}))]
    assert code(move_refusal(workers, "ours", TARGET)) == "no_way_back"


def test_workers_of_others_and_workers_outside_of_the_run_hold_no_move() -> None:
    outside = {"inventory_hostname": "w2", "gpuaas_app_instance_id": "ours"}
    assert move_refusal([planned("w1", refused({})), outside], "other", TARGET) is None
    assert move_refusal([outside], "ours", TARGET) is None


# -- leaving -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdicts", "name", "expected"),
    [
        ({"w1": {"did": "deletable"}}, "w1", None),
        ({"w1": {"did": "deleted"}}, "w1", None),
        ({"w1": {"did": "absent"}}, "w1", None),
        ({}, None, None),
        (None, None, "state_unknown"),
        (None, "w1", "state_unknown"),
        ({}, "w1", "state_unknown"),
        ({"w1": {"did": "kept", "code": "jobs_need_node", "reason": "Job 7 waits"}}, "w1", "jobs_need_node"),
        ({"w1": {"did": "unknown", "code": None, "reason": None}}, "w1", "state_unknown"),
        ({"w2": {"did": "deletable"}}, "w1", "state_unknown"),
    ],
)
def test_a_worker_leaves_only_by_its_controllers_verdict(
    verdicts: dict[str, dict[str, Any]] | None, name: str | None, expected: str | None
) -> None:
    assert code(leave_refusal(verdicts, name)) == expected


@pytest.mark.parametrize(
    ("serves", "wanted", "text"),
    [
        ("i1", "i1", None),
        (None, "none", None),
        ("i1", "i2", "serves instance i1, not i2"),
        ("i1", "none", "serves instance i1, not none"),
        (None, "i1", "serves no instance, not i1"),
    ],
)
def test_a_host_is_cleaned_of_the_instance_in_its_mark_only(serves: str | None, wanted: str, text: str | None) -> None:
    error = clean_refusal({"instance": serves}, wanted)
    assert code(error) == (None if text is None else "host_in_use")
    assert error is None or (text or "") in error["message"]


# -- stopping ------------------------------------------------------------------------------------------------


def snapshot(slurmctld: str, jobs: list[dict[str, Any]] | None) -> dict[str, Any]:
    return {"observed_at": "2026-01-02T03:04:05Z", "controller": {"slurmctld": slurmctld}, "nodes": {}, "jobs": jobs}


def job(address: str, state: str, *nodes: str) -> dict[str, Any]:
    return {"id": 7, "address": address, "state": state, "nodes": list(nodes)}


@pytest.mark.parametrize(
    ("slurmctld", "jobs", "expected"),
    [
        ("active", [], None),
        ("active", [job("7", "PENDING")], None),
        ("active", [job("7", "PENDING", "w1")], None),
        ("active", [job("7_1", "RUNNING", "w1"), job("8", "PENDING")], "jobs_running"),
        ("active", [job("7", "COMPLETING", "w1")], "jobs_running"),
        ("active", None, "slurm_silent"),
        ("failed", None, "slurm_silent"),
        ("inactive", None, None),
    ],
)
def test_a_stop_waits_for_jobs_and_for_an_answer(
    slurmctld: str, jobs: list[dict[str, Any]] | None, expected: str | None
) -> None:
    error = stop_refusal(snapshot(slurmctld, jobs))
    assert code(error) == expected
    assert error is None or error["class"] == "retryable"
    assert expected != "jobs_running" or (error and error["message"].startswith("Jobs are running: 7"))
