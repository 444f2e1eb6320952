"""adapter_detail and status_detail: what is reported of a member and an instance, from what was observed. Pure."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from runner.model.instance_notes import FOR_PEOPLE, NOTE, OperationNote, Reason
from runner.model.limits import SAMPLE, fit_reasons
from runner.model.plan import Detail
from runner.model.platform import UNFINISHED, AppInstance, Member, MemberStatus
from runner.model.progress import is_stopped
from runner.model.records import TEXT_CHARS
from runner.slurm import desired_config, notes
from runner.slurm.components import CONTROLLER
from runner.slurm.controller import controllers
from runner.slurm.notes import ControllerNotes, InstanceNotes, SlurmNotes, Versions, WorkerNotes
from runner.slurm.snapshot import Snapshot

REASON_CHARS = 400
# slurmd_state of a worker that the controller does not reach.
SILENT = "not responding"
# The documented fields of a member, before anything is known of it.
_COMMON = (
    *("last_adapter_error", "last_runtime_observed_at", "config_version", "slurm_version", "package_version"),
    "trace_id",
)
_CONTROLLER = (
    *("controller_hostname", "slurmctld_state", "cluster_name", "slurmdbd_version"),
    *("applied_config", "config_refused", "change"),
)
_WORKER = (
    *("worker_hostname", "slurmd_state", "node_state", "drain_reason", "jobs_remaining"),
    *("cpus", "memory_mb", "gpus"),
)


def blank(component_key: str, operation_id: UUID | None = None) -> Detail:
    """Every documented field from the first write on: null means unknown."""
    is_controller = component_key == CONTROLLER
    made = SlurmNotes(role=component_key[:TEXT_CHARS], phase="requested", attempt=0).changes
    made |= {} if is_controller else WorkerNotes(registered_in_controller=False).changes
    made |= SlurmNotes(operation_id=operation_id).changes if operation_id else {}
    return dict.fromkeys((*_COMMON, *(_CONTROLLER if is_controller else _WORKER))) | made


def filled(member: Member) -> Detail:
    """Everything that is stored, under its present name, and null for what is not."""
    return {**blank(member.component_key), **SlurmNotes.renamed(member.adapter_detail)}


def of_controller(snapshot: Snapshot) -> Detail:
    seen = snapshot.controller
    return ControllerNotes(
        controller_hostname=seen.hostname,
        slurmctld_state=seen.slurmctld,
        slurmdbd_state=seen.slurmdbd,
        mariadb_state=seen.mariadb,
        munge_state=seen.munge,
        config_version=seen.config_version,
        cluster_name=seen.cluster_name,
        slurm_version=seen.slurm_version,
        slurmdbd_version=seen.slurmdbd_version,
        package_version=seen.package_version,
        slurmctld_started_at=seen.started_at,
        last_runtime_observed_at=snapshot.observed_at,
    ).changes


def of_worker(snapshot: Snapshot, hostname: str | None) -> Detail:
    """The controller's view of one worker. Values that the controller did not return stay as they were."""
    if snapshot.nodes is None or not hostname:
        return {}
    node = snapshot.nodes.get(hostname)
    seen = WorkerNotes(
        registered_in_controller=node is not None,
        node_state=node.summary if node else "ABSENT",
        drain_reason=(node.reason or "")[:REASON_CHARS] or None if node and "DRAIN" in node.flags else None,
        jobs_remaining=len(node.jobs) if node else None,
        last_runtime_observed_at=snapshot.observed_at,
    ).changes
    if node and node.slurm_version:
        seen |= WorkerNotes(slurm_version=node.slurm_version).changes
    if node and "NOT_RESPONDING" in node.flags:
        seen |= WorkerNotes(slurmd_state=SILENT).changes
    elif node and node.state != "DOWN":
        seen |= WorkerNotes(slurmd_state="active").changes
    return seen


def is_unsettled(member: Member) -> bool:
    """Whether the member is half way through something, so that a later tick has to read it again."""
    if is_stopped(member):
        return False
    leave = member.notes.leave
    half_way = (*UNFINISHED, MemberStatus.DELETING)
    left = leave is not None and leave.is_under_way
    # A note that cannot be read is looked at again at every tick.
    unread = member.status != MemberStatus.DELETED and bool(notes.of(member).problems)
    trial = notes.controller(member).change if member.component_key == CONTROLLER else None
    return member.status in half_way or left or unread or was_given_back(member) or trial is not None


def back_in_service(member: Member) -> Detail:
    """Fields of a drained worker that serves again."""
    named = WorkerNotes(jobs_naming_node=None).changes if notes.worker(member).jobs_naming_node else {}
    return WorkerNotes(phase="serving", jobs=[], jobs_end_by=None, drain_held_by=None).changes | named


def was_given_back(member: Member) -> bool:
    """Whether the adapter undrained the worker, but the controller has not shown it serving yet."""
    stored = notes.worker(member)
    if stored.leave is None:
        return False
    ended = stored.leave.result in (("done",) if stored.leave.verb == "resume" else ("failed", "cancelled"))
    return member.status == MemberStatus.DRAINING and ended and not stored.drain_reason


def of_instance(
    instance: AppInstance,
    snapshot: Snapshot | None,
    members: Sequence[Member],
    reasons: Sequence[Reason],
    now: datetime,
    note: OperationNote | None = None,
) -> Detail:
    """status_detail: the cluster in a few lines, the three versions side by side, and the note if it changes."""
    workers = [member for member in members if member.component_key != CONTROLLER]
    under_way = note.is_under_way if note else instance.notes.is_under_way
    seen = InstanceNotes(
        config_digest=desired_config.settled(controllers(members)),
        reasons=fit_reasons(reasons),
        unsettled=any(is_unsettled(member) for member in members) or under_way,
        workers={
            status: count
            for status in MemberStatus
            if (count := sum(worker.status == status for worker in workers)) and status != MemberStatus.DELETED
        },
    )
    own = desired_config.contributors(members)
    shared = InstanceNotes(contributors=own) if instance.is_shared else InstanceNotes()
    looked_at = (
        InstanceNotes(
            observed_at=now,
            config_version=snapshot.controller.config_version,
            versions=_versions(instance, snapshot),
        )
        if snapshot
        else InstanceNotes()
    )
    lifecycle = InstanceNotes(lifecycle=note) if note else InstanceNotes()
    kept = InstanceNotes.renamed(instance.status_detail or {})
    return {**kept, **seen.changes, **shared.changes, **looked_at.changes, **lifecycle.changes}


def of_failed_instance(instance: AppInstance, reasons: Sequence[Reason]) -> Detail:
    """status_detail once a deploy has failed: the reasons, what people read there, and what we cannot read."""
    kept = InstanceNotes.renamed(instance.status_detail or {})
    readable = set(InstanceNotes.model_fields) - FOR_PEOPLE - ({NOTE} if instance.notes.has_bad_note else set())
    unread = {key: value for key, value in kept.items() if key not in readable}
    return unread | InstanceNotes(reasons=list(reasons)).changes


def _versions(instance: AppInstance, snapshot: Snapshot) -> Versions:
    """The app's version, the packages' on the controller, and the version that each running daemon reports."""
    running = {node.slurm_version for node in (snapshot.nodes or {}).values() if node.slurm_version}
    return Versions(
        app=instance.app_version,
        package=snapshot.controller.package_version,
        slurmdbd=snapshot.controller.slurmdbd_version,
        slurmctld=snapshot.controller.slurm_version,
        slurmd=sorted(running)[:SAMPLE],
    )
