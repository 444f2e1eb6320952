"""A tick: observe, decide, act, translate and report for one instance, until nothing is left but waiting."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator

from runner import context, log
from runner.act import effects, play_secrets
from runner.act.play_queue import PlaySlot
from runner.act.plays import play
from runner.act.vault import SecretsError
from runner.loop.shared import Shared, Summary
from runner.model import cause
from runner.model.entitlements import Entitlements
from runner.model.names import host_name
from runner.model.neighbours import Neighbours
from runner.model.plan import (
    MAX_ROUNDS,
    ForgetSecrets,
    Pin,
    Plan,
    Play,
    Resolve,
    Step,
    Warn,
    operations_of,
)
from runner.model.platform import Allocation, AppInstance
from runner.model.world import Outcome, World
from runner.observe import entitlements, left_over, other_instances
from runner.observe.world import SETTLED, observe
from runner.platform.answers import Listing
from runner.platform.client import Client
from runner.report.leases import LostLease, Outdated
from runner.report.play_log import RunningPlay
from runner.report.reporter import Reporter
from runner.telemetry.tracer import TracedPlay
from runner.translate import MemberEvent, RunResult, name_refused_secret

# How often a tick decides again because others wrote in between; then it leaves the instance to them.
MAX_REDECISIONS = 5


class Tick:
    def __init__(
        self,
        client: Client,
        shared: Shared,
        instance: AppInstance,
        summary: Summary,
        read_at: float,
        on_work_found: Callable[[], None] = lambda: None,
        tick_id: str = "",
    ) -> None:
        self._client = client
        self._shared = shared
        self._settings = shared.settings
        self._app = shared.app
        self._signals = shared.signals
        self._summary = summary
        self._read_at = read_at
        self._on_work_found = on_work_found
        self._play_slot: PlaySlot | None = None
        self._warned: list[Warn] = []
        self._world = self._observe(instance, read_at).later(tick_id=tick_id)
        self._saw()
        self._report = Reporter(client, self._settings, self._world, self._app)
        if self.has_requested_work:
            on_work_found()

    @property
    def has_requested_work(self) -> bool:
        """Whether work is requested of the instance; otherwise its tick is a routine observation."""
        world = self._world
        requested = bool(world.operations or world.instance_operations) or self._app.has_new_config(world.instance)
        if world.complete and not world.unreadable_attachments:
            requested = requested or self._app.has_new_attachments(world.instance, world.attachments)
        return requested or world.instance.status not in SETTLED

    def _observe(self, instance: AppInstance, not_before: float, *, everything: bool = False) -> World:
        """The lists of the project are shared with other instances; their reads began at `not_before` or later."""

        def allocations() -> Listing[Allocation]:
            return self._shared.allocations.get(self._client.allocations, not_before)

        def read_entitlements() -> Entitlements:
            return self._shared.entitlements.get(lambda: entitlements.read(self._client, self._settings), not_before)

        return observe(
            self._client,
            instance,
            self._settings,
            self._app,
            everything=everything,
            allocations=allocations,
            read_entitlements=read_entitlements,
            read_others=self._read_others,
        )

    def _read_others(self, client: Client, instance: AppInstance) -> Neighbours:
        with self._instance_slot_released():
            return other_instances.read(client, instance)

    def run(self) -> None:
        try:
            redecisions = 0
            for _ in range(MAX_ROUNDS):
                plan = self._app.decide(self._world)
                self._world = cause.routine(plan.steps, self._world)
                self._warn(plan)
                if plan.idle or (plan.play and self._signals.stop.is_set()):
                    return
                if plan.play and not self._has_play_slot_for(plan.play):
                    self._play_slot = self._wait_for_play_slot(plan.play)
                    if not self._play_slot:
                        self._report.check_lease()
                        return
                    if self._play_slot.waited:
                        self._read_again()  # records may have changed meanwhile
                        continue
                try:
                    self._write(plan)
                    if plan.play and self._play_slot:
                        self._act(plan.play, self._play_slot)
                except Outdated as change:
                    redecisions += 1
                    if redecisions > MAX_REDECISIONS:
                        raise LostLease(f"other clients keep changing the instance: {change}") from None
                    log.get().info("decided again", why=str(change))
                    self._read_again()
            raise AssertionError("the plan does not settle: this is a bug in decide")
        finally:
            self._leave_play_slot()
            try:
                self._report.plays.flush()
            finally:
                self._report.claims.release()
            self._shared.meter.saw(self._world)
            self._summary.failed_operations += self._report.failed_operations

    @contextlib.contextmanager
    def _instance_slot_released(self) -> Iterator[None]:
        """Let another instance proceed while this one waits for something else than its own records."""
        self._shared.instance_slots.release()
        try:
            yield
        finally:
            self._shared.instance_slots.acquire()

    def _warn(self, plan: Plan) -> None:
        """Log each warning once in a tick, however many rounds it takes."""
        for step in plan.steps:
            if isinstance(step, Warn) and step not in self._warned:
                self._warned.append(step)
                log.get().warning("held back", subject=step.subject, why=step.why)

    def _write(self, plan: Plan) -> None:
        for step in plan.before_play:
            with context.bound(cause.of_step(step, self._world)):
                self._summary.writes += self._carry_out(step)

    def _carry_out(self, step: Step) -> int:
        """Carry out one step that is not a play, and return the number of writes it took."""
        match step:
            case Pin():
                with self._instance_slot_released():
                    self._world, writes = effects.read_host_keys(step, self._world)
                for write in writes:
                    self._world = self._report.apply(write, self._world)
                return len(writes)
            case ForgetSecrets():
                self._report.start(step)
                with self._instance_slot_released():
                    self._world = effects.delete_secrets(step, self._world, self._client, self._settings, self._app)
            case Resolve():
                self._report.start(step)
                self._world = effects.ask_policy(self._world, self._client, self._settings, self._app)
            case _:
                before, self._world = self._world.instance, self._report.apply(step, self._world)
                now = self._client.now()
                self._shared.meter.wrote(step, now)
                self._shared.tracer.wrote(step, before, now)
        return 1

    def _has_play_slot_for(self, step: Play) -> bool:
        """Whether the slot that was waited for fits the play. If another play is due by now, the slot is given back."""
        slot = self._play_slot
        if slot and (slot.requested, slot.hosts) != (self.has_requested_work, len(step.members)):
            self._leave_play_slot()
        return self._play_slot is not None

    def _wait_for_play_slot(self, step: Play) -> PlaySlot | None:
        """A slot for the play, or None if the runner is to end or the lease is lost.

        A routine observation waits for one pass at most: by then work may be requested of the instance.
        """
        requested = self.has_requested_work
        latest = math.inf if requested else time.monotonic() + self._settings.watch_seconds

        def give_up() -> bool:
            late = time.monotonic() > latest
            return late or self._signals.stop.is_set() or self._report.lease_is_lost

        with self._instance_slot_released():
            return self._shared.plays.enter(requested=requested, hosts=len(step.members), give_up=give_up)

    def _leave_play_slot(self) -> None:
        if self._play_slot:
            self._shared.plays.leave(self._play_slot)
            self._play_slot = None

    def _act(self, step: Play, slot: PlaySlot) -> None:
        """Raises Outdated if the play does not begin, since what asks for it is known to be cancelled."""
        with context.bound(cause.of_step(step, self._world)):
            self._report.check_lease()
            with (
                self._instance_slot_released(),
                self._report.plays.playing(step, self._world) as noted,
                self._shared.meter.playing(step.playbook) as ended,
                self._shared.tracer.playing(step, self._world) as traced,
            ):
                self._summary.plays += 1
                requested = sorted({one.correlation_id for one in operations_of(step)})
                shared = {"correlation_ids": requested} if len(requested) > 1 else {}
                log.get().info("play", playbook=step.playbook, members=len(step.members), why=step.why, **shared)
                traced.result = result = noted.ended(ended(self._play(step, slot, traced, noted)))
                self._leave_play_slot()
            result = left_over.name_left_over_hosts(self._client, result)
            self._report.check_lease()
        self._world = self._world.after_play(step, result.outcomes, result.snapshot)
        # Read everything again, so that the decision on the outcome sees what changed during the play.
        self._read_again()

    def _read_again(self) -> None:
        """Observe again, and keep what this tick has done and found out so far.

        Requested work reads the list of allocations again, because what is decided next may begin on a host, or give
        one up, and the list is from before the wait or the play. A routine observation keeps the list of its pass, so
        that many of them cost one read; only if it took so long that it counts as stalled, it reads again.
        """
        now = time.monotonic()
        was_routine = not self.has_requested_work
        fresh = self._client.instance(self._world.instance.id)
        changes_hosts = bool(self._world.fences)  # a repair has claimed them
        routine_list = max(self._read_at, now - self._settings.stall_seconds)
        not_before = routine_list if was_routine and not changes_hosts else now
        self._adopt(self._observe(fresh, not_before, everything=True))
        if was_routine and self.has_requested_work:
            self._on_work_found()
            self._adopt(self._observe(fresh, now, everything=True))

    def _adopt(self, world: World) -> None:
        self._world = world.keeping(self._world)
        self._report.writer.adopt(self._world)
        self._saw()

    def _saw(self) -> None:
        self._shared.meter.saw(self._world)
        log.know_regions(self._world.regions(self._app.components))

    def _play(self, step: Play, slot: PlaySlot, traced: TracedPlay, noted: RunningPlay) -> RunResult:
        def on_member_event(event: MemberEvent) -> None:
            noted.saw(event, self._client.now())
            with context.bound(cause.of_member(step, event.member_id, self._world)):
                self._report.show_progress(event)
            if self._shared.on_progress:
                self._shared.on_progress(host_name(self._report.writer.members[event.member_id]), event)

        def give_up() -> bool:
            return self._report.lease_is_lost or self._signals.abort.is_set()

        try:
            refused: list[SecretsError] = []
            instance, credential = self._world.instance, step.package_credential
            own = {one.access_credential_id for one in step.members if one.access_credential_id}
            with play_secrets.access(
                self._client, self._settings, self._app, instance, credential, refused, own
            ) as access:
                self._summary.alarm(instance.id, *access.problems.values())
                result = play(
                    step,
                    self._world,
                    self._app,
                    access,
                    self._settings,
                    on_member_event=on_member_event,
                    give_up=give_up,
                    slot=slot,
                    traced=traced if self._shared.tracer.is_on else None,
                )
            return name_refused_secret(result, refused[-1].for_member) if refused else result
        except SecretsError as error:
            # No host was touched: every member of the play has the same error.
            problem = error.for_member
            write = log.get().warning if problem.klass == "retryable" else log.get().error
            write("cannot obtain machine credentials", error_code=error.code, problem=error.message)
            self._summary.alarm(self._world.instance.id, problem)
            return RunResult({member.id: Outcome(error=problem) for member in step.members})
