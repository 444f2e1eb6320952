"""How a worker leaves: drained first, deleted only when the controller shows that nothing is on it.

The look at the controller comes first in every tick, and each conclusion is drawn from that look alone. What has been
agreed with an operation stands in the member's own `leave` note, so any runner can go on at any point:
`{operation_id, verb, since, verdict, error, did, unreachable_since}`; a verdict ends it.
"""

import re
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

from pydantic import BaseModel, Field, StrictBool, ValidationError

from runner.intent import host_keys
from runner.intent.errors import IntentError
from runner.model.names import CONTROLLER, WORKER, host_name
from runner.model.plan import AdapterError, Detail, SetMember, Step, Wait, stamp
from runner.model.platform import Member, MemberStatus
from runner.model.shapes import read_time
from runner.slurm import detail
from runner.slurm.decide.members import host_problem, is_gone, obstacle
from runner.slurm.decide.workers import evict
from runner.slurm.decide.workers.evict import JobTerms
from runner.slurm.decide.workers.requests import WantedPlays
from runner.slurm.node_names import node_name
from runner.slurm.node_rules import OUR_PREFIX as PREFIX
from runner.slurm.node_rules import drain_holder
from runner.slurm.readiness import deletion_problem, is_drained
from runner.slurm.snapshot import Job, Node, Snapshot
from runner.slurm.world import World

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# What the play itself found in the way: not an error of the attempt, but a reason to look again later. The codes come
# from the worker's host, so they count as that only where the controller's own word allows it.
NOT_YET = ("not_drained", "jobs_need_node", "node_reserved", "state_unknown")

M = TypeVar("M", bound=BaseModel)
Progress = tuple[list[Step], WantedPlays]


class Terms(JobTerms):
    """`parameters` of drain, remove and replace."""

    host_patience_seconds: int = Field(600, ge=0, le=31_536_000)
    remove_homes: StrictBool = False  # of remove and replace


def read_terms(parameters: Detail) -> Terms:
    return read_as(Terms, parameters)


def read_as(model: type[M], parameters: Detail) -> M:
    """An operation's parameters, strictly; IntentError `parameters_invalid` names the one that is wrong."""
    try:
        return model.model_validate(parameters)
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise IntentError(
            "parameters_invalid", f"parameters cannot be used: {where} {problem['msg']}".strip()
        ) from None


def note(member: Member) -> Detail:
    """What was agreed; nothing, if what stands there is not ours: its id goes into a drain reason."""
    known = member.adapter_detail.get("leave")
    if not isinstance(known, dict) or not _UUID.fullmatch(str(known.get("operation_id"))):
        return {}
    return dict(known)


def belongs_to(member: Member, operation_id: UUID) -> bool:
    return note(member).get("operation_id") == str(operation_id)


def verdict(member: Member, operation_id: UUID) -> str | None:
    """How the operation came out for this member: done, failed, cancelled; None while it goes on."""
    return note(member).get("verdict") if belongs_to(member, operation_id) else None


def leave(world: World, member: Member, operation_id: UUID, verb: str, terms: Terms) -> Progress:
    """The next step of a worker on its way out. `verb` is drain or remove."""
    if not belongs_to(member, operation_id):
        held = obstacle(world, member)
        return [Wait(held, host_name(member)) if held else begin(world, member, operation_id, verb)], WantedPlays()
    if note(member).get("verdict"):
        return [], WantedPlays()
    return _on_its_way(world, member, verb, terms)


def begin(world: World, member: Member, operation_id: UUID, verb: str, **more: Any) -> SetMember:
    """The agreement is written down before anything is done."""
    begun = {"operation_id": str(operation_id), "verb": verb, "since": stamp(world.now), "verdict": None, **more}
    in_slurm = bool(member.adapter_detail.get("registered_in_controller")) or verb == "drain"
    drains = in_slurm and member.status != MemberStatus.DELETING  # what is being deleted goes on from there
    status = MemberStatus.DRAINING if drains else MemberStatus.DELETING
    phase = "draining" if drains else "stopping"
    return SetMember(f"{verb} begins", member, status, {"leave": begun, "phase": phase})


