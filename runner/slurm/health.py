"""Health of a running instance: one pure function from what was observed to a word and its reasons, as data.

Healthy: everything asked for serves. Degraded: the cluster takes and runs jobs, but with less than it should have, or
not for long. Unhealthy: it takes or runs no jobs. Unknown: it could not be looked at. The
table is in docs/usage/health.md.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from runner.intent import host_keys
from runner.model import limits
from runner.model.names import CONTROLLER, host_name
from runner.model.plan import Detail, ErrorClass
from runner.model.platform import Health, Member, MemberStatus, Unreadable
from runner.model.world import Policy
from runner.slurm import desired_config
from runner.slurm.node_names import node_name
from runner.slurm.readiness import is_held_by_a_person, is_serving, wrong_resource
from runner.slurm.snapshot import ControllerState, Node, Snapshot
from runner.slurm.versions import fits_window, upstream_version

MESSAGE_CHARS = 400
# munge refuses what is five minutes off; a clock that is two minutes off is on its way there.
MAX_SKEW = timedelta(seconds=120)
# How Slurm holds the processes of a job: by cgroup v2, or by what /proc shows, which limits nothing.
CONFINED, UNCONFINED = "cgroup", "linuxproc"
WORST = (Health.HEALTHY, Health.DEGRADED, Health.UNHEALTHY, Health.UNKNOWN)


@dataclass(frozen=True)
class Cause:
    """What one code means for the instance, and whether the adapter may put it right by itself."""

    health: Health
    klass: ErrorClass = "intervention"


_DRIFT: ErrorClass = "drift"
CAUSES: dict[str, Cause] = {
    "controller_unknown": Cause(Health.UNKNOWN, "retryable"),
    "munge_not_active": Cause(Health.UNHEALTHY, _DRIFT),
    "slurmctld_not_active": Cause(Health.UNHEALTHY, _DRIFT),
    "slurmctld_not_answering": Cause(Health.UNHEALTHY),
    "nodes_unknown": Cause(Health.UNKNOWN, "retryable"),
    "mariadb_not_active": Cause(Health.DEGRADED, _DRIFT),
    "slurmdbd_not_active": Cause(Health.DEGRADED, _DRIFT),
    "slurmdbd_not_answering": Cause(Health.DEGRADED),
    "no_submit_account": Cause(Health.UNHEALTHY),
    "config_unknown": Cause(Health.DEGRADED, _DRIFT),
    "config_refused": Cause(Health.DEGRADED),
    "config_invalid": Cause(Health.DEGRADED),
    "config_taken_back": Cause(Health.DEGRADED),
    "config_rolled_back": Cause(Health.DEGRADED),
    "config_changed": Cause(Health.DEGRADED, _DRIFT),
    "config_not_loaded": Cause(Health.DEGRADED, _DRIFT),
    "disk_nearly_full": Cause(Health.DEGRADED),
    "clock_skew": Cause(Health.DEGRADED),
    "version_differs": Cause(Health.DEGRADED),
    "no_worker_serves": Cause(Health.UNHEALTHY),
    "no_partition_open": Cause(Health.UNHEALTHY),
    "partition_closed": Cause(Health.DEGRADED),
    "partitions_unknown": Cause(Health.UNKNOWN, "retryable"),
    "confinement_weaker": Cause(Health.DEGRADED),
    "worker_absent": Cause(Health.DEGRADED),
    "worker_down": Cause(Health.DEGRADED, _DRIFT),
    "worker_not_responding": Cause(Health.DEGRADED, _DRIFT),
    "worker_invalid": Cause(Health.DEGRADED),
    "worker_not_schedulable": Cause(Health.DEGRADED),
    "worker_drained": Cause(Health.DEGRADED),
    "worker_held_by_person": Cause(Health.HEALTHY),
    "worker_wrong_resources": Cause(Health.DEGRADED),
    "worker_version_unfit": Cause(Health.DEGRADED),
    "worker_clock_skew": Cause(Health.DEGRADED),
    # Shown under the code of what is wrong with it: host_key_missing, host_key_contradicted, host_key_note_invalid too.
    "host_key_mismatch": Cause(Health.DEGRADED),
    # A failed worker is shown under its own last error's code; this one stands for all of them.
    "worker_failed": Cause(Health.DEGRADED),
    "record_unreadable": Cause(Health.DEGRADED),
}
UNREADABLE = "record_unreadable"
# With one of these a worker takes no job.
NOT_SERVING = (
    "worker_absent",
    "worker_down",
    "worker_not_responding",
    "worker_invalid",
    "worker_not_schedulable",
    "worker_drained",
    "worker_failed",
)


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be, and whose it is."""

    code: str
    message: str
    member: Member | None = None
    shown_as: str | None = None
    record: Unreadable | None = None

    @property
    def cause(self) -> Cause:
        return CAUSES[self.code]

    @property
    def is_drift(self) -> bool:
        return self.cause.klass == _DRIFT


