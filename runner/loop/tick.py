"""A tick: observe, decide, act, translate, report. It brings one instance as far as it gets now."""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import structlog

from runner import log
from runner.act import effects, play_secrets
from runner.act.play_queue import Bounds, PlayGate, Turn
from runner.act.plays import PlayError, play
from runner.act.vault import SPENT, SecretsError
from runner.model.app import App
from runner.model.errors import Conflict, PlatformError
from runner.model.names import host_name
from runner.model.plan import AdapterError, ForgetSecrets, Pin, Plan, Play, Resolve, Warn
from runner.model.platform import Allocation, AppInstance
from runner.model.world import Outcome, World
from runner.observe import left_over
from runner.observe.shared_read import SharedRead
from runner.observe.world import SETTLED, observe
from runner.platform.answers import Listing
from runner.platform.client import Client
from runner.report.leases import LostLease, Outdated
from runner.report.reporter import Reporter
from runner.settings import Settings
from runner.translate import MemberEvent, RunResult, without_secret

# A tick settles in a handful of rounds; this only stops a policy that asks for the same thing for ever.
MAX_ROUNDS = 200
# How often a tick decides again because others wrote in between; then it leaves the instance to them.
MAX_AGAIN = 5

# What a tick has found out and done, and keeps when it reads the platform again.
OF_THIS_TICK = (
    "snapshot",
    "outcomes",
    "key_scan_errors",
    "played",
    "forgotten",
    "not_forgotten",
    "packages",  # policy is asked once a tick
    "fences",
    "took_over",
)

Watcher = Callable[[str, MemberEvent], None]


@dataclass
class Summary:
    """What a tick, or all ticks of a run, came to: for the exit code, the log and --json."""

    instances: int = 0
    plays: int = 0
    writes: int = 0
    failed_operations: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, other: "Summary") -> None:
        self.plays += other.plays
        self.writes += other.writes
        self.failed_operations += other.failed_operations
        self.problems += [one for one in other.problems if one not in self.problems]


@dataclass
class Signals:
    """How a person ends us: `stop` after the current step, `abort` in the middle of a play."""

    stop: threading.Event = field(default_factory=threading.Event)
    abort: threading.Event = field(default_factory=threading.Event)


@dataclass
class Shared:
    """What the ticks of one run have in common."""

    settings: Settings
    app: App
    signals: Signals = field(default_factory=Signals)
    watch: Watcher | None = None
    allocations: SharedRead[Listing[Allocation]] = field(default_factory=SharedRead)

    def __post_init__(self) -> None:
        own = self.settings
        self.plays = PlayGate(Bounds(own.parallel_plays, own.forks, own.memory_mb, own.stall_seconds))
        self.at_work = threading.Semaphore(own.parallel_instances)


def tick_instance(
    client: Client, shared: Shared, instance: AppInstance, read_at: float, requested: Callable[[], None]
) -> Summary:
    """One tick of one instance, whose record was asked for at `read_at`. Calls `requested` if there is such work."""
    summary = Summary()
    with (
        structlog.contextvars.bound_contextvars(
            correlation_id=instance.correlation_id,
            org_id=str(instance.org_id),
            project_id=str(instance.project_id),
            app_slug=instance.app_slug,
            app_instance_id=str(instance.id),
        ),
        shared.at_work,
    ):
        try:
            with client.clone() as own:
                tick = _Tick(own, shared, instance, summary, read_at)
                if tick.is_requested:
                    requested()
                tick.run()
        except LostLease as error:
            log.get().warning("left to another runner", problem=str(error))
        except (PlatformError, PlayError) as error:
            if isinstance(error, Conflict) and (error.status == 412 or error.code == "lease_held"):
                log.get().warning("left to another runner", problem=str(error))
                return summary
            log.get().error("tick cut short", problem=str(error))
            summary.problems.append(f"instance {instance.id}: {error}")
        except Exception as error:
            # One instance's surprise must not stop the others; it is loud, and the exit code says so.
            log.get().exception("tick failed")
            summary.problems.append(f"instance {instance.id}: {type(error).__name__}: {error}")
    return summary


