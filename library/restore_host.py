#!/usr/bin/python3
"""Take a member off a host and leave the host as its ledger says it was found."""

from __future__ import annotations

import fcntl
import grp
import json
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterable
from typing import Any

from ansible.module_utils.adapter_error import REPAIRABLE, AdapterError, from_os_error
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.converge_ledger import STATE_DIRECTORY, write_atomically
from ansible.module_utils.restore_entries import leaving, of_kind, remaining
from ansible.module_utils.restore_packages import purge_packages, statuses, still_needed
from ansible.module_utils.restore_paths import residue, restore_paths, restore_trees, without
from ansible.module_utils.restore_units import bring_back_units, reload_units, stop_units, units_left

DOCUMENTATION = r"""
module: restore_host
short_description: Stop a member's services, or take the member off its host altogether
description:
  - Goes by the ledger that converge_host keeps. Only what no other member on the host asked for is touched.
  - Order is units, packages, files, directories, users; the ledger goes last, so that a run which was cut off is
    taken up by the next. Without a ledger there is nothing to do.
options:
  mode:
    type: str
    required: true
    choices: [look, stop, clean]
    description: >-
      C(look) tells what the ledger has, C(stop) stops and disables O(units), C(clean) takes everything away and
      fails if anything is left.
  owner: {type: str, required: true, description: The component that leaves; the first part of its owners' names.}
  units: {type: list, elements: str, default: [], description: Units to stop, without .service.}
  keep: {type: list, elements: path, default: [], description: Paths to leave, with all below them.}
author: [gpuaas-slurm]
"""

RETURN = r"""
changes: {type: list, returned: always, description: What changed, by name.}
hostname: {type: str, returned: always, description: Short name of the host.}
units_noted: {type: list, returned: always, description: Units that this component once started here.}
residue: {type: list, returned: "mode=clean", description: What is left and should not be.}
"""

LEDGER = STATE_DIRECTORY / "ledger.json"


def read_entries() -> dict[str, dict[str, Any]]:
    try:
        entries: dict[str, dict[str, Any]] = json.loads(LEDGER.read_text())["entries"]
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError):
        raise AdapterError(
            "ledger_unreadable",
            f"{LEDGER} on the host cannot be read, so what was there before is not known. Clean the host by hand or"
            " give it back to be rebuilt.",
            REPAIRABLE,
        ) from None
    return entries


def clean(entries: dict[str, dict[str, Any]], component: str, keep: list[str]) -> tuple[list[str], list[str]]:
    """What changed, and what is left that should not be."""
    going = leaving(entries, component)
    units, packages, users = of_kind(going, "unit"), of_kind(going, "package"), of_kind(going, "user")
    paths, trees = of_kind(going, "path"), without(of_kind(going, "tree"), keep)
    paths = without(paths, keep)
    ours = [name for name, before in packages.items() if not before["installed"]]
    changes = stop_units(units)
    changes += purge_packages(ours)
    changes += restore_trees(trees)
    changes += restore_paths(paths, STATE_DIRECTORY / "before")
    changes += _remove_users(name for name, before in users.items() if not before["present"])
    reload_units()
    changes += bring_back_units(units)
    left = [f"package {name}" for name in sorted(set(statuses(ours)) - set(still_needed(ours)))]
    left += residue(paths, trees) + units_left(units) + _users_left(users)
    return changes, left


def forget(entries: dict[str, dict[str, Any]], component: str) -> None:
    """The ledger goes last, and only when nobody else on the host needs it."""
    rest = remaining(entries, component)
    if rest:
        document = {"format": 1, "entries": dict(sorted(rest.items()))}
        write_atomically(LEDGER, json.dumps(document, indent=1, sort_keys=True).encode(), mode=0o600)
    else:
        shutil.rmtree(STATE_DIRECTORY)


def _remove_users(names: Iterable[str]) -> list[str]:
    changes = []
    for name in sorted(names):
        if _exists(pwd.getpwnam, name):
            _command("userdel", name)
            changes.append(f"user {name}")
        if _exists(grp.getgrnam, name):
            _command("groupdel", name)
            changes.append(f"group {name}")
    return changes


def _users_left(users: dict[str, dict[str, Any]]) -> list[str]:
    absent = sorted(name for name, before in users.items() if not before["present"])
    left = [f"user {name}" for name in absent if _exists(pwd.getpwnam, name)]
    return left + [f"group {name}" for name in absent if _exists(grp.getgrnam, name)]


def _exists(find: Any, name: str) -> bool:
    try:
        find(name)
    except KeyError:
        return False
    return True


def _command(*command: str) -> None:
    # A failure shows up as residue, by name, which says more than an exit code.
    subprocess.run(command, capture_output=True, check=False)


def act(params: dict[str, Any], dry: bool) -> dict[str, Any]:
    entries, component = read_entries(), params["owner"]
    mine = {key: entry for key, entry in entries.items() if any(o.startswith(f"{component}/") for o in entry["owners"])}
    told: dict[str, Any] = {
        "hostname": socket.gethostname().split(".")[0],
        "units_noted": sorted(of_kind(mine, "unit")),
        "changes": [],
    }
    if dry or params["mode"] == "look":
        return told
    if params["mode"] == "stop":
        told["changes"] = stop_units({name: {} for name in params["units"]})
        return told
    told["changes"], told["residue"] = clean(entries, component, params["keep"])
    if told["residue"]:
        raise AdapterError(
            "residue_left",
            f"The host is not as it was found; left are: {', '.join(told['residue'])}. Remove these by hand, or see"
            " who uses them, then ask for the removal again.",
            REPAIRABLE,
        )
    if entries:
        forget(entries, component)
        told["changes"].append("ledger")
    return told


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "mode": {"type": "str", "required": True, "choices": ["look", "stop", "clean"]},
            "owner": {"type": "str", "required": True},
            "units": {"type": "list", "elements": "str", "default": []},
            "keep": {"type": "list", "elements": "path", "default": []},
        },
        supports_check_mode=True,
    )
    try:
        if not STATE_DIRECTORY.is_dir():
            told = act(module.params, module.check_mode)
        else:
            # Two members may share a host, and one may be converging at this moment.
            with (STATE_DIRECTORY / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                told = act(module.params, module.check_mode)
    except OSError as error:
        problem = from_os_error(error, "cleaning the host")
        module.fail_json(msg=problem.message, adapter_error=problem.as_dict())
    except AdapterError as error:
        module.fail_json(msg=error.message, adapter_error=error.as_dict())
    module.exit_json(changed=bool(told["changes"]), **told)


if __name__ == "__main__":
    main()
