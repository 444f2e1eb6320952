"""One worker that is drained or removed: its note, what the controller shows of it, and the expected step."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from runner.model.names import host_name
from runner.model.plan import SetMember, Wait
from runner.model.platform import Member
from runner.slurm import detail
from runner.slurm.decide.workers import leave
from runner.slurm.decide.workers.requests import WantedPlays
from runner.slurm.decide.workers.terms import LeaveTerms
from runner.slurm.notes import WorkerLeave, WorkerNotes
from runner.slurm.snapshot import Job, Node, Snapshot
from runner.slurm.world import World
from tests.unit.lifecycle import cluster, serving
from tests.unit.worlds import NOW, node, snapshot

ASKED = UUID(int=50)
OWNER = f"gpuaas:{ASKED}"
BEGUN = NOW - timedelta(seconds=100)
DRAINED = node(flags={"DYNAMIC_NORM", "DRAIN"}, reason=OWNER, reason_by="slurm")
FULL = node(state="ALLOCATED", flags={"DRAIN"}, reason=OWNER, reason_by="slurm", jobs=["7"])
# Errors by which a host or its controller says that the node is in use, or may be.
IN_USE = ("not_drained", "jobs_need_node", "node_reserved", "state_unknown")
WAITS = Job(id=9, address="9", state="PENDING", required_nodes=["w2"])


def note(verb: Any = "remove", **changes: Any) -> WorkerLeave:
    return WorkerLeave(**({"operation_id": ASKED, "verb": verb, "started_at": BEGUN} | changes))


def leaving(leave_note: WorkerLeave, status: str = "draining", **changes: Any) -> Member:
    return serving(2, status=status, adapter_detail={"leave": leave_note.stored()} | changes)


def seen(one: Node | None = None, jobs: Sequence[Job] | None = (), **changes: Any) -> Snapshot:
    update = {"jobs": None if jobs is None else list(jobs), "reservations": []} | changes
    return snapshot({} if one is None else {"w2": one}).model_copy(update=update)


def at(member: Member, shown: Snapshot | None, *done: str, **changes: Any) -> World:
    return cluster(member).later(snapshot=shown, played=frozenset((act, member.id) for act in done), **changes)


def waits(member: Member, why: str) -> Any:
    return [Wait(why, host_name(member))], WantedPlays()


def writes(why: str, member: Member, status: str, changes: dict[str, Any]) -> Any:
    return [SetMember(why, member, status, changes)], WantedPlays()


def step(now: World, member: Member, verb: Any = "remove", **terms: Any) -> Any:
    return leave.leave(now, member, ASKED, verb, LeaveTerms(**terms))


def shown_jobs(one: Node, jobs: list[str], until: Any, holder: str = "us") -> dict[str, Any]:
    notes = WorkerNotes(jobs=jobs, jobs_end_by=until, drain_held_by=holder)
    return detail.of_worker(seen(one), "w2") | notes.changes


def as_shown(member: Member, changes: dict[str, Any]) -> SetMember:
    return SetMember("as the controller shows it", member, member.status, changes)
