"""Everything that is wrong with a running instance, from a snapshot and the members' records. Pure."""

from collections.abc import Iterator, Sequence
from datetime import timedelta

from runner.intent import host_keys
from runner.model import limits
from runner.model.names import host_name
from runner.model.platform import IN_SERVICE, Member, MemberStatus
from runner.model.world import Policy
from runner.slurm import desired_config, detail, notes
from runner.slurm.causes import CAUSES, NOT_SERVING, Finding
from runner.slurm.components import CONTROLLER, WORKER
from runner.slurm.controller import find_controller, ready_workers
from runner.slurm.node_names import node_name
from runner.slurm.readiness import controller_problems, is_held_by_a_person, is_serving, wrong_resource
from runner.slurm.snapshot import ControllerState, Node, Snapshot
from runner.slurm.versions import fits_window, upstream_version

# munge refuses messages that are five minutes off; a clock that is two minutes off is reported before that.
MAX_SKEW = timedelta(seconds=120)
# How Slurm tracks the processes of a job: by cgroup v2, or by /proc, which limits nothing.
CONFINED, UNCONFINED = "cgroup", "linuxproc"


def findings(snapshot: Snapshot | None, members: Sequence[Member], policy: Policy) -> list[Finding]:
    controller = find_controller(members)
    if snapshot is None:
        error = controller.notes.last_adapter_error if controller else None
        why = f": {error.message}" if error and error.message else "; it is tried again at the next tick"
        return [Finding("controller_unknown", f"the controller could not be looked at{why}", controller)]
    found = list(_controller(snapshot.controller, controller, policy))
    if any(one.code in ("munge_not_active", "slurmctld_not_active", "slurmctld_not_answering") for one in found):
        return [*found, *_failed(members), *_unknown_hosts(members)]
    if snapshot.nodes is None:
        message = "slurmctld answers, but not about its nodes and jobs: run sinfo and squeue on the controller"
        return [*found, Finding("nodes_unknown", message, controller), *_failed(members), *_unknown_hosts(members)]
    workers = [*_workers(snapshot, members), *_failed(members), *_unknown_hosts(members)]
    found += [*_munge(members), *_exposed_key(members, controller), *_foreign_root(members)]
    found += [*_partitions(snapshot.partitions, controller), *_confinement(snapshot, members, controller)]
    return [*found, *_none_serves(members, workers), *workers]


# -- the controller ------------------------------------------------------------------------------------------


def _controller(seen: ControllerState, member: Member | None, policy: Policy) -> Iterator[Finding]:
    for code, message in controller_problems(seen):
        yield Finding(code, message, member)
    yield from _configuration(seen, member)
    yield from _refused_config(member)
    yield from _projects(member)
    for disk in seen.disks:
        if disk.free_mb < policy.min_free_mb:
            message = (
                f"{disk.free_mb} MiB of {disk.size_mb} are left for {disk.path} on the controller, fewer than"
                f" {policy.min_free_mb}: free some space, or slurmctld cannot save its state"
            )
            yield Finding("disk_nearly_full", message, member)
    skew = seen.clock_skew_seconds or 0.0
    if abs(skew) > MAX_SKEW.total_seconds():
        message = (
            f"the controller's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the runner's:"
            " correct the time service of the one that is wrong"
        )
        yield Finding("clock_skew", message, member)
    yield from _versions(seen, member)


def _configuration(seen: ControllerState, member: Member | None) -> Iterator[Finding]:
    """A slurm.conf that is not the one of the adapter, or not the one that slurmctld has read."""
    if not seen.config_version:
        return
    if seen.config_intact is False:
        message = "slurm.conf on the controller was changed by hand: put the change into the instance's config instead"
        yield Finding("config_changed", message, member)
    elif seen.config_loaded is False:
        message = "slurmctld has not read the slurm.conf that is on the controller: it was changed since"
        yield Finding("config_not_loaded", message, member)