def _on_its_way(world: World, member: Member, verb: str, terms: Terms) -> Progress:
    hostname, snapshot = node_name(member), world.snapshot
    if hostname is None and verb == "drain":  # it never told its name, so the controller cannot know it
        return [
            _end(world, member, AdapterError("node_absent", "it never joined: there is nothing to drain"))
        ], WantedPlays()
    held = at_work(world, member, verb, terms)
    if held:
        return held
    if hostname is None or snapshot is None or hostname not in (snapshot.nodes or {}):
        if verb == "drain":
            absent = AdapterError("node_absent", f"the controller has no node {hostname}: there is nothing to drain")
            return [_end(world, member, absent)], WantedPlays()
        return _from_host(world, member, terms)
    if verb == "drain":
        seen = detail.of_worker(snapshot, hostname) | {"jobs": [], "jobs_end_by": None, "phase": "drained"}
        return [
            _set(member, MemberStatus.DRAINING, seen | _verdict(member, "done"), "drained, and nothing on it")
        ], WantedPlays()
    problem = deletion_problem(snapshot, hostname)
    if problem and problem.code == "jobs_need_node":
        return _until_deadline(world, member, snapshot, terms, snapshot.jobs_naming(hostname), problem.message)
    if problem:
        return [*_show(member, snapshot, hostname), Wait(problem.message, host_name(member))], WantedPlays()
    return _from_host(world, member, terms)


def at_work(world: World, member: Member, verb: str, terms: Terms) -> Progress | None:
    """Steps until the controller shows that nothing is on the worker; None once it does, or if it has no node."""
    hostname, snapshot = node_name(member), world.snapshot
    if hostname is None:
        return None
    if not world.did("drain", member):
        words = terms.reason or f"{verb} asked for"
        return [], WantedPlays(drains={f"{PREFIX}{note(member)['operation_id']}: {words}": [member]})
    if snapshot is None or snapshot.nodes is None or snapshot.jobs is None:
        return [Wait("the controller could not be asked; nothing is assumed", host_name(member))], WantedPlays()
    node = snapshot.nodes.get(hostname)
    if node is None or is_drained(node):
        return None
    return _draining(world, member, snapshot, hostname, node, terms)


# -- while it drains -----------------------------------------------------------------------------------------


def _draining(world: World, member: Member, snapshot: Snapshot, hostname: str, node: Node, terms: Terms) -> Progress:
    jobs = [job for job in snapshot.jobs_of(hostname) if job.state != "PENDING"]
    return _until_deadline(world, member, snapshot, terms, jobs, _what_is_left(snapshot, hostname, node))


def _until_deadline(
    world: World, member: Member, snapshot: Snapshot, terms: Terms, jobs: list[Job], left: str
) -> Progress:
    """Wait for the jobs in the way; past the deadline do with them what the operation says."""
    steps = _show(member, snapshot, str(node_name(member)))
    wait: Progress = ([*steps, Wait(left, host_name(member))], WantedPlays())
    since = read_time(note(member).get("since")) or world.now
    if terms.deadline_seconds is None or world.now < since + timedelta(seconds=terms.deadline_seconds):
        return wait
    if terms.at_deadline == "give_up":
        if member.status == MemberStatus.DELETING:
            return wait  # partly off its host already: it cannot be given back
        if not world.did("resume", member):
            return steps, WantedPlays(resumes={f"{PREFIX}{note(member)['operation_id']}": [member]})
        over = AdapterError("drain_deadline", f"not free in {terms.deadline_seconds} s, so given up: {left}")
        return [_end(world, member, over, did="gave up")], WantedPlays()
    jobs = [job for job in jobs if evict.is_open(job)]
    if not jobs or world.did("evict", member):
        return wait
    done = evict.announcement(terms.at_deadline, jobs)
    if not evict.is_announced(note(member).get("did"), done):
        # Written before it is done: a kill in between must not leave jobs ended by nobody.
        told = {"leave": note(member) | {"did": evict.did_too(note(member).get("did"), done)}}
        return [_set(member, member.status, told, f"the deadline has passed: {done}")], WantedPlays()
    return steps, WantedPlays.evicting(terms.at_deadline, jobs, member)


