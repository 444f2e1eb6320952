"""Whose correlation id is on which work, and on the log lines of it."""

from uuid import UUID

import pytest
from structlog.contextvars import get_contextvars

from runner import context
from runner.model import cause
from runner.model.cause import Cause
from runner.model.plan import Claim, Play, SetMember, Wait
from runner.slurm.notes import Repair
from tests.unit.lifecycle import ask, cluster, serving
from tests.unit.worlds import controller, instance

DEPLOY = instance().correlation_id


def test_a_step_has_the_id_of_its_operation_and_a_play_each_members_own() -> None:
    one, two = serving(2), serving(3)
    drain, remove = ask("drain", one), ask("remove", two)
    world = cluster(one, two, operations=(drain, remove))
    play = Play("why", "drain_worker", (one, two), operations={one.id: drain, two.id: remove})
    assert cause.of_step(SetMember("why", one, "draining", operation=drain), world) == Cause(
        drain.correlation_id, drain.id
    )
    assert cause.of_step(Claim("why", remove), world).operation_id == remove.id
    assert [cause.of_member(play, each.id, world).operation_id for each in (one, two)] == [drain.id, remove.id]


@pytest.mark.parametrize("status", ["requested", "deploying", "deleting", "failed"])
def test_work_on_an_instance_that_does_not_serve_has_the_id_of_the_deploy(status: str) -> None:
    world = cluster().later(instance=instance(status=status))
    assert cause.of_step(SetMember("why", controller(), "ready"), world) == Cause(DEPLOY)


def test_routine_work_is_named_by_its_play_and_not_by_a_wait() -> None:
    look = Play("why", "observe", (controller(),), rule="refresh an old observation")
    world = cluster().later(tick_id="runner/1")
    world = cause.routine((Wait("why", "x", rule="carry out worker operations"), look), world)
    own = cause.of_step(look, world)
    assert own.correlation_id.startswith("refresh-an-old-observation-") and own.operation_id is None
    report = SetMember("why", controller(), "ready", rule="report the instance")
    later = cause.routine((report,), world)
    assert cause.of_step(report, later) == own, "a report after a look belongs to it"
    assert cause.of_step(look, world.later(tick_id="runner/2")) != own


@pytest.mark.parametrize("stored", ["é", "x\r\nX-Admin: 1", "a" * 200, "", 7, ["x"]])
def test_an_id_that_is_not_one_is_not_sent(stored: object) -> None:
    member = serving(2, adapter_detail={"correlation_id": stored})
    assert cause.of_marked(member, instance()).correlation_id in (member.correlation_id, DEPLOY)


def test_log_lines_have_the_ids_of_the_innermost_cause_only() -> None:
    outer, inner = Cause("c-outer", UUID(int=1)), Cause("c-inner")
    with context.bound(outer):
        with context.bound(inner):
            assert get_contextvars() == {"correlation_id": "c-inner"} and context.correlation_id() == "c-inner"
        assert get_contextvars() == {"correlation_id": "c-outer", "operation_id": str(UUID(int=1))}
    assert get_contextvars() == {} and context.correlation_id() is None


def test_an_error_is_reported_with_the_ids_of_the_work_in_which_it_came_up() -> None:
    with pytest.raises(ValueError) as error, context.bound(Cause("c-outer")), context.bound(Cause("c-inner")):
        raise ValueError
    with context.bound_to(error.value):
        assert context.correlation_id() == "c-inner"
    with context.bound_to(RuntimeError()):
        assert context.correlation_id() is None


def test_a_key_that_doubles_a_stored_field_does_not_count() -> None:
    read = Repair.read("repair", {"attempts": 1, "count": "x", "why": "munge_not_active", "last_error": 7})
    assert (read.count, read.last_error) == (1, "munge_not_active")
    assert read.but(outcome="repaired").count == 1
