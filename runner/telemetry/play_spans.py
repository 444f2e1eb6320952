"""Spans of a play, its hosts and their tasks, from the events of ansible-runner as they come.

The play has a span in the trace of each request that it serves; a host is in the trace of the request that its own
member is for. A task's span is sent when the host has done it, so a killed run keeps it.
"""

import functools
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from uuid import UUID

from runner.model import cause as causes
from runner.model.cause import Cause
from runner.model.names import host_name
from runner.model.plan import Play, operations_of
from runner.model.trace import span_id_of
from runner.model.world import World
from runner.telemetry.labels import one_of, play_result
from runner.telemetry.span import Known, Span, Value, Work, ids, work_of
from runner.telemetry.tracer import TracedPlay
from runner.translate import Event, PlayEvent

MAX_LINKS = 32
# What became of a task on a host, and the same in the words of OpenTelemetry's conventions for CICD.
STATUSES = {"runner_on_ok": "ok", "runner_on_failed": "failed", "runner_on_unreachable": "unreachable"}
STATUSES |= {"runner_on_skipped": "skipped"}
UNFINISHED = "unfinished"  # the play ended first
RESULTS = {"ok": "success", "ignored": "success", "failed": "failure", "unreachable": "error", "skipped": "skip"}
RESULTS |= {UNFINISHED: "cancellation"}
PLAYS = {"ok": "success", "failed": "failure", "timeout": "timeout", "stalled": "timeout", "cancelled": "cancellation"}
# A file of the bundle, and a line in it. The name of the task is read there, where no value is filled in.
_PLACE = re.compile(r"(?:.*/)?((?:roles/([a-z0-9_]{1,64})/tasks|playbooks)/[A-Za-z0-9_/-]{1,120}\.yml):([0-9]{1,5})")
_NAME = re.compile(r"\s*- name: +(?P<quote>['\"]?)(?P<name>.+?)(?P=quote)\s*")


@dataclass
class _Host:
    cause: Cause
    member_id: UUID
    fence: int | None
    first: int = 0
    last: int = 0
    # The tasks that it has begun, by Ansible's id, and how often it has done each.
    begun: dict[str, tuple[int, PlayEvent]] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)


