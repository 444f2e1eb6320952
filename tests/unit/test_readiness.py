"""When a controller or a worker counts as ready, with the exact code and sentence of what is missing."""

from typing import Any

import pytest

from runner.model.world import Policy
from runner.slurm.health import health
from runner.slurm.notes import WorkerNotes
from runner.slurm.readiness import (
    controller_problem,
    controller_problems,
    deletion_problem,
    is_drained,
    is_held_by_a_person,
    is_responding,
    running_jobs,
    worker_problem,
    wrong_resource,
)
from runner.slurm.snapshot import Job, Reservation
from tests.unit.worlds import node, snapshot

HOST = {"cpus": 2, "memory_mb": 1000, "gpus": 0}


@pytest.mark.parametrize(
    ("seen", "code", "message"),
    [
        (
            *({"munge": "failed", "ping": "DOWN", "accounting_answers": False}, "munge_not_active"),
            "munge is failed on the controller: no message in the cluster can be authenticated."
            " See journalctl -u munge there",
        ),
        (
            *({"mariadb": "failed", "accounting_answers": False}, "mariadb_not_active"),
            "mariadb is failed on the controller: jobs run, and are accounted once it is back."
            " See journalctl -u mariadb there",
        ),
        (
            *({"slurmdbd": None, "accounting_answers": False}, "slurmdbd_not_active"),
            "slurmdbd is unknown on the controller: jobs run, and are accounted once it is back."
            " See journalctl -u slurmdbd there",
        ),
        (
            *({"slurmctld": "inactive", "ping": "DOWN"}, "slurmctld_not_active"),
            "slurmctld is inactive on the controller: running jobs continue, no new ones start."
            " See journalctl -u slurmctld there",
        ),
        (
            *({"ping": "DOWN"}, "slurmctld_not_answering"),
            "slurmctld runs, but scontrol ping returns DOWN: see its journal on the controller, and restart it",
        ),
        (
            *({"config_version": None}, "config_unknown"),
            "the controller has no readable slurm.conf: slurmctld would not start again",
        ),
        (
            *({"accounting_answers": False, "submit_account": None}, "slurmdbd_not_answering"),
            "slurmdbd runs, but sacctmgr gets no answer: jobs run, and are accounted later. See its journal",
        ),
        (
            *({"submit_account": None}, "no_submit_account"),
            "no account has a user, so jobs are refused as InvalidAccount: add one with sacctmgr",
        ),
    ],
)
def test_a_controller_that_is_not_ready_is_named_by_its_first_fault(
    seen: dict[str, Any], code: str, message: str
) -> None:
    found = snapshot({}, **seen)
    assert controller_problem(found) == (code, message)
    assert [*controller_problems(found.controller)] == [(code, message)], "what follows from it is not named beside it"
    _, reasons = health(found.model_copy(update={"nodes": {}}), (), Policy())
    assert (code, message) in [(one.code, one.message) for one in reasons], "health has the same code and sentence"
    worse = snapshot({}, **({"config_version": None, "submit_account": None} | seen)).controller
    first = "config_unknown" if code in ("slurmdbd_not_answering", "no_submit_account") else code
    assert next(controller_problems(worse))[0] == first


def test_a_controller_is_ready_when_all_is_as_it_should_be_and_unknown_is_not() -> None:
    assert controller_problem(snapshot({})) is None
    assert controller_problem(None) == ("controller_unknown", "the controller could not be looked at")


def test_jobs_that_hold_nodes_are_those_on_nodes_that_do_not_wait() -> None:
    jobs = [
        Job(id=1, address="1", state="RUNNING", nodes=["a"]),
        Job(id=2, address="2", state="PENDING", nodes=["a"]),
        Job(id=3, address="3", state="COMPLETING", nodes=["a"]),
        Job(id=4, address="4", state="RUNNING"),
    ]
    seen = snapshot({})
    assert [job.id for job in running_jobs(seen.model_copy(update={"jobs": jobs})) or []] == [1, 3]
    assert running_jobs(seen.model_copy(update={"jobs": []})) == []
    assert running_jobs(seen.model_copy(update={"jobs": None})) is None and running_jobs(None) is None


@pytest.mark.parametrize(
    ("nodes", "name", "host", "code", "message"),
    [
        (None, "w", {}, "controller_unknown", "the controller did not return its nodes"),
        (
            *({"w": node()}, None, {}, "hostname_unknown"),
            "the host has not reported its name: the join did not get that far",
        ),
        (
            {"w": node()},
            "",
            {},
            "hostname_unknown",
            "the host has not reported its name: the join did not get that far",
        ),
        (
            *({"v": node()}, "w", {}, "not_registered"),
            "the controller does not know a node w: see slurmd's journal on the worker",
        ),
        ({"w": node(state="DOWN")}, "w", {}, "not_schedulable", "the controller shows w as DOWN"),
        (
            *({"w": node(flags={"DRAIN"}, reason="fan")}, "w", {}, "not_schedulable"),
            "the controller shows w as IDLE+DRAIN (fan)",
        ),
        (
            *({"w": node()}, "w", HOST | {"cpus": 4}, "wrong_resources"),
            "the controller shows w with cpus=2, the host has 4",
        ),
    ],
)
def test_a_worker_that_is_not_ready_is_named_by_its_first_fault(
    nodes: Any, name: str | None, host: dict[str, Any], code: str, message: str
) -> None:
    assert worker_problem(snapshot(nodes), worker(name, host)) == (code, message)


