#!/usr/bin/python3
"""See that a worker runs the configuration its controller serves."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host.claim import CLAIM_ARGUMENT
from ansible.module_utils.host.errors import REPAIRABLE, AdapterError
from ansible.module_utils.host.lock import host_lock
from ansible.module_utils.host.packages import installed_versions
from ansible.module_utils.host.units import listening, show
from ansible.module_utils.slurm.units import restart

DOCUMENTATION = r"""
module: slurm_follow
short_description: Have a configless slurmd run the configuration that its controller serves
description:
  - A slurmd that was handed the configuration has it already, or has it in a moment. One that was not fetches it when
    it is restarted; the jobs on it run on.
options:
  version: {type: str, required: true, description: Digest of the slurm.conf that the controller serves.}
  cache: {type: path, default: /var/lib/slurm/slurmd/conf-cache/slurm.conf, description: What slurmd fetched.}
  port: {type: int, default: 6818, description: The port at which slurmd listens.}
  patience: {type: float, default: 3, description: Seconds for what the controller handed out to arrive.}
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


def digest(path: Path) -> str | None:
    try:
        return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return None


def arrives(path: Path, version: str, seconds: float, port: int | None = None) -> bool:
    deadline = time.monotonic() + seconds
    while digest(path) != version or (port is not None and not listening(port)):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def follow(path: Path, version: str, port: int, patience: float, seconds: float) -> bool:
    """Whether slurmd had to be restarted for it."""
    if arrives(path, version, patience):
        return False
    if show(["slurmd"]).get("slurmd", {}).get("ActiveState") != "active":
        raise AdapterError(
            "slurmd_not_active", "slurmd does not run here. Start it, or recover the worker.", REPAIRABLE
        )
    restart("slurmd")
    if not arrives(path, version, seconds, port):
        raise AdapterError(
            "config_not_fetched",
            "slurmd was restarted but does not run the controller's configuration. Read `journalctl -u slurmd`.",
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
        config_version=digest(path),
        package_version=installed_versions(["slurmd"]).get("slurmd"),
    )


if __name__ == "__main__":
    main()