def _show(member: Member, snapshot: Snapshot, hostname: str) -> list[Step]:
    """Bring what is said of a draining worker up to date: which jobs are left, and until when at the latest."""
    jobs = snapshot.jobs_of(hostname)
    waiting = [job for job in snapshot.jobs_naming(hostname) if job.state == "PENDING"]
    ends = [job.end_time for job in jobs if job.end_time]
    node = (snapshot.nodes or {}).get(hostname)
    seen = detail.of_worker(snapshot, hostname) | {
        "jobs": evict.addresses(jobs),
        "jobs_end_by": stamp(max(ends)) if ends else None,
        "drain_held_by": drain_holder(node.flags, node.reason, node.reason_by) if node else None,
    }
    # Absent as long as nobody asks for the node by name.
    named = evict.addresses(waiting) or None
    if named or member.adapter_detail.get("jobs_naming_node"):
        seen["jobs_naming_node"] = named
    if all(member.adapter_detail.get(key) == value for key, value in seen.items()):
        return []
    return [_set(member, member.status, seen, "as the controller shows it")]


def _what_is_left(snapshot: Snapshot, hostname: str, node: Node) -> str:
    jobs, naming = snapshot.jobs_of(hostname), snapshot.jobs_naming(hostname)
    if jobs:
        return f"{hostname} is {node.words} with {evict.named(jobs)} on it"
    return f"{hostname} is {node.words}" + (f", and {evict.named(naming)} waits for it by name" if naming else "")


# -- from the host -------------------------------------------------------------------------------------------


def _from_host(world: World, member: Member, terms: Terms) -> Progress:
    """Nothing is on it any more, or it was never in: take it off the host and out of Slurm."""
    held = obstacle(world, member)
    if held:
        return [Wait(held, host_name(member))], WantedPlays()
    if member.status != MemberStatus.DELETING:
        told = _set(member, MemberStatus.DELETING, {"phase": "stopping"}, "nothing is on it any more")
        return [replace(told, numbers=True)], WantedPlays()
    allocation = world.allocation_of(member)
    if is_gone(allocation):
        return _without_host(world, member, "its allocation is released")
    problem, waiting = host_problem(world, member)
    if problem and problem.code in host_keys.ANOTHER:
        return _without_host(world, member, f"another machine answers in its place ({problem.code})")
    if problem and problem.code == host_keys.MISSING and _was_never_met(member):
        return _without_host(world, member, "nothing was ever set up on it")
    if problem or waiting:
        # The machine is there; only its record is not usable. Forgetting it would leave a worker that nobody knows.
        return [Wait(problem.message if problem else str(waiting), host_name(member))], WantedPlays()
    if not world.did("remove", member):
        return [], WantedPlays(removes=[member], homes=[member] if terms.remove_homes else [])
    outcome = world.outcomes.get(member.id)
    if world.did("forget", member):
        return _without_host(world, member, "the host did not answer")
    if outcome is None:
        return [Wait("the play did not get to it; the next tick goes on", host_name(member))], WantedPlays()
    if outcome.error is None:
        if outcome.phase == "removed" and _is_absent(world, member):
            said = {**outcome.detail, "phase": "removed", "host_cleaned": True}
            return [gone(member, said, "absent from the controller, and its host is clean")], WantedPlays()
        return [Wait("the controller has not confirmed that it is gone", host_name(member))], WantedPlays()
    left = {"residue": outcome.detail["residue"]} if outcome.detail.get("residue") else {}
    return _remove_failed(world, member, outcome.error, terms, left)


def _remove_failed(world: World, member: Member, error: AdapterError, terms: Terms, left: Detail) -> Progress:
    said: Detail = {**left, "last_adapter_error": error.as_detail(world.now)}
    if error.code == "host_unreachable":
        first = read_time(note(member).get("unreachable_since")) or world.now
        until = first + timedelta(seconds=terms.host_patience_seconds)
        if world.now >= until:
            return [], WantedPlays(forgets=[member])
        said["leave"] = note(member) | {"unreachable_since": stamp(first)}
        why = f"its host does not answer; at {stamp(until)} it is taken out without it"
        return [_set(member, member.status, said, why), Wait(why, host_name(member))], WantedPlays()
    known = note(member) | {"unreachable_since": None}  # it answered: patience with it starts anew
    said["leave"] = known
    if error.code in NOT_YET and _may_be_in_use(world, member):
        return [_set(member, member.status, said, error.code), Wait(error.message, host_name(member))], WantedPlays()
    tried = int(known.get("attempts") or 0) + 1
    if error.klass == "retryable" and tried < world.policy.max_attempts:
        said["leave"] = known | {"attempts": tried}
        why = f"{error.code}: try {tried} of {world.policy.max_attempts}"
        again = Wait(f"the next tick tries again after {why}", host_name(member))
        return [_set(member, member.status, said, why), again], WantedPlays()
    said |= _verdict(member, "failed", error.as_detail(world.now))
    return [_set(member, MemberStatus.FAILED, said, f"{error.code}: {error.message}")], WantedPlays()


