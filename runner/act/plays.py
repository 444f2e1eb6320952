"""Runs a playbook for many members at once. The only code that knows ansible-runner."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner import log
from runner.act import bundle, dns, inventory
from runner.act.play_queue import PlaySlot
from runner.act.play_secrets import Access
from runner.act.scratch import SOCKETS, end_processes, scratch
from runner.model import cause
from runner.model.app import App
from runner.model.names import host_name
from runner.model.plan import AdapterError, Play
from runner.model.platform import MemberStatus
from runner.model.world import Outcome, World
from runner.settings import Settings
from runner.telemetry.tracer import TracedPlay
from runner.translate import Event, MemberEvent, PlayEvent, RunResult, add_event, parse_event


class PlayError(Exception):
    """Ansible itself failed: nothing is known about any host."""

    code = "play_failed"


def play(
    step: Play,
    world: World,
    app: App,
    access: Access,
    settings: Settings,
    *,
    on_member_event: Callable[[MemberEvent], None],
    give_up: Callable[[], bool],
    slot: PlaySlot,
    traced: TracedPlay | None = None,
) -> RunResult:
    """Run the step's playbook on its members.

    `give_up` ends the play without a result. A slot that is to stop ends it with an error that is retried.
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
        {member.id: cause.of_member(step, member.id, world).correlation_id for member in step.members},
        None if world.unreadable_attachments else world.attachments,
        access.agents,
    )
    refused = dns.resolve_hosts(hosts, app)
    errors = {
        member_id: world.key_scan_errors.get(member_id) or AdapterError(problem.code, problem.message)
        for member_id, problem in problems.items()
    }
    for member in step.members:
        if member.access_credential_id and (undelivered := access.problems.get(member.access_credential_id)):
            errors[member.id] = undelivered
    for member in step.members:
        if why := refused.get(host_name(member)):
            errors[member.id] = AdapterError(why.code, why.message, "retryable" if why.retryable else "intervention")
    readers = app.report_readers(step.members, world.members)
    members = {host_name(one): readers[one.id] for one in step.members if one.id not in errors}
    result = RunResult({member_id: Outcome(error=error) for member_id, error in errors.items()})
    lead_failed = any(one.id in errors and app.components.is_lead(one) for one in step.members)
    if not members or (lead_failed and step.needs_lead):
        return result

    is_own = OwnEvents()

    def on_event(event: dict[str, Any]) -> bool:
        nonlocal result
        if is_own(event):
            slot.record_event()
            found = parse_event(event, members)
            result = add_event(result, found)
            if traced:
                error = found.error if isinstance(found, MemberEvent) else None
                traced.saw(event, error.code if error else None)
            if isinstance(found, MemberEvent):
                if found.dropped:
                    log.get(member_id=found.member_id).warning("parts of a report not accepted", keys=found.dropped)
                on_member_event(found)
        return False  # ansible-runner keeps no event in a file

    ansible_files = bundle.of_app(app)
    with _run_directory(ansible_files) as (directory, environment):
        slot.record_event()  # names and secrets may have taken a while: a stall is counted from here
        run = ansible_runner.run(
            private_data_dir=str(directory),
            playbook=str(ansible_files / "playbooks" / f"{step.playbook}.yml"),
            inventory=hosts,
            limit=",".join(sorted(members)),
            envvars={**environment, **access.environment, "ANSIBLE_FORKS": str(slot.forks)},
            event_handler=on_event,
            cancel_callback=lambda: give_up() or slot.is_to_stop,
            timeout=settings.play_timeout_seconds,
            quiet=True,
            suppress_env_files=True,
        )
        log.get().debug("play ended", playbook=step.playbook, status=run.status, rc=run.rc, stats=run.stats)
        if run.status == "canceled":
            end_processes(directory)  # Ansible's forks are not in its process group
            # After a signal or a lost lease the next tick starts from what it observes.
            return RunResult() if give_up() else stopped_result(result, step, stalled_error(settings), app)
        if run.status == "timeout":
            end_processes(directory)
            return stopped_result(result, step, timeout_error(settings), app)
        if result.no_hosts_matched and not result.outcomes:
            raise PlayError(f"playbooks/{step.playbook}.yml matched no host: nothing was done")
        if run.rc != 0 and not any(outcome.error for outcome in result.outcomes.values()):
            raise PlayError(f"ansible-playbook {step.playbook} ended with {run.rc}: {_last_output(run)}")
    return result


class OwnEvents:
    """Recognizes the events of our own ansible-playbook, and ignores text that looks like one.

    ansible-runner finds events in what Ansible prints, and Ansible prints what hosts return. The run's own events carry
    the id that Ansible generates before it contacts a host, and no host learns it.
    """

    def __init__(self) -> None:
        self._run_id: object = None

    def __call__(self, raw: Event) -> bool:
        event = PlayEvent.read(raw)
        if self._run_id is None and event.kind == "playbook_on_start":
            self._run_id = event.run_id
        if event.run_id is None or event.run_id == self._run_id:
            return event.run_id is not None
        log.get().warning("forged event ignored", event_kind=event.kind[:60])
        return False


def timeout_error(settings: Settings) -> AdapterError:
    message = (
        f"the play took longer than {settings.play_timeout_seconds} s (GPUAAS_PLAY_TIMEOUT_SECONDS) and was stopped. It"
        " is retried. If it happens again, find what hangs on the host"
    )
    return AdapterError("play_timeout", message, "retryable")


def stalled_error(settings: Settings) -> AdapterError:
    message = (
        f"the play reported nothing for {settings.stall_seconds} s and was stopped, because others were waiting or the"
        " run was ending. It is retried. If that does not help, find out what hangs on the host"
    )
    return AdapterError("play_stalled", message, "retryable")


def stopped_result(result: RunResult, step: Play, error: AdapterError, app: App) -> RunResult:
    """The result of a stopped play: an error for each member that had not finished.

    A ready lead in a play for others only answers questions: without an event of its own it gets no error.
    """
    outcomes = dict(result.outcomes)
    for member in step.members:
        outcome = outcomes.get(member.id)
        only_asked = app.components.is_lead(member) and member.status == MemberStatus.READY
        if outcome is None and only_asked and len(step.members) > 1:
            continue
        outcome = outcome or Outcome()
        if outcome.phase not in app.final_phases:
            outcomes[member.id] = replace(outcome, error=outcome.error or error)
    return replace(result, outcomes=outcomes)


@contextlib.contextmanager
def _run_directory(ansible_files: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """A private directory for one run, and the environment that keeps Ansible inside it."""
    with scratch() as directory:
        sockets = directory / SOCKETS
        sockets.mkdir(mode=0o700)
        environment = {
            "ANSIBLE_CONFIG": str(ansible_files / "ansible.cfg"),
            # ansible-runner switches this off by default, and pinned keys would not be checked.
            "ANSIBLE_HOST_KEY_CHECKING": "True",
            "GPUAAS_RUN_BY_RUNNER": "1",
            "ANSIBLE_HOME": str(directory / "home"),
            "ANSIBLE_LOCAL_TEMP": str(directory / "tmp"),
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(sockets),
            # ansible-playbook is taken from the runner's own installation.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '/usr/bin:/bin')}",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        }
        yield directory, environment


def _last_output(run: Any) -> str:
    with contextlib.suppress(OSError, AttributeError):
        lines = [line for line in run.stdout.read().splitlines() if line.strip()]
        return " ".join(lines[-3:])[:500]
    return "no output"
