"""The projects on a shared runtime: what their attachments ask for is carried out, and reported on each of them.

Level-triggered: what has to be there is computed from the whole list each time and compared with what was carried out
last, which the controller's notes keep. It is carried out again every few minutes, so that what a person changed by
hand in the accounts does not stay. Slurm itself proves the result on the host before anything opens.
"""

from datetime import datetime, timedelta

from runner.intent.errors import IntentError
from runner.model import limits
from runner.model.attached import AttachedProject
from runner.model.attachments import AttachmentStatus
from runner.model.instance_notes import Reason
from runner.model.names import host_name
from runner.model.plan import Act, AdapterError, Detail, Play, SetAttachment, SetMember, Step, Wait
from runner.model.platform import Health, InstanceStatus, Member, MemberStatus
from runner.model.times import stamp
from runner.slurm import attached, attachment_bundle, notes
from runner.slurm.attached import OPEN, Projects
from runner.slurm.controller import ready_workers
from runner.slurm.decide import claims, status
from runner.slurm.decide.members import obstacle
from runner.slurm.notes import ConfigTrial, ControllerNotes, InstanceNotes
from runner.slurm.reports import PROJECTS
from runner.slurm.tenant.memory import TenantNotes
from runner.slurm.tenant.policy import read_detach
from runner.slurm.world import World

PLAYBOOK, ACT = "follow_attachments", "projects"
# How often the accounts are compared with the attachments though nothing was asked for.
CHECK_EVERY = timedelta(minutes=5)
REASONS_SHOWN = 20
MESSAGE_CHARS = 400


def is_served(world: World, controller: Member) -> bool:
    """Whether the cluster is shared and runs."""
    running = world.instance.status == InstanceStatus.RUNNING
    return world.instance.is_shared and running and controller.status == MemberStatus.READY


def settle(world: World, controller: Member) -> list[Step]:
    """What is written after the play, and then on each attachment."""
    stored, asked = notes.controller(controller), asked_of(world)
    if stored.problems:
        return []
    if stored.projects_change and world.did(ACT, controller) and controller.id in world.outcomes:
        return [_conclude(world, controller, stored.projects_change)]
    if named := _names(world, asked):
        return named
    if stored.projects_version == asked.version:
        return [*_reports(world, asked, stored), *_error_ended(controller, stored)]
    return []


def play(world: World, controller: Member) -> list[Step]:
    """The run that carries out what is asked for, if it differs from what was carried out last or is due again."""
    stored, asked = notes.controller(controller), asked_of(world)
    if stored.problems or world.did(ACT, controller):
        return []
    changed, last = stored.projects_version != asked.version, stored.projects_checked_at
    due = last is None or abs(world.now - last) >= _check_every(world)
    if not changed and not due:
        return _report_again(world, controller)
    trial = stored.projects_change
    if trial and trial.digest == asked.version and (later := trial.not_due(world.now)):
        return [Wait(f"the attachments: {later}", host_name(controller))]
    held = claims.not_now(world, controller)
    if held:
        return [Wait(held, host_name(controller))]
    # An account is of the controller alone; users have to be on every host first.
    new_users = stored.users_version != asked.users_version
    if changed and asked.desired.unnamed and not world.did("look", controller):
        return [status.look(controller, "new identities get users that no identity had before")]
    workers = ready_workers(world.members) if new_users else []
    blocked = {one.id: Wait(why, host_name(one)) for one in workers if (why := obstacle(world, one))}
    if blocked and not _takes_away(world, asked):
        # A job of a user that its worker does not have would fail there.
        return [*blocked.values()]
    # What is taken away waits for no worker. A worker that is left out gets its users with what it follows later.
    workers = [one for one in workers if one.id not in blocked]
    if trial is None or trial.digest != asked.version:
        why = "the attachments ask for something else" if changed else "the accounts are compared again"
        begun = ControllerNotes(projects_change=ConfigTrial(digest=asked.version))
        return [SetMember(why, controller, controller.status, begun.changes)]
    acts: set[Act] = {(ACT, controller.id), *(("follow", one.id) for one in workers)}
    why = "projects get what their attachments say" if changed else "accounts changed by hand are put right"
    return [Play(why, PLAYBOOK, (controller, *workers), frozenset(acts), terms=asked.terms)]


