"""The access bundle of an attachment: how the users of one project reach and use a shared cluster. Pure; no secret."""

from typing import Any

from runner.model.attached import AttachedProject
from runner.model.plan import Detail
from runner.model.platform import AppInstance
from runner.slurm.attached import Projects

# The platform takes 16 KiB, and an entry is below 300 bytes.
USERS_SHOWN = 40
# The time limit of the commands that are shown, unless the project's own is shorter.
MINUTES = 10


def bundle(instance: AppInstance, asked: Projects, attachment: AttachedProject) -> Detail | None:
    """The bundle; None as long as the cluster's own bundle is not there."""
    cluster: dict[str, Any] = instance.access or {}
    controller, ssh = cluster.get("controller"), cluster.get("ssh")
    if not isinstance(controller, dict) or not isinstance(ssh, dict):
        return None
    account, partitions = asked.account(attachment), asked.partitions(attachment)
    users = asked.users(attachment)
    first = users[0]["name"] if users else "USER"
    port = "" if controller.get("port") in (None, 22) else f"-p {controller['port']} "
    longest = asked.granted(attachment).limits.get("wall_minutes")
    minutes = min(MINUTES, longest) if longest else MINUTES
    options = f"--account={account} --partition={partitions[0]}" if partitions else f"--account={account}"
    return {
        "cluster_name": cluster.get("cluster_name"),
        "account": account,
        "partitions": partitions,
        "users": users[:USERS_SHOWN],
        **({"more_users": len(users) - USERS_SHOWN} if len(users) > USERS_SHOWN else {}),
        "ssh": {
            "command": f"ssh {port}{first}@{controller.get('host')}",
            "known_hosts": ssh.get("known_hosts"),
            "known_hosts_file": ssh.get("known_hosts_file"),
            "key": "your own, as it is in your identity on the platform",
        },
        "submit": {
            "batch": f"sbatch {options} --time={minutes} --wrap=hostname",
            "interactive": f"srun {options} --time={minutes} hostname",
        },
        "notes": [
            "Name the account if you belong to several projects: the default one is charged otherwise.",
            "Name a time limit: without --time it is an hour, and a project's own limit may be shorter.",
        ],
    }
