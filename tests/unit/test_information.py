"""Reasons of health that do not lower it: no new machines, and a runner of another version."""

import pytest

from runner.model.entitlements import Entitlements
from runner.model.platform import Health
from runner.slurm import information
from runner.slurm.health import health
from tests.unit.worlds import deployed, entitled, instance, snapshot


@pytest.mark.parametrize(
    ("ours", "asked", "says"),
    [
        ("1.10.0", "1.9.0", "newer than"),
        ("1.1.0", "2.0.0", "older than"),
        ("1.1.0", "1.1.0-rc1", "not"),
        ("1.1.0", "1.1.0", None),
        ("1.1.0", None, None),
        (None, "1.1.0", None),
    ],
)
def test_a_runner_of_another_version_is_shown_and_health_stays(
    ours: str | None, asked: str | None, says: str | None
) -> None:
    now = deployed()
    now = now.later(
        instance=now.instance.model_copy(update={"app_version": asked}),
        policy=type(now.policy)(adapter_version=ours),
    )
    found = information.findings(now)
    level, reasons = health(snapshot({}), now.members, now.policy, more=found)
    assert level == Health.HEALTHY
    assert [one.code for one in reasons] == (["app_version_differs"] if says else [])
    if says:
        assert f"is version {ours}, {says} the instance's app_version {asked}" in str(reasons[0].message)


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (entitled(instance().project_id or instance().id), False),
        (Entitlements(), True),
        (Entitlements(missing=True), True),
        (Entitlements(missing=True, required=False), False),
        (Entitlements(held="no answer"), False),
        (None, False),
    ],
)
def test_a_cluster_that_gets_no_new_machines_says_so_and_stays_healthy(
    answer: Entitlements | None, shown: bool
) -> None:
    found = information.findings(deployed(entitlements=answer))
    assert [(one.code, one.cause.health) for one in found] == ([("no_new_machines", Health.HEALTHY)] if shown else [])
