"""Which instances this adapter serves; for all others no host is touched, and nearly nothing is written."""

from itertools import product
from typing import Any

import pytest

from runner.model.plan import Announce, Play, Refuse, SetInstance, SetMember, Warn
from runner.model.platform import InstanceStatus
from runner.model.world import World
from runner.slurm.decide import decide
from runner.slurm.decide.guards.scope import MODES, SCOPES, SERVED, SERVED_SHARED
from tests.unit.lifecycle import ask_whole, serving
from tests.unit.worlds import PROJECT, add, controller, instance, of_kind, settle, world

NAMES = ("operating_mode", "control_plane_scope", "runtime_backend")
FAILS = {
    (mode, reach, backend)
    for mode, reach, backend in product(MODES, SCOPES, ("slurm", "kubernetes"))
    if (mode, reach, backend) != SERVED and (mode, reach) != ("tenant_dedicated", "tenant")
}
ONLY_WARNED: set[Any] = {
    ("tenant_dedicated", "tenant", "slurm"),
    ("tenant_dedicated", "tenant", "kubernetes"),
    ("quantum", "project", "slurm"),
    ("tenant_dedicated", "galaxy", "slurm"),
    ("tenant_dedicated", "project", ""),
    ("tenant_dedicated", "project", None),
    ("tenant_dedicated", None, "slurm"),
    (None, "project", "slurm"),
    (None, None, None),
    ("quantum", "platform", "kubernetes"),
}


def of_scope(values: Any, status: str = "requested", **changes: Any) -> World:
    fields: dict[str, Any] = dict(zip(NAMES, values, strict=True))
    return world(instance=instance(status=status, **fields), **changes)


def test_the_served_scope_is_worked_on() -> None:
    _, _, play = settle(of_scope(SERVED), decide)
    assert play is not None and play.playbook == "deploy"


@pytest.mark.parametrize("values", sorted(FAILS))
def test_a_known_scope_that_is_not_served_fails_once_and_touches_no_host(values: Any) -> None:
    now, steps, play = settle(of_scope(values, operations=(add(2),)), decide)
    assert play is None
    (written,) = of_kind(steps, SetInstance)
    (reason,) = written.detail["reasons"]
    assert (written.status, written.health, reason["code"]) == ("failed", "unhealthy", "scope_not_served")
    assert all(repr(value) in reason["message"] for value in values), "the three values are named"
    assert [one.kind for one in of_kind(steps, Announce)] == ["apps.instance.failed"]
    assert [one.code for one in of_kind(steps, Refuse)] == ["scope_not_served"]
    again, more, play = settle(now, decide)
    assert (more, play, again) == ([], None, now), "failed once"


@pytest.mark.parametrize("values", sorted(ONLY_WARNED, key=str))
@pytest.mark.parametrize("status", [one for one in InstanceStatus if one != "deleted"])
def test_a_tenants_or_an_unknown_scope_is_a_warning_and_nothing_is_written(values: Any, status: str) -> None:
    asked = (ask_whole("decommission"),)
    plan = decide(of_scope(values, status, operations=(add(2),), instance_operations=asked))
    assert plan.before_play == () and plan.play is None
    assert [type(step) for step in plan.steps] == [Warn]


@pytest.mark.parametrize("values", sorted(FAILS))
@pytest.mark.parametrize("status", ["running", "stopped", "deleting"])
def test_an_instance_that_was_deployed_and_shows_another_scope_is_left_as_it_is(values: Any, status: str) -> None:
    members = (controller(status="ready"), serving(2))
    plan = decide(of_scope(values, status, members=members, operations=(add(3),)))
    assert plan.before_play == () and plan.play is None
    (warning,) = plan.steps
    assert isinstance(warning, Warn) and status in warning.why


def test_whatever_is_asked_of_an_instance_that_failed_by_its_scope_is_refused() -> None:
    values = ("platform_managed", "platform", "slurm")
    asked = (ask_whole("retry"),)
    now, steps, _ = settle(of_scope(values, "failed", operations=(add(2),), instance_operations=asked), decide)
    assert [one.code for one in of_kind(steps, Refuse)] == ["scope_not_served"] * 2
    assert not of_kind(steps, SetMember) and not of_kind(steps, Play) and now.instance.status == "failed"


SHARED: dict[str, Any] = {"project_id": None, "owner_project_id": PROJECT}


def shared_runtime(values: Any, status: str = "requested") -> World:
    return world(instance=instance(status=status, **dict(zip(NAMES, values, strict=True)), **SHARED))


def test_a_shared_runtime_is_deployed_as_an_instance_is() -> None:
    _, steps, play = settle(shared_runtime(SERVED_SHARED), decide)
    assert play is not None and play.playbook == "deploy"
    assert not of_kind(steps, Warn)


def test_a_shared_runtime_with_the_words_of_a_project_fails_and_touches_no_host() -> None:
    _, steps, play = settle(shared_runtime(SERVED), decide)
    assert play is None
    (written,) = of_kind(steps, SetInstance)
    (reason,) = written.detail["reasons"]
    assert reason["code"] == "scope_not_served" and "control_plane_scope 'tenant'" in reason["message"]
