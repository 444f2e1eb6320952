#!/usr/bin/python3
"""Put a configuration live only after Slurm itself has run with it, and take it back if the cluster does not serve."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host.claim import CLAIM_ARGUMENT
from ansible.module_utils.host.errors import INTERVENTION, AdapterError
from ansible.module_utils.host.files import find
from ansible.module_utils.host.ledger import Ledger, write_atomically
from ansible.module_utils.host.lock import host_lock
from ansible.module_utils.slurm.activate import Activation
from ansible.module_utils.slurm.conf import PARTITION_ARGUMENT, Partition, keep_controller_name, render
from ansible.module_utils.slurm.kept import Kept
from ansible.module_utils.slurm.trial import try_out
from ansible.module_utils.slurm.versions import installed_slurm

DOCUMENTATION = r"""
module: slurm_config
short_description: Render slurm.conf, let slurmctld start with it beside the live one, then swap it in and watch
description:
  - The rendered text is tried by a real slurmctld with a scratch state directory, another port and no accounting.
    Once that says it is the primary controller it is stopped, and the text goes live atomically. A refused text leaves
    the live files as they are.
  - On a controller that serves already, it goes live by a reconfigure where that is enough and by a restart where it
    is not, and is watched. If the controller does not serve with it, the last good one is put back and it fails with
    C(config_taken_back). A note on the host says that a change is on trial, so a run that was killed in the middle is
    finished, one way or the other, by the next.
  - The first configuration of a host is only written; whoever starts slurmctld sees whether it runs.
options:
  owner: {type: str, required: true, description: "Who asks, for the ledger, as component/role."}
  directory: {type: path, default: /etc/slurm, description: Where the configuration lives.}
  managed: {type: dict, default: {}, description: The adapter's own settings.}
  requested: {type: dict, default: {}, description: Settings asked for from outside.}
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
  companions: {type: dict, default: {}, description: "Other files of the directory, name to text."}
  slurm_user: {type: str, default: slurm, description: User that slurmctld runs as.}
  timeout: {type: float, default: 20, description: Seconds the trial may take.}
  live_timeout: {type: float, default: 60, description: Seconds until the controller must serve with it.}
  source:
    type: str
    choices: [rendered, good, point]
    default: rendered
    description: >-
      C(rendered) from the options here. C(good) keeps what was last seen serving, whatever is asked for. C(point) is
      what was live before the last change.
  wish: {type: str, default: "", description: A name for what is asked for; it comes back with whatever is live.}
  change: {type: str, default: "", description: A name for the change that this is a part of; else the wish's.}
  claim: {type: dict, default: {}, description: "Instance, member and claim number; set by the action plugin."}
author: [gpuaas-slurm]
"""

RETURN = r"""
config_version: {type: str, description: Digest of slurm.conf as it is live., returned: success}
changes: {type: list, description: "What changed, by name.", returned: success}
loaded_by: {type: str, description: "reconfigure, restart, or none if nothing changed.", returned: success}
wish: {type: str, description: The name of what is live., returned: success}
"""


def wanted_files(params: dict[str, Any], kept: Kept) -> tuple[dict[str, str], str]:
    """The files to be live, by name, and the name of the wish they fulfil."""
    if params["source"] == "rendered":
        good = ((kept.read("good") or {}).get("files") or {}).get("slurm.conf")
        managed = keep_controller_name(params["managed"], good)
        text = render(managed, params["requested"], [Partition(**one) for one in params["partitions"]])
        return {**params["companions"], "slurm.conf": text}, params["wish"]
    known = kept.read(params["source"])
    if known is None or not known.get("files"):
        raise AdapterError(
            "nothing_to_return_to",
            "The host keeps no configuration to return to. Correct the instance's configuration, then retry.",
            INTERVENTION,
        )
    return dict(known["files"]), str(known.get("wish") or "")


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
        if path.is_file() and not ledger.knows("path", str(path)):
            ledger.keep(path.read_bytes())
        ledger.note("path", str(path), find(path).as_before())
    ledger.save()
    # slurm.conf last: nobody reads it before what it stands on is there.
    for name in sorted(names, key=lambda name: name == "slurm.conf"):
        write_atomically(directory / name, files[name].encode(), mode=0o644)


def converge(params: dict[str, Any], dry: bool) -> dict[str, Any]:
    directory, kept = Path(params["directory"]), Kept(params["owner"])

    def write(files: dict[str, str]) -> None:
        swap(files, differing(files, directory), directory, params["owner"])

    live = Activation(kept, write, params["live_timeout"])
    files, wish = wanted_files(params, kept)
    settled = None if dry else live.settle(files)
    names = differing(files, directory)
    how = settled
    if names and not dry:
        try_out(files["slurm.conf"], params["companions"] or _others(files), params["slurm_user"], params["timeout"])
        if live.is_first(directory):
            write(files)
        else:
            if params["source"] == "rendered" and files != (kept.read("good") or {}).get("files"):
                kept.keep_point(params["change"] or wish, installed_slurm())
            how = live.bring(files, wish)
    elif not dry:
        how = live.ensure_loaded() or settled
    if not dry and kept.read("good") != {"files": files, "wish": wish}:
        kept.write("good", {"files": files, "wish": wish})
    if params["source"] == "point" and not dry:
        # One returns to it once; who comes again because a run was cut off is told from who wants to go further back.
        kept.write("point", {**(kept.read("point") or {}), "returned_by": params["change"]})
    return {
        "changed": bool(names or how),
        "changes": [f"file {name}" for name in names] + ([f"slurmctld {how}"] if how else []),
        "config_version": "sha256:" + hashlib.sha256(files["slurm.conf"].encode()).hexdigest()[:16],
        "loaded_by": how or "none",
        "wish": wish,
    }


def _others(files: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in files.items() if name != "slurm.conf"}


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
            "wish": {"type": "str", "default": ""},
            "change": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    with host_lock(module, "writing Slurm's configuration"):
        told = converge(module.params, module.check_mode)
    module.exit_json(**told)


if __name__ == "__main__":
    main()
