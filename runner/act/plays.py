"""Act: one Ansible run for many members. The only code that knows ansible-runner."""

import contextlib
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner import log
from runner.act import dns, inventory
from runner.act.bundle import bundle_dir
from runner.act.play_queue import Turn
from runner.act.scratch import SOCKETS, end_processes, scratch
from runner.model.app import App
from runner.model.names import CONTROLLER, host_name
from runner.model.plan import AdapterError, Play
from runner.model.platform import MemberStatus
from runner.model.world import Outcome, World
from runner.settings import Settings
from runner.translate import Event, MemberEvent, RunResult, add_event, parse_event

Listener = Callable[[MemberEvent], None]


class PlayError(Exception):
    """Ansible itself did not run: nothing is known about any host."""


def play(
    step: Play,
    world: World,
    app: App,
    access: Mapping[str, str],
    settings: Settings,
    *,
    listen: Listener,
    give_up: Callable[[], bool],
    turn: Turn,
) -> RunResult:
    """Run the playbook on the step's members; `listen` hears of each as it happens.

    `give_up` ends the play without a conclusion. A turn that is stopped ends it with an error that is retried.
    """
    import ansible_runner  # here, because a quiet tick needs no Ansible

    hosts, problems = inventory.build(
        app,
        world.instance,
        step.members,
        world.allocations,
        step.work,
        step.terms,
        step.fences,
        step.first,
        world.members,
    )
    refused = dns.settle(hosts, app)
    errors = {
        member_id: world.key_scan_errors.get(member_id) or AdapterError(problem.code, problem.message)
        for member_id, problem in problems.items()
    }
    for member in step.members:
        if why := refused.get(host_name(member)):
            errors[member.id] = AdapterError(why.code, why.message, "retryable" if why.passing else "intervention")
    readers = app.report_readers(step.members, world.members)
    members = {host_name(one): readers[one.id] for one in step.members if one.id not in errors}
    story = RunResult({member_id: Outcome(error=error) for member_id, error in errors.items()})
    leaderless = any(m.id in errors and m.component_key == CONTROLLER for m in step.members)
    if not members or (leaderless and step.needs_controller):
        return story  # nobody is to be asked, or nobody whom the others could go by

    is_own = OwnEvents()

    def on_event(event: dict[str, Any]) -> bool:
        nonlocal story
        own = is_own(event)
        if own:
            turn.heard()
        heard = parse_event(event, members) if own else None
        story = add_event(story, heard)
        if isinstance(heard, MemberEvent):
            if heard.dropped:
                log.get(member_id=heard.member_id).warning("reported by a host, not believed", keys=heard.dropped)
            listen(heard)
        return False  # nothing of it is to be kept in a file

    with _workplace() as (directory, environment):
        run = ansible_runner.run(
            private_data_dir=str(directory),
            playbook=str(bundle_dir() / "playbooks" / f"{step.playbook}.yml"),
            inventory=hosts,
            limit=",".join(sorted(members)),
            envvars={**environment, **access, "ANSIBLE_FORKS": str(turn.forks)},
            event_handler=on_event,
            cancel_callback=lambda: give_up() or turn.stopped,
            timeout=settings.play_timeout_seconds,
            quiet=True,
            suppress_env_files=True,
        )
        log.get().debug("play ended", playbook=step.playbook, status=run.status, rc=run.rc, stats=run.stats)
        if run.status == "canceled":
            end_processes(directory)  # Ansible's forks are not in its process group
            # A person or another runner ended it: the next tick goes on.
            return RunResult() if give_up() else stopped(story, step, stalled(settings), app.final_phases)
        if run.status == "timeout":
            end_processes(directory)
            return stopped(story, step, OUT_OF_TIME, app.final_phases)
        if story.nothing_matched and not story.outcomes:
            raise PlayError(f"playbooks/{step.playbook}.yml matched no host: nothing was done")
        if run.rc != 0 and not any(outcome.error for outcome in story.outcomes.values()):
            raise PlayError(f"ansible-playbook {step.playbook} ended with {run.rc}: {_last_words(run)}")
    return story


class OwnEvents:
    """Tells the events of our own ansible-playbook from text that looks like one.

    ansible-runner finds events in what Ansible prints, and Ansible prints what hosts return. The run's own events carry
    the id that Ansible makes up for the run before it contacts a host, and no host learns it.
    """

    def __init__(self) -> None:
        self._run: str | None = None

    def __call__(self, event: Event) -> bool:
        data = event.get("event_data")
        run = data.get("playbook_uuid") if isinstance(data, dict) else None
        if self._run is None and event.get("event") == "playbook_on_start":
            self._run = run
        if run is None or run == self._run:
            return run is not None
        log.get().warning("an event that a host forged was ignored", event_kind=str(event.get("event"))[:60])
        return False


OUT_OF_TIME = AdapterError("play_timeout", "the play took too long and was stopped before its end", "retryable")


def stalled(settings: Settings) -> AdapterError:
    message = (
        f"the play reported nothing for {settings.stall_seconds} s and was stopped, because others were waiting. It is"
        " retried. Look at what hangs on the host if that does not help"
    )
    return AdapterError("play_stalled", message, "retryable")


def stopped(story: RunResult, step: Play, error: AdapterError, final_phases: Collection[str]) -> RunResult:
    """The result of a play that was stopped: an error for each member that it had not finished with.

    A controller that serves and that a play for workers only asks gets none unless it was heard of.
    """
    outcomes = dict(story.outcomes)
    for member in step.members:
        known = outcomes.get(member.id)
        only_asked = member.component_key == CONTROLLER and member.status == MemberStatus.READY
        if known is None and only_asked and len(step.members) > 1:
            continue
        known = known or Outcome()
        if known.phase not in final_phases:
            outcomes[member.id] = replace(known, error=known.error or error)
    return replace(story, outcomes=outcomes)


@contextlib.contextmanager
def _workplace() -> Iterator[tuple[Path, dict[str, str]]]:
    """A private directory for one run, and the environment that keeps Ansible inside it."""
    with scratch() as directory:
        sockets = directory / SOCKETS
        sockets.mkdir(mode=0o700)
        environment = {
            "ANSIBLE_CONFIG": str(bundle_dir() / "ansible.cfg"),
            # ansible-runner switches this off unless told otherwise, and no pinned key would then be looked at.
            "ANSIBLE_HOST_KEY_CHECKING": "True",
            "GPUAAS_RUN_BY_RUNNER": "1",
            "ANSIBLE_HOME": str(directory / "home"),
            "ANSIBLE_LOCAL_TEMP": str(directory / "tmp"),
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(sockets),
            # ansible-playbook comes from the same installation as we do.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '/usr/bin:/bin')}",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        }
        yield directory, environment


def _last_words(run: Any) -> str:
    with contextlib.suppress(OSError, AttributeError):
        lines = [line for line in run.stdout.read().splitlines() if line.strip()]
        return " ".join(lines[-3:])[:500]
    return "no output"