def health(
    snapshot: Snapshot | None, members: Sequence[Member], policy: Policy, unreadable: Iterable[Unreadable] = ()
) -> tuple[Health, list[Detail]]:
    """One word for a running instance, with its reasons as data; the worst come first."""
    found = [*_unreadable(unreadable), *findings(snapshot, members, policy)]
    found = sorted(found, key=lambda one: -WORST.index(one.cause.health))
    word = found[0].cause.health if found else Health.HEALTHY
    return word, limits.fit_reasons([_reason(one, policy) for one in found])


def findings(snapshot: Snapshot | None, members: Sequence[Member], policy: Policy) -> list[Finding]:
    """Everything that is not as it should be."""
    controller = next((one for one in members if one.component_key == CONTROLLER), None)
    if snapshot is None:
        error = (controller.adapter_detail.get("last_adapter_error") or {}) if controller else {}
        why = f": {error.get('message')}" if error.get("message") else "; it is tried again at the next tick"
        return [Finding("controller_unknown", f"the controller could not be looked at{why}", controller)]
    found = list(_controller(snapshot.controller, controller, policy))
    if any(one.code in ("munge_not_active", "slurmctld_not_active", "slurmctld_not_answering") for one in found):
        return [*found, *_failed(members), *_strangers(members)]
    if snapshot.nodes is None:
        message = "slurmctld answers, but not about its nodes and jobs: run sinfo and squeue on the controller"
        return [*found, Finding("nodes_unknown", message, controller), *_failed(members), *_strangers(members)]
    workers = [*_workers(snapshot, members), *_failed(members), *_strangers(members)]
    found += [*_partitions(snapshot.partitions, controller), *_confinement(snapshot, members, controller)]
    return [*found, *_nobody_serves(members, workers), *workers]


def unreadable_reasons(unreadable: Iterable[Unreadable]) -> list[Detail]:
    """The reasons for records alone, for an instance whose runtime is not looked at."""
    return [_reason(one, Policy()) for one in _unreadable(unreadable)]


def _unreadable(unreadable: Iterable[Unreadable]) -> list[Finding]:
    hint = "Have the platform's operators correct or cancel the record; `op cancel` cannot find it"
    return [
        Finding(UNREADABLE, f"{one}: nothing is changed until it can be read. {hint}", record=one) for one in unreadable
    ]


def _reason(finding: Finding, policy: Policy) -> Detail:
    member = finding.member
    reason: Detail = {
        "code": finding.shown_as or finding.code,
        "message": (finding.message + _tried(finding, policy))[:MESSAGE_CHARS],
        "class": finding.cause.klass,
        "health": finding.cause.health.value,
    }
    if member:
        reason |= {"member_id": str(member.id), "host": host_name(member)}
    if finding.record:
        reason |= {"kind": finding.record.kind, "id": finding.record.id}
    if member and finding.is_drift and member.adapter_detail.get("repair"):
        reason["repair"] = member.adapter_detail["repair"]
    return reason


def _tried(finding: Finding, policy: Policy) -> str:
    """What has been done about drift, and who is next."""
    if not finding.is_drift or finding.member is None:
        return ""
    note = finding.member.adapter_detail.get("repair") or {}
    if not policy.repair:
        return ". It is not repaired by itself, since GPUAAS_REPAIR is false"
    if not note:
        return ""
    tried = f"repair was tried {note.get('attempts')} of at most {policy.max_attempts} times: {note.get('outcome')}"
    if note.get("attempts", 0) < policy.max_attempts:
        return f" ({tried}; the next try is due at {note.get('next_at')})"
    return f" ({tried}). Nothing more is tried: put it right on the host, as docs/usage/health.md says"


# -- the controller ------------------------------------------------------------------------------------------

_DAEMONS = {
    "munge": "nothing in the cluster can prove who it is",
    "slurmctld": "running jobs go on, no new ones start",
    "mariadb": "jobs run, and are accounted once it is back",
    "slurmdbd": "jobs run, and are accounted once it is back",
}


