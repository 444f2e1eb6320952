"""Variables for the plays of a cluster: its configuration, its users and its nodes. Pure."""

from collections.abc import Sequence

from runner.intent.errors import IntentError
from runner.model.app import Variables
from runner.model.plan import Detail
from runner.model.platform import AppInstance, Member
from runner.slurm import desired_config, users
from runner.slurm.cluster_config import Config, cluster_name, read_config
from runner.slurm.controller import find_controller
from runner.slurm.node_names import node_name, nodes_on_record


def variables(instance: AppInstance, members: Sequence[Member], on_record: Sequence[Member]) -> Variables:
    declared: Detail = {"slurm_users_version": ""}
    controller = find_controller(members)
    keep = controller is not None and desired_config.is_kept_back(instance, controller)
    desired = desired_config.digest(instance)
    try:
        config = read_config(instance)
        # Left out where they cannot be read: an empty list would lock every user out.
        declared = users.variables(config.users) | {"slurm_users_version": desired_config.users(instance)}
    except IntentError:
        # A deploy is refused then; a running cluster keeps its configuration, and workers can still join and leave.
        config, keep = Config.model_validate({}), True
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
        of_member={one.id: {"slurm_node_name": name} for one in members if (name := node_name(one))},
        reserved_logins=frozenset(user.name for user in config.users),
    )
