"""What a tick keeps when it reads the platform again, and what a play does to the world."""

from dataclasses import fields
from functools import reduce
from typing import Any
from uuid import UUID

from runner.model.plan import Play, SetMember
from runner.model.world import Outcome, World
from tests.unit.lifecycle import cluster, serving
from tests.unit.worlds import controller, world

# What observe reads each time. A new field belongs here, or into World.keeping.
READ_AGAIN = {
    "history",
    "instance",
    "now",
    "runner_id",
    "members",
    "operations",
    "instance_operations",
    "allocations",
    "policy",
    "unreadable",
    "unknown_allocations",
    "attachments",
    "unreadable_attachments",
    "entitlements",
    "neighbours",
    "complete",
}


def test_every_field_of_a_world_is_read_again_or_kept_by_the_tick() -> None:
    marks: dict[str, Any] = {one.name: object() for one in fields(World)}
    before, fresh = World(**marks), world()
    after = fresh.keeping(before)
    kept = {name for name, mark in marks.items() if getattr(after, name) is mark}
    assert kept == set(marks) - READ_AGAIN
    assert all(getattr(after, name) is getattr(fresh, name) for name in READ_AGAIN)


def test_a_play_replaces_outcomes_and_snapshot_and_adds_what_it_did() -> None:
    first, second = (Play("test", "observe", (controller(),), frozenset({(kind, UUID(int=1))})) for kind in ("a", "b"))
    outcomes = {UUID(int=1): Outcome("serving")}
    after = world().after_play(first, {}, "old").after_play(second, outcomes, "new")
    assert (after.outcomes, after.snapshot) == (outcomes, "new")
    assert after.played == first.acts | second.acts


def test_many_writes_at_once_give_the_members_that_single_writes_give() -> None:
    one, two = serving(2), serving(3)
    steps = [SetMember("why", each, "requested", {"phase": "stopped"}) for each in (one, two)]
    single = reduce(World.after, steps, before := cluster(one, two, serving(4)))
    together = before.after_all(steps)
    assert {each.id: each for each in together.members} == {each.id: each for each in single.members}
    assert [each.id for each in together.members] == [each.id for each in before.members]
