#!/usr/bin/python3
"""Put a configuration live after a trial by Slurm itself, and revert it if the cluster does not serve."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host.claim import CLAIM_ARGUMENT
from ansible.module_utils.host.digest import content_version
from ansible.module_utils.host.errors import INTERVENTION, AdapterError
from ansible.module_utils.host.files import find
from ansible.module_utils.host.ledger import Ledger, write_atomically
from ansible.module_utils.host.lock import host_lock
from ansible.module_utils.slurm.activate import DESIRED_CONFIG, Activation
from ansible.module_utils.slurm.conf import PARTITION_ARGUMENT, Partition, keep_controller_name, render
from ansible.module_utils.slurm.kept import Kept
from ansible.module_utils.slurm.trial import run_trial
from ansible.module_utils.slurm.versions import installed_slurm

DOCUMENTATION = r"""
module: slurm_config
short_description: Render slurm.conf, try it with a slurmctld beside the live one, put it live and watch the controller
description:
  - The rendered text is tried by a real slurmctld with a scratch state directory, another port and no accounting.
    Once that logs that it is the primary controller it is stopped, and the files are replaced. If it refuses the
    configuration, the live files stay.
  - On a controller that serves already, the configuration is loaded by a reconfigure if that is enough, otherwise by a
    restart. If the controller does not serve with it, the last good one is restored and the module fails with
    C(config_taken_back). A document on the host marks a change on trial, so the next run finishes a run that was
    killed.
  - The first configuration of a host is only written. The task that starts slurmctld checks whether it runs.
