#!/usr/bin/python3
"""Have a worker run the configuration that its controller serves."""

from __future__ import annotations

import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host.claim import CLAIM_ARGUMENT
from ansible.module_utils.host.digest import file_version
from ansible.module_utils.host.errors import REPAIRABLE, AdapterError
from ansible.module_utils.host.lock import host_lock
from ansible.module_utils.host.packages import installed_versions
from ansible.module_utils.host.units import listening, request, state_of

DOCUMENTATION = r"""
module: slurm_follow
short_description: Have a configless slurmd run the configuration that its controller serves
description:
  - A slurmd to which the controller sent the configuration has it within seconds. Any other slurmd is restarted and
    fetches it; its jobs keep running.
options:
  version: {type: str, required: true, description: Digest of the slurm.conf that the controller serves.}
  cache: {type: path, default: /var/lib/slurm/slurmd/conf-cache/slurm.conf, description: What slurmd fetched.}
  port: {type: int, default: 6818, description: The port at which slurmd listens.}
  patience: {type: float, default: 3, description: Seconds to wait for a configuration that the controller sent.}
  timeout: {type: float, default: 45, description: Seconds for a restarted slurmd to fetch it and listen.}
  claim: {type: dict, default: {}, description: "Instance, member and claim number; set by the action plugin."}
author: [gpuaas-slurm]
"""

RETURN = r"""
config_version: {type: str, description: Digest of what slurmd runs with now., returned: success}
package_version: {type: str, description: Version of the installed package., returned: success}
restarted: {type: bool, description: Whether slurmd had to be restarted., returned: success}
"""

POLL_SECONDS = 0.1


def arrives(path: Path, version: str, seconds: float, port: int | None = None) -> bool:
    deadline = time.monotonic() + seconds
    while file_version(path) != version or (port is not None and not listening(port)):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def follow(path: Path, version: str, port: int, patience: float, seconds: float) -> bool:
    """Returns whether slurmd had to be restarted."""
    if arrives(path, version, patience):
        return False
    if state_of("slurmd").get("ActiveState") != "active":
        raise AdapterError(
            "slurmd_not_active",
            "slurmd does not run on the host. Start it, or run playbooks/recover.yml, then retry.",
            REPAIRABLE,
        )
    request("restart", "slurmd")
    if not arrives(path, version, seconds, port):
        raise AdapterError(
            "config_not_fetched",
            "slurmd was restarted but does not run the controller's configuration. Read `journalctl -u slurmd` there.",
            REPAIRABLE,
        )
    return True


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **CLAIM_ARGUMENT,
            "version": {"type": "str", "required": True},
            "cache": {"type": "path", "default": "/var/lib/slurm/slurmd/conf-cache/slurm.conf"},
            "port": {"type": "int", "default": 6818},
            "patience": {"type": "float", "default": 3},
            "timeout": {"type": "float", "default": 45},
        },
        supports_check_mode=True,
    )
    wanted, path = module.params, Path(module.params["cache"])
    restarted = False
    if not module.check_mode:
        with host_lock(module, "having slurmd follow its controller"):
            restarted = follow(path, wanted["version"], wanted["port"], wanted["patience"], wanted["timeout"])
    module.exit_json(
        changed=restarted,
        restarted=restarted,
        config_version=file_version(path),
        package_version=installed_versions(["slurmd"]).get("slurmd"),
    )


if __name__ == "__main__":
    main()
