"""Walks the steps of a smoke run: requests, waits with ticks in between, checks, and takes down what it made.

Nothing is kept between processes. A run that was killed finds its instance and its operations by the correlation ids
that are derived from its run id; what the platform has on record is not requested again.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from rich.console import Console

from runner import context
from runner.act.vault import SecretsError
from runner.cli import follow, live, request_state, requests, view
from runner.cli.commands import FAILED, INTERRUPTED, OK, TIME_OVER
from runner.cli.request_state import Records, RequestState
from runner.cli.smoke import asks
from runner.cli.smoke.looks import CHECKS
from runner.cli.smoke.run import CheckFailed, NotApplicable, Run
from runner.cli.smoke.ticks import Ticks
from runner.model.cause import Cause
from runner.model.errors import PlatformError, RequestError, Unavailable
from runner.model.names import host_name
from runner.model.platform import OPEN, InstanceStatus, MemberStatus, Operation
from runner.slurm.app import SLURM
from runner.smoke import plan as plans
from runner.smoke.plan import Ask, Deploy, Look, Planned, State, Step, Wait
from runner.smoke.report import Outcome, Result
from runner.smoke.state import has_failed, lacks, member_at

DEPLOY = "deploy"  # the step that makes the instance
MOST_FAILURE = 600


class Walk:
    def __init__(
        self,
        run: Run,
        plan: Sequence[Planned],
        ticks: Ticks,
        console: Console,
        *,
        step_timeout: float,
        app_version: str,
    ) -> None:
        self.run = run
        self.interrupted = False
        self.results: list[Result] = []
        self._plan = plan
        self._ticks = ticks
        self._console = console
        self._timeout = step_timeout
        self._app_version = app_version
        self._broken: str | None = None
        self._past = 0  # steps before this one were done before the run was killed
        self._lacking: str | None = None
        self._deploy_sent = False

    def resume(self) -> bool:
        """Find what an earlier process of this run has requested; whether there is any."""
        self.run.found = self.run.find(DEPLOY)
        if self.run.found is None:
            return False
        self._ticks.beside(self.run.runner.instance(self.run.found.id))
        listed = requests.operations(self.run.operator, self.run.found)
        for place, step in enumerate(one.step for one in self._plan):
            own = plans.correlation_id(self.run.run_id, step.name)
            asked = next((one for one in listed if one.correlation_id == own), None)
            if asked or isinstance(step.does, Deploy):
                self._past = place
            if asked:
                self.run.asked[step.name] = asked
        return True

    def go(self) -> list[Result]:
        """Every step, in order. After a failure or a signal only what takes the instance down is still done."""
        for place, planned in enumerate(self._plan):
            step = planned.step
            why = planned.left_out or self._skipped(step, place)
            if why:
                self._note(Result.of(step, Outcome.SKIPPED, why))
                continue
            self._say(f"step {place + 1} of {len(self._plan)}, {step.chapter.name}/{step.name}: {step.what}")
            if step.last:
                self._ticks.listen()
            self._ticks.begin_step()
            began = time.monotonic()
            with context.bound(Cause(plans.correlation_id(self.run.run_id, step.name))):
                result = self._do(step)
            self._note(replace(result, seconds=time.monotonic() - began))
            if result.outcome == Outcome.FAILED and step.blocks and not self._broken:
                self._broken = step.name
        return self.results

    @property
    def left_behind(self) -> str | None:
        """What of this run is still there, and the command that takes it away."""
        if self.run.found is None:
            lost = self._deploy_sent and self._broken == DEPLOY
            return f"perhaps an instance: the deploy had no answer. {self._how}" if lost else None
        try:
            instance = self.run.operator.instance(self.run.found.id)
        except PlatformError as error:
            return f"instance {self.run.found.id} perhaps, which cannot be read: {error}. {self._how}"
        if instance.status == InstanceStatus.DELETED:
            return None
        return f"instance {instance.id} {instance.name or ''} is {instance.status}. {self._how}"

    @property
    def _how(self) -> str:
        return f"To take it down: gpuaas-slurm smoke --run-id {self.run.run_id} --clean-up"

    def _skipped(self, step: Step, place: int) -> str | None:
        if step.last:
            return None if self.run.found else "no instance was made"
        if self.interrupted:
            return "the run was interrupted"
        if self._broken:
            return f"not done, because step {self._broken} failed"
        if place < self._past and not (step.requests or (isinstance(step.does, Look) and step.does.again)):
            return "done before the run was continued: what it saw then is in the report of that time"
        if place < self._past and isinstance(step.does, Ask) and step.name not in self.run.asked:
            return "left out before the run was continued" if not step.does.seeded else None
        return None

    def _say(self, text: str) -> None:
        """Names and messages come from an API: a terminal must not interpret them."""
        self._console.print(view.plain(text))

    def _note(self, result: Result) -> None:
        self.results.append(result)
        shown = f"{result.code}: {result.detail}" if result.code else result.detail
        self._say(f"  {result.outcome} after {result.seconds:.1f} s: {shown}"[:MOST_FAILURE])

    def _do(self, step: Step) -> Result:
        try:
            if not step.last:
                self._ticks.stop_if_asked()
            match step.does:
                case Deploy() as deploy:
                    result = self._deploy(step, deploy)
                case Ask() as ask:
                    result = self._ask(step, ask)
                case Wait() as wait:
                    result = self._follow(step, wait.then, self._state_look(wait), wait.after or "")
                case Look() as look:
                    about = self.run.asked.get(look.about or "")
                    detail = CHECKS[look.check](self.run, look)
                    result = self._result(step, Outcome.PASSED, detail, about)
        except KeyboardInterrupt:
            self.interrupted = True
            return Result.of(step, Outcome.SKIPPED, "the run was interrupted")
        except NotApplicable as reason:
            return self._result(step, Outcome.SKIPPED, str(reason))
        except CheckFailed as error:
            return self._result(step, Outcome.FAILED, str(error), code=error.code)
        except (PlatformError, SecretsError, RequestError) as error:
            return self._result(step, Outcome.FAILED, str(error), code=getattr(error, "code", None))
        return result

    def _result(
        self, step: Step, outcome: Outcome, detail: str, about: Operation | None = None, code: str | None = None
    ) -> Result:
        of_run = plans.correlation_id(self.run.run_id, step.name)
        of_instance = isinstance(step.does, Deploy) or (isinstance(step.does, Look) and step.does.of_instance)
        record = about or (self.run.found if of_instance else None)
        correlation = record.correlation_id if record else of_run
        return Result.of(
            step,
            outcome,
            detail,
            code=code,
            correlation_id=correlation,
            record_id=str(record.id) if record else None,
        )

    # -- requests --------------------------------------------------------------------------------------------

    def _deploy(self, step: Step, deploy: Deploy) -> Result:
        self._deploy_sent = True
        try:
            made = asks.deploy(self.run, step, deploy, self._app_version)
        except Unavailable:
            self.run.found = self.run.find(step.name)  # the answer may have been lost, and not the request
            raise
        seen = self.run.runner.instance(made.id)
        self._ticks.beside(seen)
        return self._result(step, Outcome.PASSED, f"instance {seen.id} {seen.name or ''} is {seen.status}")

    def _ask(self, step: Step, ask: Ask) -> Result:
        asked = self.run.asked.get(step.name)
        if asked is None and ask.seeded:
            asked = asks.seeded(self.run, ask)
        elif asked is None:
            asked = asks.request(self.run, step, ask, self._say)
        if asked is None:
            asks.note_not_seeded(self.run, ask)
            return self._follow(step, ask.then, self._operation_look(step, ask), step.name)
        self.run.asked[step.name] = asked
        self._say(f"  {asked.label} is {asked.status}; correlation {asked.correlation_id}")
        if not ask.follows:
            seen = self.run.runner.operation_again(self.run.instance.id, asked)
            return self._result(step, Outcome.PASSED, f"{seen.label} is {seen.status}", seen)
        if self._is_past(step) and asked.status not in OPEN:
            outcome = Outcome.PASSED if asked.status == ask.ends else Outcome.FAILED
            return self._result(step, outcome, f"{asked.label} is {asked.status}, as it is on record", asked)
        return self._follow(step, ask.then, self._operation_look(step, ask), step.name)

    def _is_past(self, step: Step) -> bool:
        return [one.step for one in self._plan].index(step) < self._past

    # -- what is waited for ----------------------------------------------------------------------------------

    def _records(self) -> Records:
        run = self.run
        self._ticks.tick(run.instance.id)
        run.found = run.operator.instance(run.instance.id)
        listed = requests.operations(run.operator, run.found)
        return follow.read_records(run.operator, run.settings, run.found, listed)

    def _operation_look(self, step: Step, ask: Ask) -> Callable[[], RequestState]:
        def look() -> RequestState:
            records = self._records()
            asked = self.run.asked.get(step.name) or asks.seeded(self.run, ask)
            if asked is None:
                self._lacking = f"no {ask.verb} was requested by the deploy or by the adapter"
                return replace(_shown(records), code=None)
            self.run.asked[step.name] = asked
            found = next((one for one in records.operations if one.id == asked.id), asked)
            seen = request_state.of_operation(found, records)
            if found.status in OPEN:
                return seen
            if found.status != ask.ends:
                return replace(seen, code=FAILED, failure=seen.failure or [f"{found.label} is {found.status}"])
            return self._once(ask.then, replace(seen, code=OK, failure=()), records)

        return look

    def _state_look(self, wait: Wait) -> Callable[[], RequestState]:
        def look() -> RequestState:
            records = self._records()
            seen = replace(_shown(records), code=OK, failure=())
            asked = self.run.asked.get(wait.after or "")
            own = next((one for one in records.operations if asked and one.id == asked.id), asked)
            if own and own.status not in (*OPEN, wait.ends):
                failure = request_state.of_operation(own, records).failure
                return replace(seen, code=FAILED, failure=failure or [f"{own.label} is {own.status}"])
            if has_failed(wait.then, records.instance, records.members, self.run.allocations):
                return replace(seen, code=FAILED, failure=_shown(records).failure or ["it has failed"])
            if wait.after and (own is None or own.status in OPEN):
                self._lacking = f"{own.label} is {own.status}" if own else "its operation is not there"
                return replace(seen, code=None)
            return self._once(wait.then, seen, records)

        return look

    def _once(self, then: State, seen: RequestState, records: Records) -> RequestState:
        self._lacking = lacks(then, records.instance, records.members, self.run.allocations)
        if then.configured and SLURM.has_new_config(records.instance):
            self._lacking = "the desired configuration is not live"
        return replace(seen, code=None) if self._lacking else seen

    def _follow(self, step: Step, then: State, look: Callable[[], RequestState], of: str) -> Result:
        """Look until the step has ended. `of` names the step whose operation it is about."""
        self._lacking = None
        code, seen = live.follow(look, self._console, self._timeout, sleep=self._ticks.pause)
        asked = self.run.asked.get(of)
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        if code == OK:
            return self._result(step, Outcome.PASSED, self._seen(then, seen), asked)
        if code == TIME_OVER:
            why = self._lacking or (f"{asked.label} has not ended" if asked else "it has not come")
            left = f". {self._ticks.left_to_others}" if self._ticks.left_to_others else ""
            return self._result(step, Outcome.FAILED, f"after {self._timeout:g} s {why}{left}", asked, "time_over")
        failure = seen.failure if seen else ()
        return self._result(step, Outcome.FAILED, " ".join(failure), asked, "step_failed")

    def _seen(self, then: State, seen: RequestState | None) -> str:
        instance = self.run.instance
        shown = [f"instance {instance.status}, {instance.health}"]
        if seen and isinstance(record := seen.record, Operation):
            error = f" with {record.error.get('code')}" if record.error else ""
            shown.insert(0, f"{record.label} {record.status}{error}")
        if then.member:
            member = member_at(then.member, self.run.operator.members(instance.id), self.run.allocations)
            shown += [f"{host_name(member)} {member.status}"] if member else []
        return "; ".join(shown)


def _shown(records: Records) -> RequestState:
    """What is under way and what is there, without what has ended."""
    open_now = [one for one in records.operations if one.status in OPEN]
    there = [one for one in records.members if one.status != MemberStatus.DELETED]
    return request_state.of_deploy(replace(records, operations=open_now, members=there))
