#!/usr/bin/python3
"""A snapshot of a cluster, taken on its controller."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host.accounts import user_ids
from ansible.module_utils.slurm.commands import ask, look, nodes_command, run
from ansible.module_utils.slurm.parse import has_registered, is_serving, parse_nodes

DOCUMENTATION = r"""
module: slurm_snapshot
short_description: Report nodes, jobs and daemons of the cluster this controller runs
description:
  - Read-only. A value that cannot be read is reported as unknown (null), never as empty.
  - With O(wait_for_nodes) it waits until each of these nodes serves, or is only drained, for at most O(timeout). A
    timeout is not a failure; the snapshot shows the nodes as they are.
options:
  config_path: {type: path, default: /etc/slurm/slurm.conf, description: The live configuration.}
  wait_for_nodes: {type: list, elements: str, default: [], description: Nodes that should serve.}
  started:
    type: dict
    default: {}
    description: >-
      Node to the start time of its slurmd, in seconds by the worker's clock, as Slurm shows it. Such a node counts only
      once this slurmd has registered.
  timeout: {type: float, default: 20, description: Seconds to wait for the nodes.}
  reference_epoch:
    type: float
    description: >-
      The time by the clock of the machine that runs Ansible. With it C(join_terms) is returned too: the conditions for
      a worker that joins.
author: [gpuaas-slurm]
"""

RETURN = r"""
snapshot: {type: dict, returned: always, description: "Nodes, jobs, reservations, partitions and daemons."}
serving: {type: list, returned: always, description: Nodes that take jobs.}
missing: {type: list, returned: always, description: Nodes that did not serve in time.}
join_terms: {type: dict, returned: with O(reference_epoch), description: "Clock, slurm user and a munge credential."}
"""

POLL_SECONDS = 0.15


def wait_for(names: list[str], started: dict[str, float], command: tuple[str, ...], seconds: float) -> list[str]:
    """The nodes that did not register in time."""
    deadline = time.monotonic() + seconds
    while True:
        nodes = parse_nodes(ask(*command)) or {}
        missing = [name for name in names if name not in nodes or not has_registered(nodes[name], started.get(name))]
        if not missing or time.monotonic() >= deadline:
            return missing
        time.sleep(POLL_SECONDS)


def read_times(started: dict[str, Any]) -> dict[str, float]:
    """The valid times only: workers report them, and a wrong value must not make the snapshot fail."""
    return {name: float(at) for name, at in started.items() if isinstance(at, int | float) and 0 < at < 2**33}


def join_terms(reference_epoch: float) -> dict[str, Any]:
    """The controller's clock, its slurm user, and a credential with which a worker can check its munge key.

    The credential is made as the user nobody, so that it grants no rights.
    """
    code, credential, _ = run("runuser", "-u", "nobody", "--", "munge", "--no-input")
    return {
        "skew": time.time() - reference_epoch,
        "slurm_user": user_ids("slurm"),
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
    started = read_times(module.params["started"])
    missing = wait_for(names, started, command, module.params["timeout"]) if names else []
    # The snapshot before a join needs no samples; the one after it has them.
    with_samples = module.params["reference_epoch"] is None
    snapshot = look(command, Path(module.params["config_path"]), samples=with_samples)
    serving = sorted(name for name, node in (snapshot["nodes"] or {}).items() if is_serving(node))
    terms = {} if with_samples else {"join_terms": join_terms(module.params["reference_epoch"])}
    module.exit_json(changed=False, snapshot=snapshot, serving=serving, missing=missing, **terms)


if __name__ == "__main__":
    main()
