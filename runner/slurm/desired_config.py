"""The desired configuration of a cluster, as one digest, and whether it is live, refused or on trial. Pure.

The controller's notes keep `applied_config`, the digest that is live; `config_refused`, the one that was refused last,
and why; and `change`, the one on trial now. So nothing is tried twice, and nothing is forgotten half way.

On a shared runtime the partitions of projects that contribute workers belong to it; `contributors` has those that are
live. A partition is never taken out again, since that would end the jobs that wait for it.
"""

import hashlib
import json
from collections.abc import Iterable
from uuid import UUID

from runner.model.platform import AppInstance, Member, MemberStatus
from runner.slurm import notes
from runner.slurm.controller import find_controller
from runner.slurm.notes import ConfigTrial, RefusedConfig


def digest_of(value: object) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()[:16]


def digest(instance: AppInstance, members: Iterable[Member] = ()) -> str:
    """The same configuration gives the same digest, whether or not it can be applied."""
    return digest_with(instance, contributors(members))


def digest_with(instance: AppInstance, contributors: Iterable[UUID]) -> str:
    own = sorted(map(str, contributors))
    return digest_of([instance.app_version, instance.config or {}, *([own] if own else [])])


def contributors(members: Iterable[Member]) -> list[UUID]:
    """Projects with a partition of their own: those with a worker in the cluster, and those that had one before."""
    members = list(members)
    lead = find_controller(members)
    found = {one.source_project_id for one in members if one.source_project_id and one.status != MemberStatus.DELETED}
    return sorted(found | set((notes.controller(lead).contributors if lead else None) or ()), key=str)


def live_contributors(instance: AppInstance, controller: Member, members: Iterable[Member]) -> list[UUID]:
    """Projects whose partition the cluster was last seen to have."""
    members = list(members)
    if live(controller) == digest(instance, members):
        return contributors(members)
    return list(notes.controller(controller).contributors or ())


def users(instance: AppInstance) -> str:
    """The digest of the declared users, which every host must have."""
    return digest_of((instance.config or {}).get("users") or [])


def live(controller: Member) -> str | None:
    """The configuration that the cluster was last seen to serve; None before its first deploy is over."""
    return notes.controller(controller).applied_config


def refused(controller: Member) -> RefusedConfig | None:
    return notes.controller(controller).config_refused


def on_trial(controller: Member) -> ConfigTrial | None:
    return notes.controller(controller).change


def is_refused(instance: AppInstance, controller: Member, members: Iterable[Member] = ()) -> bool:
    last = refused(controller)
    return last is not None and last.digest == digest(instance, members)


def is_kept_back(instance: AppInstance, controller: Member, members: Iterable[Member] = ()) -> bool:
    """Whether a play must not render the desired configuration: it is neither live nor on trial."""
    applied, desired, trial = live(controller), digest(instance, members), on_trial(controller)
    return applied is not None and desired != applied and (trial is None or trial.digest != desired)


def is_pending(instance: AppInstance, controller: Member, members: Iterable[Member] = ()) -> bool:
    """Whether the desired configuration is neither live nor refused, or something is on trial still."""
    if on_trial(controller):
        return True
    applied, members = live(controller), list(members)
    if applied is None or digest(instance, members) == applied:
        return False
    return not is_refused(instance, controller, members)


def settled(controllers: Iterable[Member]) -> str | None:
    """The configuration that needs no further tick: the one that was refused, or the one that is live."""
    for controller in controllers:
        last = refused(controller)
        return (last.digest if last else None) or live(controller)
    return None
