"""Open operations on workers as rules: what they need written, and the run that does what they want on hosts."""

from collections.abc import Iterable

from runner.model.names import host_name
from runner.model.plan import Step, Wait
from runner.model.platform import Member, MemberStatus
from runner.slurm.decide import claims
from runner.slurm.decide.workers.operations import orphans, worker_operations
from runner.slurm.decide.workers.requests import WantedPlays
from runner.slurm.placement import read_placement
from runner.slurm.world import World


def settle(world: World, controller: Member) -> list[Step]:
    """Claims, refusals, new members, conclusions and ends."""
    return _operations(world, controller)[0]


def settle_orphans(world: World, _controller: Member) -> list[Step]:
    return orphans(world)[0]


def wanted_plays(world: World, controller: Member) -> WantedPlays:
    """What is to be done on hosts, for open operations and for those that were cancelled."""
    plays = _operations(world, controller)[1]
    plays.add(orphans(world)[1])
    return plays


def play(world: World, controller: Member) -> list[Step]:
    """The next Ansible run: one for all workers that need the same, and nothing twice in a tick."""
    plays = wanted_plays(world, controller)
    if controller.status != MemberStatus.READY:
        return _waits(plays, plays.joins, "the controller is not ready")
    held = claims.not_now(world, controller)
    if held:
        return _waits(plays, plays.members, f"the controller: {held}")
    found = plays.join_play(controller) or plays.drain_play(world, controller) or plays.remove_play(controller)
    return [found] if found else []


def _waits(plays: WantedPlays, members: Iterable[Member], why: str) -> list[Step]:
    return [Wait(why, host_name(one), operation=plays.operations.get(one.id)) for one in members]


def _operations(world: World, controller: Member) -> tuple[list[Step], WantedPlays]:
    return worker_operations(world, read_placement(world.instance), controller)
