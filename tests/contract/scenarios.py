"""Requests on an instance that tests carry out in several ways: with a killed runner, or with two runners.

Each scenario begins in the state in which another one ended.
"""

from tests.contract.stage import Scenario, Stage

STAGES = 3  # at a time; each has a platform of its own

DEPLOY = Scenario("deploy", "asked for", lambda stage: None, "running")


def drain_busy(stage: Stage) -> None:
    stage.start_job(2)
    stage.ask("drain", 2)


STOP = Scenario("stop", "running", lambda stage: stage.ask_whole("stop"), "succeeded")
FAIL = Scenario("a deploy that fails", "asked for", Stage.break_controller, "failed")
UPGRADE = Scenario("upgrade", "running", lambda stage: stage.ask_whole("upgrade"), "succeeded")
DRAIN_BUSY = Scenario("drain of a busy node", "running", drain_busy, "running")


def remove_busy(stage: Stage) -> None:
    stage.start_job(2)
    stage.ask("remove", 2, deadline_seconds=0, on_deadline="requeue")


def drain_until_a_deadline(stage: Stage) -> None:
    stage.start_job(2)
    stage.ask("drain", 2, deadline_seconds=0, on_deadline="cancel")


def stop_under_a_job(stage: Stage) -> None:
    stage.start_job(2)
    stage.ask_whole("stop", deadline_seconds=0, on_deadline="cancel")


SCENARIOS = [
    DEPLOY,
    Scenario("add", "running", lambda stage: stage.ask("add", allocations=(4,)), "succeeded"),
    Scenario("bulk add", "running", lambda stage: stage.ask("add", allocations=(4, 5, 6)), "succeeded"),
    Scenario("drain", "running", lambda stage: stage.ask("drain", 2, reason="new disk"), "succeeded"),
    Scenario("drain until a deadline", "running", drain_until_a_deadline, "succeeded"),
    Scenario("cancel of a drain", "draining", Stage.cancel, "cancelled"),
    Scenario("remove", "running", lambda stage: stage.ask("remove", 3), "succeeded"),
    Scenario("remove of a busy node", "running", remove_busy, "succeeded"),
    Scenario("replace", "running", lambda stage: stage.ask("replace", 3, allocations=(4,)), "succeeded"),
    STOP,
    Scenario("stop under a job", "running", stop_under_a_job, "succeeded"),
    Scenario("start", "stopped", lambda stage: stage.ask_whole("start"), "succeeded"),
    Scenario("restart", "running", lambda stage: stage.ask_whole("restart"), "succeeded"),
    UPGRADE,
    Scenario("rollback", "upgraded", lambda stage: stage.ask_whole("rollback"), "succeeded"),
    Scenario("rotation", "running", lambda stage: stage.ask_whole("rotate_credentials"), "succeeded"),
    Scenario("retry", "failed", Stage.retry, "succeeded"),
    Scenario("decommission", "running", lambda stage: stage.ask_whole("decommission"), "succeeded"),
]

# Scenarios that create the states in which others begin, in order; the state "asked for" exists from the start.
BEGINNINGS = {DEPLOY: "running", STOP: "stopped", DRAIN_BUSY: "draining", FAIL: "failed", UPGRADE: "upgraded"}
