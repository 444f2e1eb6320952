"""`gpuaas-slurm exec`: a person's command on an instance's hosts takes the same claims as a tick.

The numbers of the claims are passed in the environment, as JSON of member id to number. They are not secret. The
inventory plugin gives them to the hosts; without them a host of a cluster refuses changes.
"""

import contextlib
import json
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from uuid import UUID

from runner import context
from runner.act import package_policy, play_secrets
from runner.intent.errors import IntentError
from runner.loop.by_hand import Hand
from runner.model import claims
from runner.model.app import App
from runner.model.cause import Cause
from runner.model.claims import concerns, other_holder
from runner.model.errors import RequestError
from runner.model.names import host_name
from runner.model.plan import Claim, stamp
from runner.model.platform import UNFINISHED, AppInstance, Member, MemberStatus, OperationStatus
from runner.model.shown_command import shown_command
from runner.model.world import World
from runner.observe.world import observe
from runner.platform.client import Client
from runner.report.leases import LostLease, Outdated, Renewal
from runner.report.reporter import Reporter
from runner.settings import SECRET_VARIABLES, Settings, default_runner_id

# Chooses the members that a command is for.
Pick = Callable[[Sequence[Member]], Sequence[Member]]
CLAIMS_VARIABLE = "GPUAAS_CLAIMS"
CORRELATION_VARIABLE = "GPUAAS_CORRELATION_ID"
# The one secret among the variables that a command gets.
FOR_INVENTORY = "GPUAAS_CLIENT_SECRET"
# An environment variable holds 128 KiB, and a member takes up to 55 bytes of it.
MAX_MEMBERS = 2000
CORRELATION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_NEXT_STEP = (
    "Wait until it has ended, name other members with --members, or use --read-only for a command that changes nothing"
)


class MemberHeld(Exception):
    """Another runner holds a member, or took it over."""