class PlaySpans(TracedPlay):
    def __init__(
        self,
        step: Play,
        world: World,
        names: Known,
        runner_id: str,
        tick_id: str,
        number: int,
        send: Callable[[Span], None],
    ) -> None:
        """`number` counts the plays of the tick."""
        self._step = step
        self._names = names
        self._send = send
        self._instance_id = str(world.instance.id)
        asked = causes.of_step(step, world)
        self._hosts = {
            host_name(one): _Host(_of_member(step, one.id, asked, world), one.id, step.fences.get(one.id))
            for one in step.members
        }
        by_work = {work_of(one): one for one in (asked, *(host.cause for host in self._hosts.values()))}
        self.causes = tuple(by_work.values())
        attempts = {one.id: one.attempt for one in operations_of(step) if one.claimed_by == runner_id}
        self._ids: dict[Work, str] = {}
        for work, cause in by_work.items():
            # A claim is made once. What needs none may be played again, so the tick tells it apart.
            fences = sorted(f"{host.member_id}={host.fence}" for host in self._hosts.values() if host.fence is not None)
            attempt = attempts.get(cause.operation_id) if cause.operation_id else None
            claim = (attempt, *fences) if attempt or fences else (tick_id,)
            subject = cause.operation_id or cause.correlation_id
            self._ids[work] = span_id_of("play", subject, *claim, step.playbook, number)

    def span_id(self, cause: Cause) -> str | None:
        return self._ids.get(work_of(cause))

    # -- events ----------------------------------------------------------------------------------------------

    def saw(self, event: Event, error_code: str | None) -> None:
        read = PlayEvent.read(event)
        host = self._hosts.get(read.host or "")
        if host is None or read.task_id is None:
            return
        at = _nanoseconds(read.created)
        host.first, host.last = host.first or at, max(host.last, at)
        if read.kind == "runner_on_start":
            host.begun[read.task_id] = (at, read)
        elif status := STATUSES.get(read.kind):
            begun = host.begun.pop(read.task_id, (at, read))[0]
            ignored = status == "failed" and read.errors_are_ignored
            self._task(host, read, begun, at, "ignored" if ignored else status, error_code)

    def _task(self, host: _Host, task: PlayEvent, start: int, end: int, status: str, code: str | None) -> None:
        parent = self._host_span_id(host)
        assert task.task_id is not None
        times = host.done[task.task_id] = host.done.get(task.task_id, 0) + 1
        path, role, name = _described(self._names.bundle, task.task_path or "")
        shown: dict[str, Value | None] = {
            "cicd.pipeline.task.name": name,
            "gpuaas.task.path": path,
            "gpuaas.role": role,
            "cicd.pipeline.task.run.result": RESULTS[status],
            "gpuaas.status": status,
            "gpuaas.host": task.host,
            "gpuaas.member_id": str(host.member_id),
        }
        failed = status in ("failed", "unreachable", UNFINISHED)
        error = (one_of(code, self._names.error_codes) if code else status) if failed else None
        place = (host.cause.trace_id, span_id_of("task", parent, task.task_id, times), parent)
        self._send(Span(name or path or "task", *place, start, end, shown, error))

    def _host_span_id(self, host: _Host) -> str:
        return span_id_of("host", self.span_id(host.cause), host.member_id)

    # -- the end ---------------------------------------------------------------------------------------------

    def end(self, start: int, end: int, parent: Callable[[Cause], str]) -> None:
        """Send the spans of hosts, and those of the play."""
        outcomes = self.result.outcomes if self.result else {}
        for name, host in self._hosts.items():
            unfinished = list(host.begun.values())
            for begun, task in unfinished:
                self._task(host, task, begun, end, UNFINISHED, None)
            problem = outcomes[host.member_id].error if host.member_id in outcomes else None
            if not host.first and not problem:
                continue  # the play had nothing to do with it
            result = "failure" if problem else "cancellation" if unfinished else "success"
            shown = {
                "gpuaas.host": name,
                "gpuaas.member_id": str(host.member_id),
                "gpuaas.fence": host.fence,
                "cicd.pipeline.task.run.result": result,
            }
            error = one_of(problem.code, self._names.error_codes) if problem else None
            place = (host.cause.trace_id, self._host_span_id(host), self.span_id(host.cause))
            last = end if unfinished else host.last or end
            self._send(Span(f"host {name}", *place, host.first or start, last, shown, error))
        self._end_play(start, end, parent)

    def _end_play(self, start: int, end: int, parent: Callable[[Cause], str]) -> None:
        result = play_result(self.result)
        playbook = one_of(self._step.playbook, self._names.playbooks)
        places = [(one.trace_id, self._ids[work_of(one)]) for one in self.causes]
        for cause, place in zip(self.causes, places, strict=True):
            # The first one names the others, and each of them the first.
            links = tuple(places[1 : MAX_LINKS + 1]) if place == places[0] else (places[0],)
            shown: dict[str, Value | None] = {
                **ids(cause),
                "gpuaas.app_instance_id": self._instance_id,
                "gpuaas.members": len(self._step.members),
                "cicd.pipeline.task.name": playbook,
                "cicd.pipeline.task.run.id": place[1],
                "cicd.pipeline.task.run.result": PLAYS.get(result, "error"),
            }
            error = None if result == "ok" else result
            self._send(Span(f"play {playbook}", *place, parent(cause), start, end, shown, error, links=links))


def _of_member(step: Play, member_id: UUID, asked: Cause, world: World) -> Cause:
    """The request that the host is in the play for; one that only helps is there for the play's own."""
    mine = member_id in step.operations or step.operation is not None
    return causes.of_member(step, member_id, world) if mine else asked


def _nanoseconds(at: datetime | None) -> int:
    return int(at.timestamp() * 1_000_000) * 1_000 if at else time.time_ns()


@functools.lru_cache(maxsize=2000)
def _described(bundle: Path, place: str) -> tuple[str | None, str | None, str | None]:
    """Path and line of a task in the bundle, its role, and its name as it is written there."""
    found = _PLACE.fullmatch(place)
    if found is None or ".." in found[1]:
        return None, None, None
    lines = _lines(bundle / found[1])
    number = int(found[3])
    name = _NAME.fullmatch(lines[number - 1]) if 0 < number <= len(lines) else None
    return (f"{found[1]}:{number}", found[2], name["name"] if name else None) if lines else (None, None, None)


@functools.lru_cache(maxsize=200)
def _lines(file: Path) -> tuple[str, ...]:
    try:
        return tuple(file.read_text().splitlines())
    except (OSError, UnicodeDecodeError):
        return ()
