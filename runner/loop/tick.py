"""A tick: observe, decide, act, translate and report for one instance, until nothing is left but waiting."""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator

import structlog

from runner import log
from runner.act import effects, play_secrets
from runner.act.play_queue import PlaySlot
from runner.act.plays import PlayError, play
from runner.act.vault import SPENT, SecretsError
from runner.loop.shared import Shared, Summary
from runner.model.errors import Conflict, PlatformError
from runner.model.names import host_name
from runner.model.plan import AdapterError, ForgetSecrets, Pin, Plan, Play, Resolve, Warn
from runner.model.platform import Allocation, AppInstance
from runner.model.world import Outcome, World
from runner.observe import left_over
from runner.observe.world import SETTLED, observe
from runner.platform.answers import Listing
from runner.platform.client import Client
from runner.report.leases import LostLease, Outdated
from runner.report.reporter import Reporter
from runner.translate import MemberEvent, RunResult, name_refused_secret

# A tick settles in a few rounds; the limit only stops a policy that wants the same step for ever.
MAX_ROUNDS = 200
# How often a tick decides again because others wrote in between; then it leaves the instance to them.
MAX_REDECISIONS = 5

# Fields of the world that a tick keeps when it reads the platform again.
KEPT_FIELDS = (
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


def tick_instance(
    client: Client, shared: Shared, instance: AppInstance, read_at: float, requested: Callable[[], None]
) -> Summary:
    """One tick of one instance, whose record was read at `read_at`. Calls `requested` if work is requested of it."""
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
            # A bug that one instance reveals must not stop the others; the log and the exit code show it.
            log.get().exception("tick failed")
            summary.problems.append(f"instance {instance.id}: {type(error).__name__}: {error}")
    return summary


class _Tick:
    def __init__(self, client: Client, shared: Shared, instance: AppInstance, summary: Summary, read_at: float) -> None:
        self._client = client
        self._shared = shared
        self._settings = shared.settings
        self._app = shared.app
        self._signals = shared.signals
        self._summary = summary
        self._slot: PlaySlot | None = None
        self._world = self._observe(instance, read_at)
        self._report = Reporter(client, self._settings, self._world, self._app)
        self._warned: list[Warn] = []

    @property
    def is_requested(self) -> bool:
        """Whether work is requested of the instance; otherwise its tick is a routine observation."""
        world = self._world
        requested = bool(world.operations or world.instance_operations) or self._app.has_new_config(world.instance)
        return requested or world.instance.status not in SETTLED

    def _observe(self, instance: AppInstance, read_at: float, *, everything: bool = False) -> World:
        """The list of allocations is shared with other instances, and is never older than the instance's record."""

        def allocations() -> Listing[Allocation]:
            return self._shared.allocations.get(self._client.allocations, read_at)

        return observe(
            self._client, instance, self._settings, self._app, everything=everything, allocations=allocations
        )

    def run(self) -> None:
        try:
            redecisions = 0
            for _ in range(MAX_ROUNDS):
                plan = self._app.decide(self._world)
                self._warn(plan)
                if plan.idle or (plan.play and self._signals.stop.is_set()):
                    return
                if plan.play and not self._slot:
                    self._slot = self._wait_for_slot(plan.play)
                    if not self._slot:
                        self._report.claims.renewal.check()
                        return
                    if self._slot.waited:
                        self._read_again()  # records may have changed meanwhile
                        continue
                try:
                    self._write(plan)
                except Outdated as change:
                    redecisions += 1
                    if redecisions > MAX_REDECISIONS:
                        raise LostLease(f"others change the instance all the time: {change}") from None
                    log.get().info("decided again", why=str(change))
                    self._read_again()
                    continue
                if plan.play and self._slot:
                    self._act(plan.play, self._slot)
            raise AssertionError("the plan does not settle: this is a bug in decide")
        finally:
            self._leave_slot()
            self._report.claims.release()
            self._summary.failed_operations += self._report.failed_operations

    def _warn(self, plan: Plan) -> None:
        """Log each warning once in a tick, however many rounds it takes."""
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
                    self._world = effects.delete_secrets(step, self._world, self._settings, self._app)
                case Resolve():
                    self._report.start(step)
                    self._world = effects.ask_policy(self._world, self._client, self._settings, self._app)
                case _:
                    self._world = self._report.apply(step, self._world)
            self._summary.writes += 1

    def _wait_for_slot(self, step: Play) -> PlaySlot | None:
        """A slot for the play, or None if the runner is to end or the lease is lost.

        A routine observation waits for one pass at most: by then work may be requested of the instance.
        """
        requested = self.is_requested
        latest = math.inf if requested else time.monotonic() + self._settings.watch_seconds

        def give_up() -> bool:
            late = time.monotonic() > latest
            return late or self._signals.stop.is_set() or self._report.claims.renewal.is_lost

        with _released(self._shared.at_work):
            return self._shared.plays.enter(requested=requested, hosts=len(step.members), give_up=give_up)

    def _leave_slot(self) -> None:
        if self._slot:
            self._shared.plays.leave(self._slot)
            self._slot = None

    def _act(self, step: Play, slot: PlaySlot) -> None:
        self._summary.plays += 1
        log.get().info("play", playbook=step.playbook, members=len(step.members), why=step.why)
        self._report.claims.renewal.check()
        with _released(self._shared.at_work):
            result = self._play(step, slot)
            self._leave_slot()
        result = left_over.name_left_over_hosts(self._client, result)
        self._report.claims.renewal.check()
        # Read everything again, so that the decision on the outcome sees what changed during the play.
        self._read_again(snapshot=result.snapshot, outcomes=result.outcomes, played=self._world.played | step.acts)

    def _read_again(self, **changes: object) -> None:
        """Observe again, and keep what this tick has done and found out so far."""
        read_at = time.monotonic()
        fresh = self._client.instance(self._world.instance.id)
        world = self._observe(fresh, read_at, everything=True)
        known = {name: getattr(self._world, name) for name in KEPT_FIELDS}
        world = world.later(**(known | changes))
        self._report.writer.adopt(world)
        self._world = world

    def _play(self, step: Play, slot: PlaySlot) -> RunResult:
        def on_member_event(event: MemberEvent) -> None:
            self._report.show_progress(event)
            if self._shared.watch:
                self._shared.watch(host_name(self._report.writer.members[event.member_id]), event)

        def give_up() -> bool:
            return self._report.claims.renewal.is_lost or self._signals.abort.is_set()

        try:
            refused: list[SecretsError] = []
            instance, credential = self._world.instance, step.package_credential
            with play_secrets.access(self._client, self._settings, self._app, instance, credential, refused) as access:
                result = play(
                    step,
                    self._world,
                    self._app,
                    access,
                    self._settings,
                    on_member_event=on_member_event,
                    give_up=give_up,
                    slot=slot,
                )
            return name_refused_secret(result, _adapter_error(refused[-1])) if refused else result
        except SecretsError as error:
            # No host was touched: every member of the play has the same error.
            problem = _adapter_error(error)
            write = log.get().warning if problem.klass == "retryable" else log.get().error
            write("cannot obtain machine credentials", code=error.code, problem=error.message)
            if error.code == SPENT:
                # An alarm: it shows in the exit code also if there is no operation that could fail.
                self._summary.problems.append(f"instance {self._world.instance.id}: {error.code}: {error.message}")
            return RunResult({member.id: Outcome(error=problem) for member in step.members})


@contextlib.contextmanager
def _released(at_work: threading.Semaphore) -> Iterator[None]:
    """Let another instance proceed while this one waits for something else than the platform."""
    at_work.release()
    try:
        yield
    finally:
        at_work.acquire()


def _adapter_error(error: SecretsError) -> AdapterError:
    return AdapterError(error.code, error.message, "retryable" if error.klass == "retryable" else "intervention")
