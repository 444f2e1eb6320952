"""Members and hosts with pinned keys."""

from typing import Any
from uuid import UUID

from runner.intent import host_keys
from runner.intent.connection import read_target
from runner.intent.errors import IntentError
from runner.model.plan import Pin, Play, SetMember, Step, stamp
from runner.model.platform import Allocation, Member
from runner.model.world import World
from runner.slurm.decide import decide
from tests.unit.worlds import KEY, NOW, keyless

OTHER = "ssh-ed25519 " + "B" * 68
RSA = "ssh-rsa " + "C" * 372
CONTROLLER = {"phase": "serving", "controller_hostname": "ctl"}


def without_keys(now: World, *numbers: int) -> World:
    return now.later(allocations={**now.allocations, **{UUID(int=100 + one): keyless(one) for one in numbers}})


def pinned(*keys: str) -> dict[str, Any]:
    return host_keys.pin(keys or (KEY,), "10.0.0.2", stamp(NOW))


def first_play(start: World, shows: str = KEY) -> tuple[World, list[Step], Play | None]:
    """Decide and carry out in memory, with hosts that show this key, until a play is planned."""
    now, steps = start, list[Step]()
    for _ in range(50):
        plan = decide(now)
        steps += plan.steps
        if plan.idle or plan.play:
            return now, steps, plan.play
        for step in plan.before_play:
            for one in step.members if isinstance(step, Pin) else ():
                note = host_keys.pin([shows], "10.0.0.9", stamp(NOW))
                now = now.after(SetMember("", one, one.status, note, consumes_outcome=False))
            now = now if isinstance(step, Pin) else now.after(step)
    raise AssertionError("does not settle")


def code_of(one: Allocation, member: Member) -> str | None:
    try:
        read_target(one, member)
    except IntentError as error:
        return error.code
    return None