def _controller(seen: ControllerState, member: Member | None, policy: Policy) -> Iterator[Finding]:
    down = [name for name in _DAEMONS if getattr(seen, name) != "active"]
    for name in down:
        state = getattr(seen, name) or "unknown"
        message = f"{name} is {state} on the controller: {_DAEMONS[name]}. See journalctl -u {name} there"
        yield Finding(f"{name}_not_active", message, member)
    if not {"munge", "slurmctld"}.intersection(down) and seen.ping != "UP":
        message = (
            f"slurmctld runs, but scontrol ping says {seen.ping}: see its journal on the controller, and restart it"
        )
        yield Finding("slurmctld_not_answering", message, member)
    if not {"munge", "mariadb", "slurmdbd"}.intersection(down):
        yield from _accounting(seen, member)
    yield from _configuration(seen, member)
    yield from _wish(member)
    for disk in seen.disks:
        if disk.free_mb < policy.min_free_mb:
            message = (
                f"{disk.free_mb} MiB of {disk.size_mb} are left for {disk.path} on the controller, fewer than"
                f" {policy.min_free_mb}: make room before slurmctld can no longer save its state"
            )
            yield Finding("disk_nearly_full", message, member)
    skew = seen.clock_skew_seconds or 0.0
    if abs(skew) > MAX_SKEW.total_seconds():
        message = (
            f"the controller's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the runner's:"
            " put the time service right on whichever is wrong"
        )
        yield Finding("clock_skew", message, member)
    yield from _versions(seen, member)


def _accounting(seen: ControllerState, member: Member | None) -> Iterator[Finding]:
    if seen.accounting_answers is False:
        message = "slurmdbd runs, but sacctmgr gets no answer: jobs run, and are accounted later. See its journal"
        yield Finding("slurmdbd_not_answering", message, member)
    elif not seen.submit_account:
        message = "no account has a user, so jobs are refused as InvalidAccount: add one with sacctmgr"
        yield Finding("no_submit_account", message, member)


def _configuration(seen: ControllerState, member: Member | None) -> Iterator[Finding]:
    if not seen.config_version:
        message = "the controller has no readable slurm.conf: slurmctld would not start again"
        yield Finding("config_unknown", message, member)
    elif seen.config_intact is False:
        message = "slurm.conf on the controller was changed by hand: what is wished belongs into the instance's config"
        yield Finding("config_changed", message, member)
    elif seen.config_loaded is False:
        message = "slurmctld runs with another slurm.conf than is there: somebody changed it and did not have it read"
        yield Finding("config_not_loaded", message, member)


def _wish(member: Member | None) -> Iterator[Finding]:
    """What is wished and was refused: the cluster serves, but not as asked."""
    known = desired_config.refused(member) if member else {}
    if known:
        code = str(known.get("code"))
        told = code if code in CAUSES else "config_refused"
        yield Finding(told, str(known.get("message")), member, shown_as=code)


def _versions(seen: ControllerState, member: Member | None) -> Iterator[Finding]:
    installed = upstream_version(seen.package_version)
    if installed and seen.slurm_version and seen.slurm_version != installed:
        message = f"slurmctld runs {seen.slurm_version}, and {seen.package_version} is installed: restart it"
        yield Finding("version_differs", message, member)
    elif seen.outdated:
        message = f"{', '.join(seen.outdated)} on the controller run a program that is no longer installed: restart"
        yield Finding("version_differs", message, member)


# -- the whole cluster ---------------------------------------------------------------------------------------

_CLOSED = {
    "DOWN": "jobs queue and none starts",
    "DRAIN": "no job is accepted, those in the queue still start",
    "INACTIVE": "no job is accepted and none starts",
}


def _partitions(states: dict[str, str] | None, member: Member | None) -> Iterator[Finding]:
    """A partition that is not UP was closed by a person, or by a stop that could not open it again; while a stop is
    under way, health is not judged at all."""
    if states is None:
        message = "slurmctld answers, but not about its partitions: run scontrol show partitions on the controller"
        yield Finding("partitions_unknown", message, member)
        return
    closed = {name: state for name, state in states.items() if state != "UP"}
    named = limits.named([f"{name} is {state} ({_CLOSED.get(state, state)})" for name, state in sorted(closed.items())])
    opening = "To open one, run `scontrol update PartitionName=NAME State=UP` on the controller"
    if not states:
        message = "the cluster has no partition, so no job is accepted: put the instance's partition back"
        yield Finding("no_partition_open", message, member)
    elif len(closed) == len(states):
        yield Finding("no_partition_open", f"no partition is open: {named}. {opening}", member)
    elif closed:
        yield Finding("partition_closed", f"{named}. {opening}", member)


def _confinement(snapshot: Snapshot, members: Sequence[Member], controller: Member | None) -> Iterator[Finding]:
    """How jobs are held is the controller's setting for the whole cluster, and may be less than workers could do."""
    if snapshot.controller.process_control != UNCONFINED:
        return
    able = [
        node_name(one) or host_name(one)
        for one in members
        if one.component_key != CONTROLLER
        and one.status == MemberStatus.READY
        and one.adapter_detail.get("process_control") == CONFINED
    ]
    if able:
        message = (
            f"jobs are not confined to the CPUs, memory and GPUs they asked for: the host of the controller"
            f" ({snapshot.controller.hostname}) has no usable cgroup v2, so the cluster runs with {UNCONFINED}, while"
            f" {len(able)} worker(s) could confine them: {limits.named(able[:5])}. Deploy the cluster anew with its"
            " controller on a machine with cgroup v2"
        )
        yield Finding("confinement_weaker", message, controller)


