"""From attachments to what a shared cluster must have: accounts, users, lists of partitions, Unix users. Pure.

Submission is denied by default. A project may submit if its attachment is active, its policy can be read and says so;
everything else about an attachment (a status that is not known, a policy or a record that cannot be read) keeps it
closed.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from runner.intent.errors import IntentError
from runner.model.attachments import Attachment, AttachmentStatus
from runner.model.platform import Unreadable
from runner.slurm.tenant.accounting_state import Account, Limits, Wanted
from runner.slurm.tenant.identities import KeptOut, Person, Roster, assign
from runner.slurm.tenant.memory import TenantNotes, as_text, from_notes, from_slurm, merged, noted, without_room
from runner.slurm.tenant.policy import AppPolicy, read_policy

MAIN = "main"
SHELL = "/bin/bash"
# The time limit of a job that names none. A project with a shorter limit has to name one.
DEFAULT_TIME = "01:00:00"
ACCOUNT_CHARS = 12


@dataclass(frozen=True)
class Project:
    """One attachment, read: its account, whether its users may submit, and where."""

    attachment: Attachment
    account: str
    policy: AppPolicy
    open: bool
    # Why it is closed, as an operator reads it; empty if it is open.
    why: str = ""


@dataclass(frozen=True)
class Desired:
    wanted: Wanted
    projects: tuple[Project, ...]
    people: Mapping[str, Person]
    keys: Mapping[str, Sequence[str]]
    # `adapter_detail` of each attachment, as far as it is ours.
    notes: Mapping[UUID, TenantNotes]
    kept_out: tuple[KeptOut, ...] = ()
    # Attachments with identities that get no user before Slurm was asked which users there were.
    unnamed: frozenset[UUID] = frozenset()
    # Accounts whose jobs are to be cancelled: their project leaves, and its policy does not wait.
    cancelled: tuple[str, ...] = field(default=())

    def host_users(self) -> dict[str, Any]:
        """For plays: the Unix users of every host, and the keys for logins on the controller."""
        listed = sorted(self.people.values(), key=lambda one: one.name)
        return {
            "slurm_users": [{"name": one.name, "uid": one.uid, "gid": one.gid, "shell": SHELL} for one in listed],
            "slurm_user_keys": {one.name: list(self.keys.get(one.digest, ())) for one in listed},
        }


def tenant_name(org_id: UUID) -> str:
    return f"t_{org_id.hex[:ACCOUNT_CHARS]}"


def account_name(project_id: UUID) -> str:
    return f"p_{project_id.hex[:ACCOUNT_CHARS]}"


def partitions(contributors: Iterable[UUID]) -> list[dict[str, Any]]:
    """The partitions of slurm.conf: the tenant's workers, and one for the workers of each contributing project.

    Who is admitted is not here: a configuration does not change when a project is attached, allowed or suspended.
    """
    own = sorted({account_name(one) for one in contributors})
    return [
        {"name": MAIN, "nodeset": "workers", "feature": "worker", "default": True, **_LISTED},
        *({"name": name, "nodeset": f"workers_{name}", "feature": name, **_LISTED} for name in own),
    ]


_LISTED = {"default_time": DEFAULT_TIME, "account_list": True}


def desired(
    cluster: str,
    org_id: UUID,
    attachments: Sequence[Attachment],
    *,
    unreadable: Collection[Unreadable] = (),
    contributors: Collection[UUID] = (),
    empty: Collection[UUID] = (),
    in_slurm: Mapping[str, Sequence[str]] | None = None,
) -> Desired:
    """What the cluster must have for a complete list of attachments. One that is not complete must not come here.

    `unreadable` records are of attachments that exist. Their accounts are not listed, so they are closed and keep
    their users; so is one whose notes cannot be read, since they say who has which Unix user. `in_slurm` is what Slurm
    remembers of each account (`Snapshot.remembered`). Without it only identities are let in whose user is certain: the
    notes of other attachments may be lost, and a name or a number is never given to two. `contributors` have a
    partition, which admits no account while it is among the `empty` ones.
    """
    kept_out = [KeptOut(_id(one), "attachment_unreadable", str(one)) for one in unreadable]
    notes = {one.id: TenantNotes.read(one.adapter_detail) for one in attachments}
    kept_out += [KeptOut(one, notes[one].problems[0].code, notes[one].problems[0].message) for one in _broken(notes)]
    attachments = [one for one in attachments if not notes[one.id].problems]
    projects, collided = _projects(attachments, notes, contributors)
    kept_out += collided
    present = [one for one in projects if one.attachment.status != AttachmentStatus.DETACHED]
    remembered = [from_notes(notes[one.id]) for one in sorted(attachments, key=lambda one: str(one.id))]
    memory = merged(*remembered, from_slurm(in_slurm or {}))
    without_notes = {one for one, found in notes.items() if found.people is None}
    roster = assign([one.attachment for one in present], memory, without_notes if in_slurm is None else None)
    for one in present:
        members = _members(one, roster)
        for digest in without_room(notes[one.attachment.id].people or {}, members):
            roster.leave_out(one.attachment.id, digest)
    kept_out += [KeptOut(one.attachment.id, "attachment_closed", one.why) for one in projects if _is_wrong(one)]
    accounts = tuple(_account(one, roster, notes[one.attachment.id]) for one in projects)
    return Desired(
        wanted=Wanted(cluster, tenant_name(org_id), accounts, _lists(projects, contributors, empty)),
        projects=tuple(projects),
        people=dict(sorted(roster.people.items())),
        keys=roster.keys,
        notes={one.attachment.id: _notes(one, roster, notes[one.attachment.id]) for one in projects},
        kept_out=tuple(kept_out + roster.kept_out),
        unnamed=frozenset(roster.unnamed),
        cancelled=tuple(
            one.account
            for one in projects
            if one.attachment.status == AttachmentStatus.DETACHING and one.policy.detach_jobs == "cancel"
        ),
    )


def _projects(
    attachments: Sequence[Attachment], notes: Mapping[UUID, TenantNotes], contributors: Collection[UUID]
) -> tuple[list[Project], list[KeptOut]]:
    """One project each. Of two with the same account the one that has it on record keeps it, else the older one.

    A project that was detached and is attached again has two records; the earlier one says nothing any more.
    """
    found: dict[str, Project] = {}
    kept_out: list[KeptOut] = []
    latest = {one.project_id: one for one in sorted(attachments, key=_how_late)}
    ordered = sorted(
        latest.values(),
        key=lambda one: (
            notes[one.id].account != account_name(one.project_id),
            one.created_at is None,
            str(one.created_at),
            str(one.id),
        ),
    )
    for attachment in ordered:
        one = _read(attachment, attachment.project_id in contributors)
        if one.account in found:
            other = found[one.account].attachment
            why = f"project {attachment.project_id} would have the account {one.account} of project {other.project_id}"
            kept_out.append(KeptOut(attachment.id, "account_collision", f"{why}. It gets none"))
            continue
        found[one.account] = one
    return [found[name] for name in sorted(found)], kept_out


def _how_late(attachment: Attachment) -> tuple[bool, bool, str, str]:
    is_over = attachment.status == AttachmentStatus.DETACHED
    return not is_over, attachment.created_at is not None, str(attachment.created_at), str(attachment.id)


def _read(attachment: Attachment, contributes: bool) -> Project:
    account = account_name(attachment.project_id)
    try:
        policy = read_policy(attachment.app_policy)
    except IntentError as error:
        return Project(attachment, account, AppPolicy.model_validate({}), False, error.message)
    if not attachment.is_known:
        why = f"the status {attachment.status!r} is not known to this version"
    elif not attachment.is_active:
        why = f"its attachment is {attachment.status}"
    elif not policy.submit:
        why = "its policy does not allow it to submit"
    elif not policy.partitions:
        why = "its policy names no partition"
    elif MAIN not in policy.partitions and not contributes:
        why = "its policy names the workers that it contributed, and none is in the cluster"
    else:
        return Project(attachment, account, policy, True)
    return Project(attachment, account, policy, False, why)


def _broken(notes: Mapping[UUID, TenantNotes]) -> list[UUID]:
    """Attachments whose notes cannot be read."""
    return [one for one, found in notes.items() if found.problems]


def _is_wrong(one: Project) -> bool:
    """Whether it is closed because something cannot be read, and not because a person wants it so."""
    return bool(one.why) and (not one.attachment.is_known or one.why.startswith("app_policy"))


def _account(one: Project, roster: Roster, notes: TenantNotes) -> Account:
    members = [roster.people[digest] for digest in roster.of_attachment.get(one.attachment.id, [])]
    return Account(
        name=one.account,
        project_id=str(one.attachment.project_id),
        open=one.open,
        users=() if _leaves(one) else tuple(sorted(person.name for person in members)),
        limits=one.policy.limits.read() if one.open else Limits(),
        memory=as_text(merged(members, from_notes(notes)).values()),
    )


def _leaves(one: Project) -> bool:
    """No job of it starts any more: as of removed users, pending ones are cancelled and the last one is waited for."""
    return one.attachment.status == AttachmentStatus.DETACHING


def _notes(one: Project, roster: Roster, before: TenantNotes) -> TenantNotes:
    return TenantNotes(account=one.account, people=noted(before.people or {}, _members(one, roster)))


def _members(one: Project, roster: Roster) -> list[tuple[str, Person]]:
    """The identities of a project that are let in, by subject."""
    found = roster.of_attachment.get(one.attachment.id, [])
    return [(roster.subjects[digest], roster.people[digest]) for digest in found]


def _lists(
    projects: Sequence[Project], contributors: Collection[UUID], empty: Collection[UUID]
) -> dict[str, tuple[str, ...]]:
    to_main = [one.account for one in projects if one.open and MAIN in one.policy.partitions]
    lists = {MAIN: tuple(to_main)}
    by_account = {one.account: one for one in projects}
    closed = {account_name(one) for one in empty}
    for name in sorted({account_name(one) for one in contributors}):
        owner = None if name in closed else by_account.get(name)
        admitted = {name} if owner and owner.open and "own" in owner.policy.partitions else set()
        # Only of a project that is attached: the workers of one that left admit no account.
        if owner and owner.policy.share_workers and owner.attachment.is_active:
            admitted |= set(to_main)
        lists[name] = tuple(sorted(admitted))
    return lists


def _id(one: Unreadable) -> UUID:
    try:
        return UUID(one.id or "")
    except ValueError:
        return UUID(int=0)
