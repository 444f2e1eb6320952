"""Variables for the plays of a cluster: its configuration, its users and its nodes. Pure."""

from collections.abc import Sequence
from uuid import UUID

from runner.intent.errors import IntentError
from runner.model.app import Variables
from runner.model.attached import AttachedProject
from runner.model.plan import Detail
from runner.model.platform import AppInstance, Member
from runner.slurm import attached, desired_config, users
from runner.slurm.cluster_config import Config, cluster_name, read_config
from runner.slurm.controller import find_controller
from runner.slurm.node_names import node_name, nodes_on_record


def variables(
    instance: AppInstance,
    members: Sequence[Member],
    on_record: Sequence[Member],
    attachments: Sequence[AttachedProject] | None = None,
) -> Variables:
    declared: Detail = {"slurm_users_version": ""}
    controller = find_controller(members)
    keep = controller is not None and desired_config.is_kept_back(instance, controller, on_record)
    desired = desired_config.digest(instance, on_record)
    try:
        config = read_config(instance)
        # Left out where they cannot be read: an empty list would lock every user out.
        declared = users.variables(config.users) | {"slurm_users_version": desired_config.users(instance)}
    except IntentError:
        # A deploy is refused then; a running cluster keeps its configuration, and workers can still join and leave.
        config, keep = Config.model_validate({}), True
    of_member: dict[UUID, Detail] = {one.id: {"slurm_node_name": name} for one in members if (name := node_name(one))}
    if instance.is_shared:
        declared = _shared(instance, on_record, attachments)
        for member in members:
            if feature := attached.feature_of(member):
                trusted = attached.is_trusted(member, attachments or ())
                own = {"slurmd_feature": feature, "slurm_trusted_contributor": trusted}
                of_member[member.id] = {**of_member.get(member.id, {}), **own}
    if keep:
        desired = (desired_config.live(controller) if controller else None) or ""
    shared: Detail = {
        "slurm_cluster_name": cluster_name(instance, config),
        "slurm_config": {key: str(value) for key, value in sorted(config.slurm.items())},
        **declared,
        # A play for another reason renders neither a refused configuration nor one that is not on trial yet.
        "slurm_config_keep": keep,
        "slurm_desired_config": desired,
        **nodes_on_record(members, on_record),
    }
    return Variables(
        shared=shared,
        of_member=of_member,
        # A project's identity with such a name must not keep every play from the host: there its user is refused.
        reserved_logins=frozenset()
        if instance.is_shared
        else frozenset(str(user["name"]) for user in declared.get("slurm_users") or []),
    )


def _shared(
    instance: AppInstance, on_record: Sequence[Member], attachments: Sequence[AttachedProject] | None
) -> Detail:
    """Of a cluster that several projects share. Who may use it is said by their attachments and not by its config."""
    made: Detail = {"slurm_shared": True, "slurmctld_partitions": attached.cluster_partitions(on_record)}
    if attachments is None:
        return {**made, "slurm_users_version": ""}  # as above: left out
    return {**made, **attached.projects(instance, on_record, attachments).variables}