options:
  owner: {type: str, required: true, description: "Owner in the ledger, as component/role."}
  directory: {type: path, default: /etc/slurm, description: Where the configuration lives.}
  managed: {type: dict, default: {}, description: The adapter's own settings.}
  requested: {type: dict, default: {}, description: Settings of the instance.}
  partitions:
    type: list
    elements: dict
    default: []
    description: The partitions, each with the node set of its workers.
    suboptions:
      name: {type: str, required: true, description: The partition's name.}
      nodeset: {type: str, required: true, description: The node set's name.}
      feature: {type: str, required: true, description: The feature that workers of the node set register with.}
      default: {type: bool, default: false, description: Whether jobs without a partition run here.}
      max_time: {type: str, default: INFINITE, description: The longest time limit of a job.}
      state: {type: str, choices: [UP, DOWN, DRAIN, INACTIVE], default: UP, description: State at slurmctld's start.}
      default_time: {type: str, default: "", description: The time limit of a job that names none; unset if empty.}
      account_list:
        type: bool
        default: false
        description: Whether it admits only accounts of the list that M(slurm_projects) keeps, and none without it.
  companions: {type: dict, default: {}, description: "Other files of the directory, name to text."}
  slurm_user: {type: str, default: slurm, description: User that slurmctld runs as.}
  timeout: {type: float, default: 20, description: Seconds the trial may take.}
  live_timeout: {type: float, default: 60, description: Seconds until the controller must serve with it.}
  source:
    type: str
    choices: [rendered, good, point]
    default: rendered
    description: >-
      C(rendered) from the options. C(good) is the configuration that served last, whatever is requested. C(point) is
      the configuration before the last change.
  desired_config: {type: str, default: "", description: Digest of the desired configuration; stored with the files.}
  change: {type: str, default: "", description: "Name of the change; default is O(desired_config)."}
  claim: {type: dict, default: {}, description: "Instance, member and claim number; set by the action plugin."}
author: [gpuaas-slurm]
"""

RETURN = r"""
config_version: {type: str, description: Digest of slurm.conf as it is live., returned: success}
changes: {type: list, description: "What changed, by name.", returned: success}
loaded_by: {type: str, description: "reconfigure, restart, or none if nothing changed.", returned: success}
desired_config: {type: str, description: Digest of the desired configuration that is live., returned: success}
"""


def wanted_files(params: dict[str, Any], kept: Kept) -> tuple[dict[str, str], str]:
    """The files to put live, by name, and the digest of their desired configuration."""
    if params["source"] == "rendered":
        good = ((kept.read("good") or {}).get("files") or {}).get("slurm.conf")
        managed = keep_controller_name(params["managed"], good)
        text = render(managed, params["requested"], [Partition(**one) for one in params["partitions"]])
        return {**params["companions"], "slurm.conf": text}, params["desired_config"]
    stored = kept.read(params["source"])
    if stored is None or not stored.get("files"):
        raise AdapterError(
            "nothing_to_return_to",
            "The host has no stored configuration to return to. Correct the instance's configuration, then retry.",
            INTERVENTION,
        )
    return dict(stored["files"]), str(stored.get(DESIRED_CONFIG) or "")


def differing(files: dict[str, str], directory: Path) -> list[str]:
    return [
        name
        for name in sorted(files)
        if find(directory / name).digest != hashlib.sha256(files[name].encode()).hexdigest()
    ]


def swap(files: dict[str, str], names: list[str], directory: Path, owner: str) -> None:
    ledger = Ledger(owner)
    for name in names:
        path = directory / name
        if path.is_file() and not ledger.has("path", str(path)):
            ledger.keep(path.read_bytes())
        ledger.note("path", str(path), find(path).as_before())
    ledger.save()
    # slurm.conf last: it refers to the other files.
    for name in sorted(names, key=lambda name: name == "slurm.conf"):
        write_atomically(directory / name, files[name].encode(), mode=0o644)


def converge(params: dict[str, Any], dry: bool) -> dict[str, Any]:
    directory, kept = Path(params["directory"]), Kept(params["owner"])

    def write(files: dict[str, str]) -> None:
        swap(files, differing(files, directory), directory, params["owner"])

    live = Activation(kept, write, params["live_timeout"])
    files, desired_config = wanted_files(params, kept)
    finished = None if dry else live.finish_interrupted(files)
    names = differing(files, directory)
    how = finished
    if names and not dry:
        others = {name: text for name, text in files.items() if name != "slurm.conf"}
        run_trial(files["slurm.conf"], others, params["slurm_user"], params["timeout"])
        if live.is_first(directory):
            write(files)
        else:
            if params["source"] == "rendered" and files != (kept.read("good") or {}).get("files"):
                kept.keep_point(params["change"] or desired_config, installed_slurm())
            how = live.go_live(files, desired_config)
    elif not dry:
        how = live.ensure_loaded() or finished
    good = {"files": files, DESIRED_CONFIG: desired_config}
    if not dry and kept.read("good") != good:
        kept.write("good", good)
    if params["source"] == "point" and not dry:
        # A point is used once. The name of the change lets an interrupted rollback run again, but not a second one.
        kept.write("point", {**(kept.read("point") or {}), "returned_by": params["change"]})
    return {
        "changed": bool(names or how),
        "changes": [f"file {name}" for name in names] + ([f"slurmctld {how}"] if how else []),
        "config_version": content_version(files["slurm.conf"].encode()),
        "loaded_by": how or "none",
        "desired_config": desired_config,
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **CLAIM_ARGUMENT,
            "owner": {"type": "str", "required": True},
            "directory": {"type": "path", "default": "/etc/slurm"},
            "managed": {"type": "dict", "default": {}},
            "requested": {"type": "dict", "default": {}},
            "partitions": PARTITION_ARGUMENT,
            "companions": {"type": "dict", "default": {}},
            "slurm_user": {"type": "str", "default": "slurm"},
            "timeout": {"type": "float", "default": 20},
            "live_timeout": {"type": "float", "default": 60},
            "source": {"type": "str", "default": "rendered", "choices": ["rendered", "good", "point"]},
            "desired_config": {"type": "str", "default": ""},
            "change": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    with host_lock(module, "writing Slurm's configuration"):
        result = converge(module.params, module.check_mode)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