def worker(name: str | None, host: dict[str, Any]) -> WorkerNotes:
    return WorkerNotes.read({**host, "worker_hostname": name})


def test_a_worker_is_ready_as_registered_and_a_drain_counts_only_where_it_may() -> None:
    held = {"w": node(flags={"DRAIN"})}
    assert worker_problem(snapshot({"w": node()}), worker("w", HOST)) is None
    assert worker_problem(None, worker("w", HOST)) == (
        "controller_unknown",
        "the controller did not return its nodes",
    )
    assert worker_problem(snapshot(held), worker("w", HOST)) is not None
    assert worker_problem(snapshot(held), worker("w", HOST), may_be_held=True) is None
    assert worker_problem(snapshot({"w": node(state="DOWN")}), worker("w", HOST), may_be_held=True) is not None


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ({"cpus": 3}, "cpus=2, the host has 3"),
        ({"memory_mb": 999}, "memory_mb=1000, the host has 999"),
        ({"gpus": 1}, "gpus=0, the host has 1"),
        ({"cpus": "3"}, None),
        ({}, None),
        (HOST, None),
        ({"cpus": 2, "gpus": 8}, "gpus=0, the host has 8"),
    ],
)
def test_a_resource_is_wrong_if_the_host_has_another_number(host: dict[str, Any], message: str | None) -> None:
    assert wrong_resource(node(), worker(None, host)) == message


def test_a_drain_is_a_persons_by_reason_and_user() -> None:
    drained = node(flags={"DRAIN"}, reason="fan", reason_by="alice")
    assert is_held_by_a_person(drained) and is_drained(drained)
    assert not is_held_by_a_person(node(flags={"DRAIN"}, reason="fan", reason_by="slurm"))
    assert is_held_by_a_person(node(state="DOWN", reason="fan", reason_by="alice"))
    assert not is_held_by_a_person(node(state="IDLE", reason="fan", reason_by="alice"))
    assert not is_held_by_a_person(node(flags={"DRAIN"}, reason="gpuaas:1234: disk", reason_by="alice"))
    assert not is_drained(node(flags={"DRAIN"}, jobs=["7"])) and not is_drained(node())


def test_a_node_may_be_deleted_when_nothing_names_or_holds_it() -> None:
    drained = {"w": node(flags={"DRAIN"}), "v": node()}
    empty: dict[str, Any] = {"jobs": [], "reservations": []}
    named = [Job(id=9, address="9_1", state="PENDING", required_nodes=["w"])]
    runs = [Job(id=9, address="9_1", state="RUNNING", nodes=["w"])]
    held = [Reservation(name="r", nodes=["w"])]
    seen = snapshot(drained)
    assert deletion_problem(seen.model_copy(update=empty), "w") is None
    assert deletion_problem(seen.model_copy(update=empty), "gone") is None
    busy = snapshot({"w": node(flags={"DRAIN"}, jobs=["7"])}).model_copy(update=empty)
    assert deletion_problem(busy, "w") is not None
    for changes, code, text in (
        (empty | {"jobs": named}, "jobs_need_node", "Job 9_1 waits for node w"),
        (empty | {"jobs": runs}, "jobs_need_node", "Job 9_1 waits for node w"),
        (empty | {"reservations": held}, "node_reserved", "Reservation r holds node w"),
    ):
        problem = deletion_problem(seen.model_copy(update=changes), "w")
        assert problem and problem.code == code and problem.message.startswith(text)
        assert deletion_problem(seen.model_copy(update=changes | {"nodes": {}}), "w") is None
    for part in ("nodes", "jobs", "reservations"):
        assert deletion_problem(seen.model_copy(update=empty | {part: None}), "w") == (
            "state_unknown",
            "slurmctld did not return nodes, jobs and reservations; nothing is deleted.",
        )
    other = empty | {"reservations": [Reservation(name="r", nodes=["v"])]}
    assert deletion_problem(seen.model_copy(update=other), "w") is None


@pytest.mark.parametrize("state", ["IDLE", "MIXED", "ALLOCATED", "DOWN", "UNKNOWN"])
def test_a_node_responds_in_every_serving_state_drained_or_not(state: str) -> None:
    serves = state not in ("DOWN", "UNKNOWN")
    assert is_responding(node(state=state)) == is_responding(node(state=state, flags={"DRAIN"})) == serves
    assert not is_responding(node(state=state, flags={"NOT_RESPONDING"}))