class ManualClaims:
    """The claims of a command, and whether they still hold."""

    def __init__(self, fences: Mapping[UUID, int], renewal: Renewal | None = None) -> None:
        self._fences = fences
        self._renewal = renewal

    @property
    def environment(self) -> dict[str, str]:
        return {CLAIMS_VARIABLE: json.dumps({str(one): fence for one, fence in self._fences.items()})}

    @property
    def is_lost(self) -> bool:
        return self._renewal is not None and self._renewal.is_lost


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a command of a person: their own, without secrets that it has no use for.

    Only the inventory plugin calls the platform, as the service account. Runtime secrets come from the socket.
    """
    dropped = frozenset(SECRET_VARIABLES) - {FOR_INVENTORY}
    return {name: value for name, value in environment.items() if name.upper() not in dropped}


def execute(
    client: Client,
    settings: Settings,
    app: App,
    instance: AppInstance,
    hand: Hand,
    command: Sequence[str],
    environment: Mapping[str, str],
    pick: Pick,
    *,
    read_only: bool,
) -> int:
    """Run a command with the instance's ssh key, secrets and claims, and return its exit code.

    What is being done stands on the platform before the first claim; see runner/report/hand_record.py.
    """
    package_policy.refuse_override(app, command)
    # Not the id of a runner on this machine: that runner would take these claims for its own.
    own = settings.model_copy(update={"runner_id": f"exec/{default_runner_id()}"[:128]})
    with context.bound(Cause(hand.correlation_id)), contextlib.ExitStack() as stack:
        stack.enter_context(context.for_instance(instance))
        world = None if read_only else observe(client, instance, own, app, everything=True)
        chosen = choose(world.members if world else client.members(instance.id), pick)
        if world:
            _check_free(world, chosen)
        shown = shown_command(command)
        ending = stack.enter_context(hand.recorded(instance, "exec", shown, chosen, read_only=read_only))
        source, credential = package_policy.for_manual_command(client, own, app, instance, read_only=read_only)
        held = ManualClaims({})
        if world:
            world = world.later(by_hand=hand.correlation_id)
            held = stack.enter_context(claim_members(client, own, app, world, chosen))
        credentials = {one.access_credential_id for one in chosen if one.access_credential_id}
        access = stack.enter_context(
            play_secrets.access(client, own, app, instance, credential, own_credentials=credentials)
        )
        variables = {CORRELATION_VARIABLE: hand.correlation_id, **held.environment}
        try:
            ending.exit_code = run(command, {**environment, **access.for_command, **variables, **source}, held)
        except OSError as error:
            raise RequestError(f"{command[0]}: {error.strerror}") from None
        if held.is_lost:
            check = "Check the hosts it worked on before you run it again."
            raise MemberHeld(f"The claim was lost, so the command was ended. {check}")
        return ending.exit_code


@contextlib.contextmanager
def claim_members(
    client: Client, own: Settings, app: App, world: World, chosen: Sequence[Member]
) -> Iterator[ManualClaims]:
    """Hold these members while the context lasts. Raises MemberHeld if another runner takes one first."""
    report = Reporter(client, own, world, app)
    try:
        for member in chosen:
            step = Claim("a person runs a command", member, member.status)
            try:
                world = report.apply(step, world)
            except (LostLease, Outdated) as taken:
                raise MemberHeld(
                    f"{host_name(member)} was claimed by another runner first: {taken}. {_NEXT_STEP}."
                ) from None
        yield ManualClaims(world.fences, report.claims.renewal)
    finally:
        report.claims.release()


def choose(members: Iterable[Member], pick: Pick) -> list[Member]:
    """The members that the command is for."""
    alive = [one for one in members if one.status != MemberStatus.DELETED]
    found = pick(alive)
    if len(found) > MAX_MEMBERS:
        raise RequestError(
            f"one command can have the claims of at most {MAX_MEMBERS} members, not of {len(found)}:"
            " name some with --members, and the same ones with --limit"
        )
    return list({one.id: one for one in found}.values())


def _check_free(world: World, members: Iterable[Member]) -> None:
    """Raise MemberHeld if another runner has one of these members."""
    for member in members:
        _check_member(world, member)


def _check_member(world: World, member: Member) -> None:
    holder = other_holder(world.runner_id, world.now, *claims.lease(member))
    for operation in (*world.operations, *world.instance_operations):
        if holder or operation.status != OperationStatus.RUNNING or not concerns(operation, member):
            continue
        holder = other_holder(world.runner_id, world.now, operation.claimed_by, operation.lease_expires_at)
    if holder:
        raise MemberHeld(f"{host_name(member)} is held by runner {holder[0]} until {stamp(holder[1])}. {_NEXT_STEP}.")
    problem = claims.unreadable_claim(member)
    if problem:
        raise MemberHeld(f"{host_name(member)}: adapter_detail.{problem.message}. Correct it first.")


def run(command: Sequence[str], environment: Mapping[str, str], held: ManualClaims) -> int:
    """Run the command and return its exit code. The command is ended if its claims are lost."""
    ended = threading.Event()
    # A Ctrl-C also reaches the command, which ends by itself; then the claims are released. An exception here could
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


def _end_if_lost(process: "subprocess.Popen[bytes]", held: ManualClaims, ended: threading.Event) -> None:
    while not ended.wait(1):
        if held.is_lost:
            process.terminate()
            return


def read_claims(text: str | None) -> dict[UUID, int]:
    """The claims in the environment that `exec` sets; none without it."""
    try:
        found = json.loads(text) if text else {}
        return {UUID(one): int(fence) for one, fence in found.items()}
    except (ValueError, TypeError, AttributeError):
        message = f"{CLAIMS_VARIABLE} is not what gpuaas-slurm exec sets: unset it, and use exec"
        raise IntentError("claims_invalid", message) from None


def read_correlation(text: str | None, members: Sequence[Member]) -> dict[UUID, str] | None:
    """The correlation id that `exec` sets, for each member; None without it."""
    return dict.fromkeys((one.id for one in members), text) if text and CORRELATION_ID.fullmatch(text) else None


def new_members(members: Sequence[Member]) -> frozenset[UUID]:
    """Members whose hosts have nothing of the instance yet, by their records."""
    return frozenset(one.id for one in members if one.status in UNFINISHED and not one.notes.stopped)