def _takes_away(world: World, asked: Projects) -> bool:
    """Whether a project may no longer submit where it was let in."""
    for one in _reported(world, asked):
        before, now = attached.ProjectNotes.read(one.adapter_detail).granted, asked.granted(one)
        if (
            before
            and before.submission == OPEN
            and (now.submission != OPEN or set(before.partitions) - {*now.partitions})
        ):
            return True
    return False


def shown(world: World, controller: Member) -> Detail:
    """For status_detail: the digest of what was asked for, once it is carried out and reported."""
    if not is_served(world, controller) or world.unreadable_attachments:
        return {}
    stored, asked = notes.controller(controller), asked_of(world)
    if stored.projects_version != asked.version or stored.projects_change or asked.desired.unnamed:
        return {}
    return InstanceNotes(attachments_digest=attached.digest(world.attachments)).changes


def report_instance(world: World, controller: Member) -> list[Step]:
    """The instance's own status; of a shared runtime with what was carried out for its projects."""
    return status.report_instance(world, controller, shown(world, controller))


def report_not_served(world: World) -> list[Step]:
    """A cluster that is stopped or failed serves no project, whatever was carried out for it before."""
    if not world.instance.is_shared or world.instance.status not in (InstanceStatus.STOPPED, InstanceStatus.FAILED):
        return []
    steps: list[Step] = []
    for one in world.attachments:
        detail = {**(one.status_detail or {}), "waiting": f"the cluster to serve: it is {world.instance.status}"}
        changes = {"health": str(Health.UNKNOWN), "status_detail": detail}
        if one.status != AttachmentStatus.DETACHED and one.differs(changes):
            steps.append(SetAttachment("its cluster does not serve", one, changes))
    return steps


def require_all_leave(world: World) -> None:
    """A cluster is taken down after its projects. One that detaches may be waiting for a cluster that is broken."""
    stay = [
        str(one.project_id)
        for one in world.attachments
        if one.status not in (AttachmentStatus.DETACHING, AttachmentStatus.DETACHED)
    ]
    if stay:
        named = f"these projects are attached: {limits.named(stay)}"
        raise IntentError("projects_attached", f"{named}. Detach them first: gpuaas-slurm shared detach")
    if world.unreadable_attachments:
        raise IntentError(
            "projects_attached", f"whether projects are attached is not known: {world.unreadable_attachments[0]}"
        )


def end_all(world: World) -> list[Step]:
    """With the cluster, what the last projects waited for is over."""
    leaving = [one for one in world.attachments if one.status == AttachmentStatus.DETACHING]
    gone = {"status": str(AttachmentStatus.DETACHED), "access": None}
    return [SetAttachment("the cluster is gone", one, gone) for one in leaving]


def asked_of(world: World) -> Projects:
    """What the attachments ask for. Who gets which user is certain in a tick that has looked at the cluster."""
    in_slurm = world.snapshot.remembered if world.snapshot else None
    attachments = [_as_of_now(one, world) for one in world.attachments]
    return attached.projects(world.instance, world.members, attachments, world.unreadable_attachments, in_slurm)


def _as_of_now(attachment: AttachedProject, world: World) -> AttachedProject:
    """A project that leaves loses its jobs once its deadline has passed."""
    when = _deadline(attachment)
    if attachment.status != AttachmentStatus.DETACHING or when is None or world.now < when:
        return attachment
    return attachment.model_copy(update={"app_policy": {**attachment.app_policy, "detach_jobs": "cancel"}})


def _deadline(attachment: AttachedProject) -> datetime | None:
    try:
        return read_detach(attachment.detach_parameters).cancel_jobs_at
    except IntentError:
        return None


def _check_every(world: World) -> timedelta:
    """More often while a project leaves: it waits for its jobs."""
    leaves = any(one.status == AttachmentStatus.DETACHING for one in world.attachments)
    return timedelta(seconds=world.policy.observe_seconds) if leaves else CHECK_EVERY


def _report_again(world: World, controller: Member) -> list[Step]:
    """What is asked for has changed and needs nothing of the cluster: a look lets the instance's report say so."""
    digest = attached.digest(world.attachments)
    is_shown = notes.instance(world.instance).attachments_digest == digest
    if is_shown or world.played or world.unreadable_attachments or notes.controller(controller).projects_change:
        return []
    return [status.look(controller, "the attachments changed, and the cluster has what they ask for")]


