"""What plays of a cluster are told: its configuration, its users and its nodes. Pure."""

from collections.abc import Sequence

from runner.intent.errors import IntentError
from runner.model.app import Variables
from runner.model.names import CONTROLLER
from runner.model.plan import Detail
from runner.model.platform import AppInstance, Member
from runner.slurm import desired_config, users
from runner.slurm.cluster_config import Config, cluster_name, read_config
from runner.slurm.node_names import node_name, nodes_on_record


def variables(instance: AppInstance, members: Sequence[Member], on_record: Sequence[Member]) -> Variables:
    declared: Detail = {"slurm_people_version": ""}
    controller = next((member for member in members if member.component_key == CONTROLLER), None)
    keep = controller is not None and desired_config.is_kept_back(instance, controller)
    wished = desired_config.digest(instance)
    try:
        config = read_config(instance)
        # Left out where they cannot be read: an empty list would lock every user out.
        declared = users.variables(config.users) | {"slurm_people_version": desired_config.people(instance)}
    except IntentError:
        # A deploy is refused then; a cluster that runs keeps what it has, and its workers come and go.
        config, keep = Config.model_validate({}), True
    if keep:
        wished = (desired_config.live(controller) if controller else None) or ""
    shared: Detail = {
        "slurm_cluster_name": cluster_name(instance, config),
        "slurm_config": {key: str(value) for key, value in sorted(config.slurm.items())},
        **declared,
        # A play that comes for another reason renders neither what was refused nor what is not on trial yet.
        "slurm_config_keep": keep,
        "slurm_wish": wished,
        **nodes_on_record(members, on_record),
    }
    return Variables(
        shared=shared,
        of_member={one.id: {"slurm_node_name": name} for one in members if (name := node_name(one))},
        reserved_logins=frozenset(user.name for user in config.users),
    )
