"""The loop: observe, decide, act, translate, report. One tick brings each instance as far as it gets now."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import structlog

from runner import log
from runner.act import effects, play_secrets
from runner.act.plays import PlayError, play
from runner.act.scratch import sweep
from runner.act.vault import SPENT, SecretsError
from runner.loop.process_lock import ProcessLock
from runner.model.app import App
from runner.model.errors import Conflict, PlatformError
from runner.model.names import host_name
from runner.model.plan import AdapterError, ForgetSecrets, Pin, Plan, Play, Resolve, Warn
from runner.model.platform import AppInstance, InstanceStatus
from runner.model.world import Outcome, World
from runner.observe import left_over
from runner.observe.world import observe
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
    """What a tick came to: for the exit code, the log and --json."""

    instances: int = 0
    plays: int = 0
    writes: int = 0
    failed_operations: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, other: "Summary") -> None:
        self.instances += other.instances
        self.plays += other.plays
        self.writes += other.writes
        self.failed_operations += other.failed_operations
        self.problems += other.problems


@dataclass
class Signals:
    """How a person ends us: `stop` after the current step, `abort` in the middle of a play."""

    stop: threading.Event = field(default_factory=threading.Event)
    abort: threading.Event = field(default_factory=threading.Event)


def choose(client: Client, settings: Settings, only: UUID | None = None) -> list[AppInstance]:
    """The instances that are ours: this app, this project, not gone."""
    found = [client.instance(only)] if only else client.instances(app_slug=settings.app_slug)
    mine = []
    for instance in found:
        if instance.project_id != settings.project_id or instance.app_slug != settings.app_slug:
            log.get(app_instance_id=instance.id).warning("instance ignored: another project's or another app's")
        elif instance.status != InstanceStatus.DELETED:
            mine.append(instance)
    return mine


def run_tick(
    client: Client,
    settings: Settings,
    app: App,
    *,
    only: UUID | None = None,
    signals: Signals | None = None,
    watch: Watcher | None = None,
    alone: ProcessLock | None = None,
) -> Summary:
    """One tick over every instance, side by side. Raises PlatformError when not even the list can be read."""
    sweep()
    instances = choose(client, settings, only)
    if alone:
        alone.make_sure(instances)
    total = Summary()
    signals = signals or Signals()
    with ThreadPoolExecutor(max_workers=settings.parallel_instances) as pool:
        for summary in pool.map(lambda one: _instance_tick(client, settings, app, one, signals, watch), instances):
            total.add(summary)
    return total


def look(client: Client, settings: Settings, app: App, world: World) -> Any:
    """A snapshot from a read-only play, for a person who wants to plan with live data."""
    step = app.look(world)
    if step is None:
        return None
    with play_secrets.access(client, settings, world.instance) as access:
        return play(step, world, app, access, settings, listen=lambda _: None, give_up=lambda: False).snapshot


def _instance_tick(
    client: Client, settings: Settings, app: App, instance: AppInstance, signals: Signals, watch: Watcher | None
) -> Summary:
    summary = Summary(instances=1)
    with structlog.contextvars.bound_contextvars(
        correlation_id=instance.correlation_id,
        org_id=str(instance.org_id),
        project_id=str(instance.project_id),
        app_slug=instance.app_slug,
        app_instance_id=str(instance.id),
    ):
        try:
            with client.clone() as own:
                _Tick(own, settings, app, instance, summary, signals, watch).run()
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

    def __init__(
        self,
        client: Client,
        settings: Settings,
        app: App,
        instance: AppInstance,
        summary: Summary,
        signals: Signals,
        watch: Watcher | None,
    ) -> None:
        self._client = client
        self._settings = settings
        self._app = app
        self._summary = summary
        self._signals = signals
        self._watch = watch
        self._world = observe(client, instance, settings, app)
        self._report = Reporter(client, settings, self._world, app)
        self._warned: list[Warn] = []

    def run(self) -> None:
        try:
            again = 0
            for _ in range(MAX_ROUNDS):
                plan = self._app.decide(self._world)
                self._warn(plan)
                if plan.idle or (plan.play and self._signals.stop.is_set()):
                    return
                try:
                    self._write(plan)
                except Outdated as change:
                    again += 1
                    if again > MAX_AGAIN:
                        raise LostLease(f"others change it all the time: {change}") from None
                    log.get().info("decided again", why=str(change))
                    self._read_again()
                    continue
                if plan.play:
                    self._act(plan.play)
            raise AssertionError("the plan does not settle: this is a bug in decide")
        finally:
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
                    self._world = effects.ask_policy(step, self._world, self._client, self._settings)
                case _:
                    self._world = self._report.apply(step, self._world)
            self._summary.writes += 1

    def _act(self, step: Play) -> None:
        self._summary.plays += 1
        log.get().info("play", playbook=step.playbook, members=len(step.members), why=step.why)
        self._report.renewal.check()
        story = left_over.name_left_over_hosts(self._client, self._play(step))
        self._report.renewal.check()
        # Whatever happened meanwhile counts: read everything anew before judging the outcome.
        self._read_again(snapshot=story.snapshot, outcomes=story.outcomes, played=self._world.played | step.acts)

    def _read_again(self, **changes: object) -> None:
        """The world as it is now, with what this tick has done and found out so far."""
        fresh = self._client.instance(self._world.instance.id)
        world = observe(self._client, fresh, self._settings, self._app, everything=True)
        known = {name: getattr(self._world, name) for name in OF_THIS_TICK}
        world = world.later(**(known | changes))
        self._report.renew_copies(world)
        self._world = world

    def _play(self, step: Play) -> RunResult:
        def listen(heard: MemberEvent) -> None:
            self._report.hear(heard)
            if self._watch:
                self._watch(host_name(self._report.members[heard.member_id]), heard)

        def give_up() -> bool:
            return self._report.renewal.is_lost or self._signals.abort.is_set()

        try:
            refused: list[SecretsError] = []
            instance, credential = self._world.instance, step.package_credential
            with play_secrets.access(self._client, self._settings, instance, credential, refused) as access:
                story = play(step, self._world, self._app, access, self._settings, listen=listen, give_up=give_up)
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


def _told(error: SecretsError) -> AdapterError:
    return AdapterError(error.code, error.message, "retryable" if error.klass == "retryable" else "intervention")