def _conclude(world: World, controller: Member, trial: ConfigTrial) -> SetMember:
    outcome = world.outcomes[controller.id]
    error = outcome.error
    if not error and "projects_busy" not in outcome.detail:
        error = AdapterError("change_unfinished", "the run ended before it reported the projects", "retryable")
    if error:
        tried = trial.failed(world.now, error.code, world.policy.retry_seconds)
        changes = ControllerNotes(projects_change=tried, last_adapter_error=error.as_note(world.now)).changes
        return SetMember(f"{error.code}: it is tried again", controller, controller.status, changes)
    done = ControllerNotes(projects_version=trial.digest, projects_change=None, projects_checked_at=world.now).changes
    reported = {key: outcome.detail[key] for key in (*PROJECTS, "users_version") if key in outcome.detail}
    return SetMember("the cluster has what the attachments say", controller, controller.status, {**reported, **done})


def _error_ended(controller: Member, stored: ControllerNotes) -> list[Step]:
    """The error of an earlier try is over once a later one has succeeded."""
    codes = ("change_unfinished", *attached.RUN_CODES)
    if stored.projects_change or stored.error_code not in codes:
        return []
    changes = ControllerNotes(last_adapter_error=None).changes
    return [SetMember("what the attachments ask for is carried out", controller, controller.status, changes)]


# -- what is written on an attachment ----------------------------------------------------------------------------


def _names(world: World, asked: Projects) -> list[Step]:
    """Users of new identities, noted before any play makes them: whoever is not noted is not let in."""
    return [
        SetAttachment("its identities have these users", one, {"adapter_detail": _with(one, noted)})
        for one in _reported(world, asked)
        if (noted := asked.desired.notes.get(one.id)) and one.differs({"adapter_detail": _with(one, noted)})
    ]


def _with(attachment: AttachedProject, noted: TenantNotes) -> Detail:
    return {**attachment.adapter_detail, **noted.changes}


def _reported(world: World, asked: Projects) -> list[AttachedProject]:
    """Attachments that something is written on. What is known of one with an unnamed identity is not all."""
    left_out = asked.desired.unnamed
    return [
        one
        for one in world.attachments
        if one.status != AttachmentStatus.DETACHED and not attached.unreadable_note(one) and one.id not in left_out
    ]


def _reports(world: World, asked: Projects, stored: ControllerNotes) -> list[Step]:
    steps: list[Step] = []
    for attachment in _reported(world, asked):
        changes = _changes(world, asked, stored, attachment)
        if attachment.differs(changes):
            new = {name: value for name, value in changes.items() if getattr(attachment, name) != value}
            steps.append(SetAttachment("as the cluster has it", attachment, new))
    return steps


def _changes(world: World, asked: Projects, stored: ControllerNotes, attachment: AttachedProject) -> Detail:
    reasons = [
        Reason(code=one.code, message=one.message[:MESSAGE_CHARS])
        for one in asked.desired.kept_out
        if one.attachment_id == attachment.id
    ]
    granted = asked.granted(attachment)
    waits = _waits(world, stored, attachment)
    detail: Detail = {"reasons": [one.stored() for one in limits.fit_reasons(reasons)], "waiting": waits}
    noted = asked.desired.notes.get(attachment.id)
    kept = {"granted": granted.stored(), **(noted.changes if noted else {})}
    return {
        "status": _status(attachment, waits),
        "health": str(Health.DEGRADED if reasons else Health.HEALTHY),
        "status_detail": detail,
        "adapter_detail": {**attachment.adapter_detail, **kept},
        "access": attachment_bundle.bundle(world.instance, asked, attachment) if granted.submission == OPEN else None,
    }


def _status(attachment: AttachedProject, waits: str | None) -> str:
    if attachment.status == AttachmentStatus.DETACHING and waits is None:
        return AttachmentStatus.DETACHED
    return attached.status_asked(attachment)


def _waits(world: World, stored: ControllerNotes, attachment: AttachedProject) -> str | None:
    """What a detach waits for."""
    if attachment.status != AttachmentStatus.DETACHING:
        return None
    if attached.account_of(attachment) in (stored.projects_busy or []):
        return f"jobs of the project that have not ended{_how_long(attachment)}"
    own = [
        host_name(one)
        for one in world.members
        if one.source_project_id == attachment.project_id and one.status != MemberStatus.DELETED
    ]
    return f"workers that the project contributed: {limits.named(own)}. Withdraw or remove them" if own else None


def _how_long(attachment: AttachedProject) -> str:
    try:
        when = read_detach(attachment.detach_parameters).cancel_jobs_at
    except IntentError as error:
        return f". None is cancelled: {error.message}"
    return f". They are cancelled at {stamp(when)}" if when else ""