def _projects(member: Member | None) -> Iterator[Finding]:
    """Of a shared cluster: attachments that are not carried out, and access by hand that was closed."""
    stored = notes.controller(member) if member else None
    if stored is None:
        return
    trial, error = stored.projects_change, stored.last_adapter_error
    if trial and trial.last_error:
        why = error.message if error and error.code == trial.last_error else trial.last_error
        message = f"what the attachments ask for was not carried out, and is tried again: {why}"
        yield Finding("attachments_not_followed", message, member)
    if stored.projects_closed_by_hand:
        found = limits.named(stored.projects_closed_by_hand, "; ")
        yield Finding("access_closed", f"access was given by hand, and was closed: {found}", member)


def _refused_config(member: Member | None) -> Iterator[Finding]:
    """The desired configuration was refused: the cluster serves, but with the former one."""
    refused = desired_config.refused(member) if member else None
    if refused:
        code = refused.code if refused.code in CAUSES else "config_refused"
        yield Finding(code, refused.message, member, shown_as=refused.code)


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
    """The controller sets how jobs are confined in the whole cluster; its workers may be able to do better."""
    if snapshot.controller.process_control != UNCONFINED:
        return
    able = [
        node_name(one) or host_name(one)
        for one in ready_workers(members)
        if notes.worker(one).process_control == CONFINED
    ]
    if able:
        message = (
            f"jobs are not confined to the CPUs, memory and GPUs they asked for: the host of the controller"
            f" ({snapshot.controller.hostname}) has no usable cgroup v2, so the cluster runs with {UNCONFINED}, while"
            f" {len(able)} worker(s) could confine them: {limits.named(able[:5])}. Deploy the cluster again with its"
            " controller on a machine with cgroup v2"
        )
        yield Finding("confinement_weaker", message, controller)


def _munge(members: Sequence[Member]) -> Iterator[Finding]:
    """By the last play that set munge up or changed its key there."""
    for member in members:
        stored = notes.of(member)
        if member.status in IN_SERVICE and stored.munge_vulnerable:
            message = (
                f"any user of {stored.hostname or host_name(member)} can read the munge key out of munge"
                f" {stored.munge_version or 'of an unknown version'} (CVE-2026-25506), and act as any user of the"
                " cluster: upgrade munge on it, then request rotate_credentials"
            )
            yield Finding("munge_vulnerable", message, member)


def _exposed_key(members: Sequence[Member], controller: Member | None) -> Iterator[Finding]:
    """Contributed workers that left since the key was changed last: their projects could read it."""
    changed = notes.controller(controller).munge_key_changed_at if controller else None
    # Of a machine with a new worker it counts once that has left, too.
    there = {one.allocation_id for one in members if one.status != MemberStatus.DELETED}
    left = [
        (one, notes.worker(one).munge_key_left_at)
        for one in members
        if one.source_project_id and one.allocation_id not in there
    ]
    projects = {str(one.source_project_id) for one, at in left if at and (changed is None or at > changed)}
    if projects:
        message = (
            f"workers of project {limits.named(sorted(projects))} left, and whoever was root there could read the munge"
            " key, which makes any user of the cluster: request rotate_credentials"
        )
        yield Finding("munge_key_exposed", message, controller)


def _foreign_root(members: Sequence[Member]) -> Iterator[Finding]:
    """What a trusted project's hosts were accepted with."""
    for member in members:
        ways = notes.worker(member).foreign_root
        if member.component_key == WORKER and member.status in IN_SERVICE and ways:
            message = f"others can become root on it, which its project is trusted with: {limits.named(ways, '; ')}"
            yield Finding("foreign_root_trusted", message, member)


# -- the workers ---------------------------------------------------------------------------------------------


def _in_service(members: Sequence[Member]) -> list[Member]:
    """Workers that are to take jobs: also one that was resumed and does not serve yet."""
    return [*ready_workers(members), *(one for one in members if detail.was_given_back(one))]


def _workers(snapshot: Snapshot, members: Sequence[Member]) -> Iterator[Finding]:
    for member in _in_service(members):
        name = node_name(member)
        node = (snapshot.nodes or {}).get(name) if name else None
        if node is None:
            message = (
                f"the controller has no node {name or '(its host has not reported a name)'}: if it was removed"
                " on purpose, close its record with op remove, otherwise restart slurmd on it"
            )
            yield Finding("worker_absent", message, member)
        else:
            yield from _worker(snapshot, member, str(name), node)