def _may_be_in_use(world: World, member: Member) -> bool:
    """Whether the controller shows something in the way of the node, or could not be asked."""
    controllers = [one.id for one in world.members if one.component_key == CONTROLLER]
    silent = any((said := world.outcomes.get(one)) and said.error for one in controllers)
    if silent or world.snapshot is None:
        return True
    return deletion_problem(world.snapshot, node_name(member) or "") is not None


def _without_host(world: World, member: Member, because: str) -> Progress:
    """The host is gone for ever: the node goes from Slurm, and the record says what could not be done."""
    hostname = node_name(member)
    if hostname and not world.did("forget", member) and not _is_absent(world, member):
        return [], WantedPlays(forgets=[member])
    if hostname and not _is_absent(world, member):
        return [Wait("the controller has not confirmed that it is gone", host_name(member))], WantedPlays()
    said = {"phase": "removed", "host_cleaned": False, "host_left": because}
    return [gone(member, said, f"gone from Slurm; the host was not cleaned: {because}")], WantedPlays()


def _was_never_met(member: Member) -> bool:
    """Whether no play ever got to its host: without its keys none could have."""
    known = member.adapter_detail
    return node_name(member) is None and not known.get("host_touched") and known.get(host_keys.PINNED) is None


def _is_absent(world: World, member: Member) -> bool:
    hostname = node_name(member)
    if hostname is None:
        return True
    return world.snapshot is not None and world.snapshot.nodes is not None and hostname not in world.snapshot.nodes


# -- operations that were cancelled --------------------------------------------------------------------------


def cancelled(world: World, member: Member) -> Progress:
    """Its operation is over but it is half way: back to service if it still can, else on to the end."""
    verb = str(note(member).get("verb") or "remove")
    if member.status == MemberStatus.DELETING:
        return _on_its_way(world, member, verb, read_terms({}))
    hostname = node_name(member)
    if hostname and not world.did("resume", member):
        return [], WantedPlays(resumes={f"{PREFIX}{note(member).get('operation_id')}": [member]})
    if hostname and (world.snapshot is None or world.snapshot.nodes is None):
        return [Wait("the controller could not be asked; nothing is assumed", host_name(member))], WantedPlays()
    return [_set(member, member.status, _verdict(member, "cancelled"), "its operation was cancelled")], WantedPlays()


# -- small things --------------------------------------------------------------------------------------------


def _verdict(member: Member, word: str, error: Detail | None = None, **more: Any) -> Detail:
    return {"leave": note(member) | {"verdict": word, "error": error} | more}


def _end(world: World, member: Member, error: AdapterError, **more: Any) -> SetMember:
    """The operation ends here for this member, which itself is not broken: the controller's word decides what it is."""
    said = _verdict(member, "failed", error.as_detail(world.now), **more) | {
        "last_adapter_error": error.as_detail(world.now)
    }
    return _set(member, member.status, said, f"{error.code}: {error.message}")


def gone(member: Member, said: Detail, why: str) -> SetMember:
    left: Detail = {"allocation_released_by": "platform", "last_adapter_error": None}
    left |= {"claimed_by": None, "lease_expires_at": None} if member.adapter_detail.get("claimed_by") else {}
    if member.component_key == WORKER:
        left |= {"registered_in_controller": False, "node_state": "ABSENT", "slurmd_state": "removed"}
        left |= {"jobs_remaining": 0}
    else:
        left |= {"slurmctld_state": "removed", "slurmdbd_state": "removed"}
    return _set(member, MemberStatus.DELETED, said | left | _verdict(member, "done"), why)


def _set(member: Member, status: str, said: Detail, why: str) -> SetMember:
    return SetMember(why, member, status, said)
