#!/usr/bin/python3
"""One fast look at a cluster, from its controller."""

from __future__ import annotations

import pwd
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.slurm.commands import ask, look, nodes_command, run
from ansible.module_utils.slurm.parse import has_come, is_serving, parse_nodes

DOCUMENTATION = r"""
module: slurm_snapshot
short_description: Report nodes, jobs and daemons of the cluster this controller runs
description:
  - Read-only. What cannot be learnt is reported as unknown (null), never as empty.
  - With O(wait_for_nodes) it looks again until each of these nodes serves, or is only held by a drain, or O(timeout)
    is over. Time running out is no failure, the snapshot then says what is.
options:
  config_path: {type: path, default: /etc/slurm/slurm.conf, description: The live configuration.}
  wait_for_nodes: {type: list, elements: str, default: [], description: Nodes that should serve.}
  started:
    type: dict
    default: {}
    description: >-
      Node to the moment its slurmd started, in seconds by the worker's own clock, which is the one Slurm shows too.
      Such a node serves only once this slurmd has registered.
  timeout: {type: float, default: 20, description: Seconds to wait for the nodes.}
  reference_epoch:
    type: float
    description: >-
      The time by the clock of the machine that runs Ansible. Given, C(join_terms) is returned too, with what a worker
      is held to before it joins.
author: [gpuaas-slurm]
"""

RETURN = r"""
snapshot: {type: dict, returned: always, description: "Nodes, jobs, reservations, partitions and daemons."}
serving: {type: list, returned: always, description: Nodes that take jobs.}
missing: {type: list, returned: always, description: Nodes that were waited for in vain.}
join_terms: {type: dict, returned: with O(reference_epoch), description: "Clock, slurm user and a munge credential."}
"""

POLL_SECONDS = 0.15


def wait_for(names: list[str], started: dict[str, float], command: tuple[str, ...], seconds: float) -> list[str]:
    """The nodes that did not come in time."""
    deadline = time.monotonic() + seconds
    while True:
        nodes = parse_nodes(ask(*command)) or {}
        missing = [name for name in names if name not in nodes or not has_come(nodes[name], started.get(name))]
        if not missing or time.monotonic() >= deadline:
            return missing
        time.sleep(POLL_SECONDS)


def read_moments(started: dict[str, Any]) -> dict[str, float]:
    """Without what is not a time: these are the workers' words, and one of them must not keep this look from ending."""
    return {name: float(at) for name, at in started.items() if isinstance(at, int | float) and 0 < at < 2**33}


def join_terms(reference_epoch: float) -> dict[str, Any]:
    """What only the controller can say: its clock, its user, and a credential by which a worker shows its key is right.

    The credential is made as nobody, for nobody may do anything with it but decode it.
    """
    code, credential, _ = run("runuser", "-u", "nobody", "--", "munge", "--no-input")
    try:
        account: Any = pwd.getpwnam("slurm")
    except KeyError:
        account = None
    return {
        "skew": time.time() - reference_epoch,
        "slurm_user": {"uid": account.pw_uid, "gid": account.pw_gid} if account else None,
        "credential": credential.strip() if code == 0 else None,
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "config_path": {"type": "path", "default": "/etc/slurm/slurm.conf"},
            "wait_for_nodes": {"type": "list", "elements": "str", "default": []},
            "started": {"type": "dict", "default": {}},
            "timeout": {"type": "float", "default": 20},
            "reference_epoch": {"type": "float"},
        },
        supports_check_mode=True,
    )
    command = nodes_command()
    names = module.params["wait_for_nodes"]
    started = read_moments(module.params["started"])
    missing = wait_for(names, started, command, module.params["timeout"]) if names else []
    # A look before a join is for the join alone; what people are shown comes with the look at what came of it.
    shown = module.params["reference_epoch"] is None
    snapshot = look(command, Path(module.params["config_path"]), samples=shown)
    serving = sorted(name for name, node in (snapshot["nodes"] or {}).items() if is_serving(node))
    terms = {} if shown else {"join_terms": join_terms(module.params["reference_epoch"])}
    module.exit_json(changed=False, snapshot=snapshot, serving=serving, missing=missing, **terms)


if __name__ == "__main__":
    main()