def _worker(snapshot: Snapshot, member: Member, name: str, node: Node) -> Iterator[Finding]:
    reason = f" ({node.reason})" if node.reason else ""
    shown = f"the controller shows {name} as {node.summary}{reason}"
    if is_held_by_a_person(node):
        yield Finding(
            "worker_held_by_person", f"{shown}: drained by an operator; resume it with scontrol when ready", member
        )
    elif "INVALID_REG" in node.flags:
        message = f"{shown}: the host does not match its node. Correct the host, or remove and add the worker"
        yield Finding("worker_invalid", message, member)
    elif "DRAIN" in node.flags:
        message = f"{shown}: correct what the reason names, then resume it with scontrol or recover.yml"
        yield Finding("worker_drained", message, member)
    elif node.state == "DOWN":
        yield Finding("worker_down", f"{shown}: check that the host is up and slurmd runs on it", member)
    elif "NOT_RESPONDING" in node.flags:
        yield Finding("worker_not_responding", f"{shown}: check that the host is up and slurmd runs on it", member)
    elif not is_serving(node):
        yield Finding("worker_not_schedulable", f"{shown}: a node in this state takes no job", member)
    else:
        wrong = wrong_resource(node, notes.worker(member))
        if wrong:
            message = f"the controller shows {name} with {wrong}: remove it, then add it again"
            yield Finding("worker_wrong_resources", message, member)
    yield from _worker_fits(snapshot, member, name, node)


def _worker_fits(snapshot: Snapshot, member: Member, name: str, node: Node) -> Iterator[Finding]:
    worker, controller = node.slurm_version, snapshot.controller.slurm_version
    if worker and controller and not fits_window(worker, controller):
        message = f"{name} runs Slurm {worker}, which a controller of {controller} does not accept: replace the worker"
        yield Finding("worker_version_unfit", message, member)
    started = node.slurmd_started_at
    if started and started - snapshot.observed_at > MAX_SKEW:
        ahead = (started - snapshot.observed_at).total_seconds()
        message = f"slurmd on {name} started {ahead:.0f} s from now by its own clock: correct its time service"
        yield Finding("worker_clock_skew", message, member)
    error = member.notes.last_adapter_error
    if error and error.code == "clock_skew":
        # Found by a repair, which measures the host before it touches it.
        yield Finding("worker_clock_skew", error.message, member)


def _failed(members: Sequence[Member]) -> Iterator[Finding]:
    for member in members:
        if member.component_key != CONTROLLER and member.status == MemberStatus.FAILED:
            error = member.notes.last_adapter_error
            message = (error.message if error else "") or "this worker failed: add it again, or remove it"
            yield Finding("worker_failed", message, member, shown_as=error.code if error else "worker_failed")


def _unknown_hosts(members: Sequence[Member]) -> Iterator[Finding]:
    """Members in service whose host cannot be identified by its key: they may serve, but no play runs on them."""
    for member in members:
        error = member.notes.last_adapter_error
        in_service = member.status in IN_SERVICE
        if in_service and error and error.code in host_keys.CODES:
            yield Finding("host_key_mismatch", error.message, member, shown_as=error.code)


def _none_serves(members: Sequence[Member], found: Sequence[Finding]) -> list[Finding]:
    """Workers that a person drained do not count; if none of the others serves, the cluster runs no job."""
    held = {one.member.id for one in found if one.member and one.code == "worker_held_by_person"}
    lost = {one.member.id for one in found if one.member and one.code in NOT_SERVING}
    failed = [one for one in members if one.component_key != CONTROLLER and one.status == MemberStatus.FAILED]
    wanted = {member.id for member in (*_in_service(members), *failed)}
    if wanted - held and not wanted - held - lost:
        return [Finding("no_worker_serves", "no worker takes a job; the reasons of each follow")]
    return []