# -- the workers ---------------------------------------------------------------------------------------------


def _workers(snapshot: Snapshot, members: Sequence[Member]) -> Iterator[Finding]:
    for member in members:
        if member.component_key == CONTROLLER or member.status != MemberStatus.READY:
            continue
        name = node_name(member)
        node = (snapshot.nodes or {}).get(name) if name else None
        if node is None:
            message = (
                f"the controller has no node {name or '(its name was never told)'}: if it was taken out on purpose,"
                " close its record with op remove, otherwise restart slurmd on it"
            )
            yield Finding("worker_absent", message, member)
        else:
            yield from _worker(snapshot, member, str(name), node)


def _worker(snapshot: Snapshot, member: Member, name: str, node: Node) -> Iterator[Finding]:
    because = f" ({node.reason})" if node.reason else ""
    shown = f"the controller shows {name} as {node.words}{because}"
    if is_held_by_a_person(node):
        yield Finding("worker_held_by_person", f"{shown}: somebody holds it, and it is theirs to give back", member)
    elif "INVALID_REG" in node.flags:
        message = f"{shown}: the host is not what the node was made for. Put it right, or remove and add the worker"
        yield Finding("worker_invalid", message, member)
    elif "DRAIN" in node.flags:
        message = f"{shown}: see what the reason names, then give it back with scontrol or recover.yml"
        yield Finding("worker_drained", message, member)
    elif node.state == "DOWN":
        yield Finding("worker_down", f"{shown}: see that the host is up and slurmd runs on it", member)
    elif "NOT_RESPONDING" in node.flags:
        yield Finding("worker_not_responding", f"{shown}: see that the host is up and slurmd runs on it", member)
    elif not is_serving(node):
        yield Finding("worker_not_schedulable", f"{shown}, in which it takes no job", member)
    else:
        wrong = wrong_resource(node, member.adapter_detail)
        if wrong:
            message = f"the controller shows {name} with {wrong}: add it anew to have it measured"
            yield Finding("worker_wrong_resources", message, member)
    yield from _worker_fits(snapshot, member, name, node)


def _worker_fits(snapshot: Snapshot, member: Member, name: str, node: Node) -> Iterator[Finding]:
    theirs, ours = node.slurm_version, snapshot.controller.slurm_version
    if theirs and ours and not fits_window(theirs, ours):
        message = f"{name} runs Slurm {theirs}, which a controller of {ours} does not take: replace it by one that fits"
        yield Finding("worker_version_unfit", message, member)
    started = node.slurmd_started_at
    if started and started - snapshot.observed_at > MAX_SKEW:
        ahead = (started - snapshot.observed_at).total_seconds()
        message = f"slurmd on {name} started {ahead:.0f} s from now by its own clock: put its time service right"
        yield Finding("worker_clock_skew", message, member)
    error = member.adapter_detail.get("last_adapter_error") or {}
    if error.get("code") == "clock_skew":
        # Found by a repair, which measures the host before it touches it.
        yield Finding("worker_clock_skew", str(error.get("message")), member)


def _failed(members: Sequence[Member]) -> Iterator[Finding]:
    for member in members:
        if member.component_key != CONTROLLER and member.status == MemberStatus.FAILED:
            error = member.adapter_detail.get("last_adapter_error") or {}
            message = str(error.get("message") or "this worker failed: add it again, or remove it")
            yield Finding("worker_failed", message, member, shown_as=str(error.get("code") or "worker_failed"))


def _strangers(members: Sequence[Member]) -> Iterator[Finding]:
    """Members in service whose host is not known by its key: they may serve, but nothing can be done for them."""
    for member in members:
        error = member.adapter_detail.get("last_adapter_error") or {}
        if member.status in (MemberStatus.READY, MemberStatus.DRAINING) and error.get("code") in host_keys.CODES:
            yield Finding("host_key_mismatch", str(error.get("message")), member, shown_as=str(error["code"]))


def _nobody_serves(members: Sequence[Member], found: Sequence[Finding]) -> list[Finding]:
    """Workers that a person holds are not missed; but if none of the others serves, the cluster runs no job."""
    held = {one.member.id for one in found if one.member and one.code == "worker_held_by_person"}
    lost = {one.member.id for one in found if one.member and one.code in NOT_SERVING}
    wanted = {
        member.id
        for member in members
        if member.component_key != CONTROLLER and member.status in (MemberStatus.READY, MemberStatus.FAILED)
    }
    if wanted - held and not wanted - held - lost:
        return [Finding("no_worker_serves", "no worker takes a job; the reasons of each follow")]
    return []
