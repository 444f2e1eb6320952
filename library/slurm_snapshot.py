#!/usr/bin/python3
"""One fast look at a cluster, from its controller."""

from __future__ import annotations

import pwd
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.slurm_look import ask, look, nodes_command, run
from ansible.module_utils.slurm_state import has_come, is_held, is_serving, parse_nodes

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
      The time by the clock of the machine that runs Ansible. Given, the fact C(slurm_join_terms) is set too, with what
      a worker is held to before it joins.
author: [gpuaas-slurm]
"""

POLL_SECONDS = 0.15


def wait_for(names: list[str], started: dict[str, float], command: tuple[str, ...], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        nodes = parse_nodes(ask(*command)) or {}
        if all(name in nodes and has_come(nodes[name], started.get(name)) for name in names):
            return
        if time.monotonic() >= deadline:
            return
        time.sleep(POLL_SECONDS)


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
    if module.params["wait_for_nodes"]:
        started = {name: float(at) for name, at in module.params["started"].items()}
        wait_for(module.params["wait_for_nodes"], started, command, module.params["timeout"])
    # A look before a join is for the join alone; what people are shown comes with the look at what came of it.
    shown = module.params["reference_epoch"] is None
    snapshot = look(command, Path(module.params["config_path"]), samples=shown)
    serving = sorted(name for name, node in (snapshot["nodes"] or {}).items() if is_serving(node))
    held = sorted(name for name, node in (snapshot["nodes"] or {}).items() if is_held(node))
    facts = {"slurm_snapshot": snapshot, "slurm_serving_nodes": serving, "slurm_held_nodes": held}
    if module.params["reference_epoch"] is not None:
        facts["slurm_join_terms"] = join_terms(module.params["reference_epoch"])
    module.exit_json(changed=False, snapshot=snapshot, ansible_facts=facts)


if __name__ == "__main__":
    main()
