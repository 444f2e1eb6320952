"""A person's command on an instance's hosts takes the same claims as a tick: `gpuaas-slurm exec`.

The numbers of the claims go into the environment, as JSON of member id to number. They are no secret. The inventory
plugin gives them to the hosts; without them a host of a cluster refuses to be changed.
"""

import contextlib
import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from uuid import UUID

from runner.intent.errors import IntentError
from runner.model import claims
from runner.model.app import App
from runner.model.claims import concerns, other_holder
from runner.model.errors import RequestError
from runner.model.names import host_name
from runner.model.plan import Claim, stamp
from runner.model.platform import AppInstance, Member, MemberStatus, OperationStatus
from runner.model.world import World
from runner.observe.world import observe
from runner.platform.client import Client
from runner.report.leases import LostLease, Outdated, Renewal
from runner.report.reporter import Reporter
from runner.settings import Settings, default_runner_id

# Which of the instance's members a command is for.
Pick = Callable[[Sequence[Member]], Sequence[Member]]
CLAIMS_VARIABLE = "GPUAAS_CLAIMS"
# One environment variable holds 128 KiB, and a member takes up to 55 bytes of it.
MOST_MEMBERS = 2000
_ANOTHER_WAY = (
    "Wait until it is done, name other members with --members, or use --read-only for a command that changes nothing"
)


class Held(Exception):
    """Another runner is at work on a member; nothing was run."""


class Claims:
    """What a command may change, and whether that still holds."""

    def __init__(self, fences: Mapping[UUID, int], renewal: Renewal | None = None) -> None:
        self._fences = fences
        self._renewal = renewal

    @property
    def environment(self) -> dict[str, str]:
        return {CLAIMS_VARIABLE: json.dumps({str(one): fence for one, fence in self._fences.items()})}

    @property
    def is_lost(self) -> bool:
        return self._renewal is not None and self._renewal.is_lost


@contextlib.contextmanager
def claimed(
    client: Client, settings: Settings, app: App, instance: AppInstance, pick: Pick, *, read_only: bool
) -> Iterator[Claims]:
    """Hold the members that `pick` chooses until the end. Raises Held if another runner has one."""
    if read_only:
        yield Claims({})
        return
    # Never the name that a runner on this machine is given: it would take our claims for its own.
    own = settings.model_copy(update={"runner_id": f"exec/{default_runner_id()}"[:128]})
    world = observe(client, instance, own, app, everything=True)
    chosen = _chosen(world, pick)
    for member in chosen:
        _check_free(world, member)
    report = Reporter(client, own, world, app)
    try:
        for member in chosen:
            step = Claim("a person runs a command", member, member.status)
            try:
                world = report.apply(step, world)
            except (LostLease, Outdated) as taken:
                raise Held(f"{host_name(member)} was taken meanwhile: {taken}. {_ANOTHER_WAY}.") from None
        yield Claims(world.fences, report.renewal)
    finally:
        report.release()


def _chosen(world: World, pick: Pick) -> list[Member]:
    alive = [one for one in world.members if one.status != MemberStatus.DELETED]
    found = pick(alive)
    if len(found) > MOST_MEMBERS:
        raise RequestError(
            f"one command can be given the claims of at most {MOST_MEMBERS} members, and these are {len(found)}:"
            " name some with --members, and the same with --limit"
        )
    return list({one.id: one for one in found}.values())


def _check_free(world: World, member: Member) -> None:
    holder = other_holder(world.runner_id, world.now, member)
    for operation in (*world.operations, *world.instance_operations):
        if holder or operation.status != OperationStatus.RUNNING or not concerns(operation, member):
            continue
        by, until = operation.claimed_by, operation.lease_expires_at
        holder = (by, until) if by and until and until > world.now else None
    if holder:
        raise Held(f"{host_name(member)} is held by runner {holder[0]} until {stamp(holder[1])}. {_ANOTHER_WAY}.")
    if claims.number(member) is None:
        raise Held(f"adapter_detail.{claims.FENCE} of {host_name(member)} is not a whole number: set it right first.")


def run(command: Sequence[str], environment: Mapping[str, str], held: Claims) -> int:
    """Run the command to its end and give its exit code. It is ended if its claims are lost."""
    ended = threading.Event()
    # A Ctrl-C is the command's too: it ends by itself, and the claims are handed back after it. An exception here could
    # come between the end of the command and the reading of its exit code, which would be lost.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with subprocess.Popen(command, env=dict(environment)) as process:
            signal.signal(signal.SIGTERM, lambda *_: process.terminate())
            threading.Thread(target=_end_if_lost, args=(process, held, ended), daemon=True).start()
            return process.wait()
    finally:
        ended.set()
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_if_lost(process: "subprocess.Popen[bytes]", held: Claims, ended: threading.Event) -> None:
    while not ended.wait(1):
        if held.is_lost:
            process.terminate()
            return


def read_claims(text: str | None) -> dict[UUID, int]:
    """What `exec` put into the environment; nothing without it."""
    try:
        found = json.loads(text) if text else {}
        return {UUID(one): int(fence) for one, fence in found.items()}
    except (ValueError, TypeError, AttributeError):
        message = f"{CLAIMS_VARIABLE} is not what gpuaas-slurm exec sets: unset it, and use exec"
        raise IntentError("claims_invalid", message) from None


def first_timers(members: Sequence[Member]) -> frozenset[UUID]:
    """Members whose hosts have nothing of the instance yet, as far as their records say."""
    coming = (MemberStatus.REQUESTED, MemberStatus.RECONCILING)
    return frozenset(one.id for one in members if one.status in coming and not one.adapter_detail.get("stopped"))