class _Tick:
    """One instance's tick."""

    def __init__(self, client: Client, shared: Shared, instance: AppInstance, summary: Summary, read_at: float) -> None:
        self._client = client
        self._shared = shared
        self._settings = shared.settings
        self._app = shared.app
        self._signals = shared.signals
        self._summary = summary
        self._turn: Turn | None = None
        self._world = self._observe(instance, read_at)
        self._report = Reporter(client, self._settings, self._world, self._app)
        self._warned: list[Warn] = []

    @property
    def is_requested(self) -> bool:
        """Whether work is requested of the instance; otherwise its tick is a routine look."""
        world = self._world
        asks = bool(world.operations or world.instance_operations) or self._app.has_new_config(world.instance)
        return asks or world.instance.status not in SETTLED

    def _observe(self, instance: AppInstance, read_at: float, *, everything: bool = False) -> World:
        """The list of allocations is shared with other instances. It is never older than the instance's record."""

        def allocations() -> Listing[Allocation]:
            return self._shared.allocations.get(self._client.allocations, read_at)

        return observe(
            self._client, instance, self._settings, self._app, everything=everything, allocations=allocations
        )

    def run(self) -> None:
        try:
            again = 0
            for _ in range(MAX_ROUNDS):
                plan = self._app.decide(self._world)
                self._warn(plan)
                if plan.idle or (plan.play and self._signals.stop.is_set()):
                    return
                if plan.play and not self._turn:
                    self._turn = self._wait_for_turn(plan.play)
                    if not self._turn:
                        self._report.renewal.check()
                        return
                    if self._turn.waited:
                        self._read_again()  # much may have changed meanwhile
                        continue
                try:
                    self._write(plan)
                except Outdated as change:
                    again += 1
                    if again > MAX_AGAIN:
                        raise LostLease(f"others change it all the time: {change}") from None
                    log.get().info("decided again", why=str(change))
                    self._read_again()
                    continue
                if plan.play and self._turn:
                    self._act(plan.play, self._turn)
            raise AssertionError("the plan does not settle: this is a bug in decide")
        finally:
            self._end_turn()
            self._report.release()
            self._summary.failed_operations += self._report.failed_operations

    def _warn(self, plan: Plan) -> None:
        """Once in a tick, however many rounds it takes."""
        for step in plan.steps:
            if isinstance(step, Warn) and step not in self._warned:
                self._warned.append(step)
                log.get().warning("held back", subject=step.subject, why=step.why)

    def _write(self, plan: Plan) -> None:
        for step in plan.writes:
            match step:
                case Pin():
                    self._world, writes = effects.read_host_keys(step, self._world)
                    for write in writes:
                        self._world = self._report.apply(write, self._world)
                    self._summary.writes += len(writes)
                    continue
                case ForgetSecrets():
                    self._report.start(step)
                    self._world = effects.forget_secrets(step, self._world, self._settings)
                case Resolve():
                    self._report.start(step)
                    self._world = effects.ask_policy(self._world, self._client, self._settings)
                case _:
                    self._world = self._report.apply(step, self._world)
            self._summary.writes += 1

    def _wait_for_turn(self, step: Play) -> Turn | None:
        """A place among the plays, or None if the runner is to end. What is claimed is renewed meanwhile.

        A routine look waits for one pass at most: by then something may be requested of the instance.
        """
        requested = self.is_requested
        latest = math.inf if requested else time.monotonic() + self._settings.watch_seconds

        def give_up() -> bool:
            late = time.monotonic() > latest
            return late or self._signals.stop.is_set() or self._report.renewal.is_lost

        with _set_aside(self._shared.at_work):
            return self._shared.plays.enter(requested=requested, hosts=len(step.members), give_up=give_up)

    def _end_turn(self) -> None:
        if self._turn:
            self._shared.plays.leave(self._turn)
            self._turn = None

    def _act(self, step: Play, turn: Turn) -> None:
        self._summary.plays += 1
        log.get().info("play", playbook=step.playbook, members=len(step.members), why=step.why)
        self._report.renewal.check()
        with _set_aside(self._shared.at_work):
            story = self._play(step, turn)
            self._end_turn()
        story = left_over.name_left_over_hosts(self._client, story)
        self._report.renewal.check()
        # Whatever happened meanwhile counts: read everything anew before judging the outcome.
        self._read_again(snapshot=story.snapshot, outcomes=story.outcomes, played=self._world.played | step.acts)

    def _read_again(self, **changes: object) -> None:
        """The world as it is now, with what this tick has done and found out so far."""
        read_at = time.monotonic()
        fresh = self._client.instance(self._world.instance.id)
        world = self._observe(fresh, read_at, everything=True)
        known = {name: getattr(self._world, name) for name in OF_THIS_TICK}
        world = world.later(**(known | changes))
        self._report.renew_copies(world)
        self._world = world

    def _play(self, step: Play, turn: Turn) -> RunResult:
        def listen(heard: MemberEvent) -> None:
            self._report.hear(heard)
            if self._shared.watch:
                self._shared.watch(host_name(self._report.members[heard.member_id]), heard)

        def give_up() -> bool:
            return self._report.renewal.is_lost or self._signals.abort.is_set()

        try:
            refused: list[SecretsError] = []
            instance, credential = self._world.instance, step.package_credential
            with play_secrets.access(self._client, self._settings, instance, credential, refused) as access:
                story = play(
                    step, self._world, self._app, access, self._settings, listen=listen, give_up=give_up, turn=turn
                )
            return without_secret(story, _told(refused[-1])) if refused else story
        except SecretsError as error:
            # Nobody was touched: every member of the play has the same reason.
            problem = _told(error)
            tell = log.get().warning if problem.klass == "retryable" else log.get().error
            tell("no way to the machines", code=error.code, problem=error.message)
            if error.code == SPENT:
                # An alarm is heard by whoever watches exit codes, also where no operation is there to fail.
                self._summary.problems.append(f"instance {self._world.instance.id}: {error.code}: {error.message}")
            return RunResult({member.id: Outcome(error=problem) for member in step.members})


@contextlib.contextmanager
def _set_aside(at_work: threading.Semaphore) -> Iterator[None]:
    """Let another instance be worked on, while this one waits for something else than the platform."""
    at_work.release()
    try:
        yield
    finally:
        at_work.acquire()


def _told(error: SecretsError) -> AdapterError:
    return AdapterError(error.code, error.message, "retryable" if error.klass == "retryable" else "intervention")
