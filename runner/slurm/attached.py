"""The projects on a shared runtime: what is asked for them, and what the cluster must have for that. Pure.

runner/slurm/tenant/ has the mapping to accounts and users. Here it is asked with the records of a world.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final, Literal
from uuid import UUID

from pydantic import Field

from runner.intent.errors import IntentError
from runner.model.attached import AttachedProject
from runner.model.attachments import AttachmentStatus
from runner.model.plan import Detail
from runner.model.platform import AppInstance, Member, MemberStatus, Unreadable
from runner.model.records import Count, Record, Text, note
from runner.slurm import desired_config, notes
from runner.slurm.cluster_config import Config, cluster_name, read_config
from runner.slurm.controller import find_controller
from runner.slurm.desired_config import digest_of
from runner.slurm.tenant.accounting_state import Account
from runner.slurm.tenant.desired import MAIN, Desired, Project, account_name, desired, partitions
from runner.slurm.tenant.memory import TenantNotes

OPEN: Final = "open"
CLOSED: Final = "closed"
PROBLEM_CHARS = 300
# Errors of the run that carries it out, which end with the next one that succeeds.
RUN_CODES = ("accounting_unreachable", "accounting_unreadable", "projects_not_followed")
# What a tenant and a project decide. The other fields are the adapter's own.
ASKED = ("id", "project_id", "may_contribute", "trusted_contributor", "app_policy", "identities", "detach_parameters")


class Granted(Record):
    """`granted` of an attachment: what the cluster was last made to have for the project."""

    submission: Literal["open", "closed"]
    partitions: list[Text] = Field(default_factory=list)
    why_closed: Text | None = None
    limits: dict[str, Count] = Field(default_factory=dict)


class ProjectNotes(TenantNotes):
    """`adapter_detail` of an attachment."""

    granted: Annotated[Granted | None, note(Granted)] = None


@dataclass(frozen=True)
class Projects:
    """All that the cluster must have for its projects, and the digests by which a change is seen."""

    desired: Desired
    # Of Unix users, of accounts and of lists: what `playbooks/follow_attachments.yml` carries out.
    version: str
    users_version: str
    # Whether a record cannot be read, so that the users are not all.
    is_partial: bool = False

    @property
    def terms(self) -> Detail:
        return terms(self.desired)

    def account(self, attachment: AttachedProject) -> str | None:
        """The project's account; None if it gets none."""
        found = project_of(self.desired, attachment)
        return found.account if found else None

    def partitions(self, attachment: AttachedProject) -> list[str]:
        """Where its users may submit, the usual one first."""
        account = self.account(attachment)
        lists = self.desired.wanted.partitions
        return sorted((name for name in lists if account in lists[name]), key=lambda name: (name != MAIN, name))

    def users(self, attachment: AttachedProject) -> list[Detail]:
        """Its users by name, each with the identity that has the name."""
        noted = self.desired.notes.get(attachment.id)
        subjects = {text.partition(":")[0]: subject for subject, text in ((noted and noted.people) or {}).items()}
        account = next((one for one in self.desired.wanted.accounts if one.name == self.account(attachment)), None)
        return [{"name": name, "subject": subjects.get(name)} for name in (account.users if account else ())]

    def granted(self, attachment: AttachedProject) -> Granted:
        """What the cluster has for the project once this is carried out."""
        found = project_of(self.desired, attachment)
        account = next((one for one in self.desired.wanted.accounts if found and one.name == found.account), None)
        if found is None or account is None or not account.open:
            why = found.why if found else "its account belongs to another project"
            return Granted(submission=CLOSED, why_closed=why or "a record of the attachments cannot be read")
        limits = {key: value for key, value in vars(account.limits).items() if value is not None}
        return Granted(submission=OPEN, partitions=self.partitions(attachment), limits=limits)

    @property
    def variables(self) -> Detail:
        """Of each host, in any play: the users, whose accounts are not made by the roles.

        Left out while a record or a note cannot be read, or an attachment has no notes, which may be lost: a list
        without its users would lock them out.
        """
        if self.is_partial:
            return {"slurm_users_version": ""}
        unnamed = (one.attachment for one in self.desired.projects if one.attachment.id in self.desired.unnamed)
        if any(TenantNotes.read(one.adapter_detail).people is None for one in unnamed):
            return {"slurm_users_version": ""}
        return {**self.desired.host_users(), "slurm_users_version": self.users_version}


def terms(found: Desired) -> Detail:
    """Variables of the play that carries it out."""
    wanted = found.wanted.plain()
    return {
        "slurm_projects": {name: wanted[name] for name in ("tenant", "accounts", "partitions")},
        "slurm_projects_cancelled": list(found.cancelled),
    }


def status_asked(attachment: AttachedProject) -> str:
    """A requested attachment is treated as an active one: the report that it is active comes after the work."""
    return AttachmentStatus.ACTIVE if attachment.status == AttachmentStatus.REQUESTED else attachment.status


def digest(attachments: Iterable[AttachedProject]) -> str:
    """The same requests give the same digest, in any order of the list."""
    asked = sorted(attachments, key=lambda one: str(one.id))
    return digest_of([[status_asked(one), *(getattr(one, name) for name in ASKED)] for one in asked])


def cluster_partitions(members: Iterable[Member]) -> list[Detail]:
    """The partitions of a shared cluster's configuration."""
    return partitions(desired_config.contributors(members))


def _without_worker(contributors: Iterable[UUID], members: Iterable[Member]) -> list[UUID]:
    """Projects that have a partition, and no worker in it: what waits there does not start, and no user is admitted."""
    serving = {one.source_project_id for one in members if one.status != MemberStatus.DELETED}
    return [one for one in contributors if one not in serving]


def feature_of(member: Member) -> str | None:
    """The feature that puts a contributed worker into its project's partition; None of the owner's."""
    return account_name(member.source_project_id) if member.source_project_id else None


def is_trusted(member: Member, attachments: Iterable[AttachedProject]) -> bool:
    """Whether a contributed host on which others can become root is accepted. A suspended project's may be repaired."""
    return any(
        one.project_id == member.source_project_id
        and one.is_known
        and one.status != AttachmentStatus.DETACHED
        and one.trusted_contributor
        for one in attachments
    )


def projects(
    instance: AppInstance,
    members: Sequence[Member],
    attachments: Sequence[AttachedProject],
    unreadable: Sequence[Unreadable] = (),
    in_slurm: Mapping[str, Sequence[str]] | None = None,
) -> Projects:
    """What the records ask for. While a record of the list cannot be read, no user is let in who was not before.

    `in_slurm` is what Slurm remembers of users, if it was looked at.
    """
    controller = find_controller(members)
    registered = notes.controller(controller).cluster_name if controller else None
    unreadable = [*unreadable, *(bad for one in attachments if (bad := unreadable_note(one)))]
    readable = [one for one in attachments if unreadable_note(one) is None]
    asked = [one.model_copy(update={"status": status_asked(one)}) for one in readable]
    own = desired_config.live_contributors(instance, controller, members) if controller else []
    found = desired(
        registered or cluster_name(instance, _config(instance)),
        instance.org_id,
        asked,
        unreadable=unreadable,
        contributors=own,
        empty=_without_worker(own, members),
        in_slurm=in_slurm,
    )
    if unreadable:
        found = _nothing_new(found, readable)
    users = digest_of(found.host_users())
    # A project that leaves is looked at again, though it may have been closed before: its jobs decide when it is gone.
    leaving = sorted(str(one.id) for one in asked if one.status == AttachmentStatus.DETACHING)
    return Projects(found, digest_of([terms(found), users, leaving]), users, is_partial=bool(unreadable))


def unreadable_note(attachment: AttachedProject) -> Unreadable | None:
    """What is wrong with the notes of an attachment. Who has which user stands there, so nothing is decided without."""
    problem = next(iter(ProjectNotes.read(attachment.adapter_detail).problems), None)
    if problem is None:
        return None
    return Unreadable("attachment", str(attachment.id), problem.message[:PROBLEM_CHARS], code=problem.code)


def _config(instance: AppInstance) -> Config:
    try:
        return read_config(instance)
    except IntentError:
        return Config.model_validate({})


def _nothing_new(found: Desired, attachments: Sequence[AttachedProject]) -> Desired:
    """Only what was granted before: no account that was not open opens, and no user comes into one."""
    before = {
        str(one.attachment.project_id): ProjectNotes.read(one.attachment.adapter_detail) for one in found.projects
    }
    accounts = tuple(_narrowed(one, before[one.project_id]) for one in found.wanted.accounts)
    is_open = {one.name for one in accounts if one.open}
    lists = {
        name: tuple(one for one in admitted if one in is_open) for name, admitted in found.wanted.partitions.items()
    }
    # Nor does any user come on record, or the next look would take them for known.
    on_record = {one.id: TenantNotes.read(one.adapter_detail) for one in attachments}
    return replace(found, wanted=replace(found.wanted, accounts=accounts, partitions=lists), notes=on_record)


def _narrowed(account: Account, noted: ProjectNotes) -> Account:
    was_open = noted.granted is not None and noted.granted.submission == OPEN
    recorded = {text.partition(":")[0] for text in (noted.people or {}).values()}
    users = tuple(one for one in account.users if one in recorded)
    return replace(account, open=account.open and was_open, users=users)


def account_of(attachment: AttachedProject) -> str:
    return account_name(attachment.project_id)


def project_of(found: Desired, attachment: AttachedProject) -> Project | None:
    """How the attachment was read; None if its account belongs to another project."""
    return next((one for one in found.projects if one.attachment.id == attachment.id), None)
