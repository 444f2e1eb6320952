#!/usr/bin/python3
"""Take a member off a host and leave the host as its ledger says it was found."""

from __future__ import annotations

import grp
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ansible.module_utils.adapter_error import REPAIRABLE, RETRYABLE, AdapterError
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.converge_ledger import LEDGER, STATE_DIRECTORY, Document, read, write
from ansible.module_utils.host_baseline import ACCOUNTS, Picture, left_behind, take
from ansible.module_utils.host_claim import CLAIM_ARGUMENT, Claim, read_mark, remove_mark
from ansible.module_utils.host_turn import host_turn
from ansible.module_utils.job_processes import end_jobs, running_jobs
from ansible.module_utils.kept_logs import keep_logs
from ansible.module_utils.package_source import clear_source
from ansible.module_utils.restore_database import SERVER, databases_left, drop_databases
from ansible.module_utils.restore_entries import leaving, of_kind, remaining
from ansible.module_utils.restore_packages import purge_packages, statuses, still_needed
from ansible.module_utils.restore_paths import residue, restore_paths, restore_trees
from ansible.module_utils.restore_units import bring_back_units, reload_units, stop_units, units_left

DOCUMENTATION = r"""
module: restore_host
short_description: Stop a member's services, or take the member off its host altogether
description:
  - Goes by the ledger that converge_host keeps. Only what no other member on the host asked for is touched.
  - Order is units, databases, packages, files, directories, users; the ledger goes last, so that a run which was cut
    off is taken up by the next. On a host that has no ledger of the call's instance there is nothing to do, and nothing
    is touched.
  - When the last member leaves, the host is compared with the picture of it that the ledger began with.
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
  jobs:
    type: str
    choices: [ignore, wait, end]
    default: ignore
    description: >-
      With C(stop), what to do about jobs that run here. C(wait) fails and stops nothing, C(end) ends them, C(ignore)
      is for a caller who knows from the controller that there are none.
  keep_logs: {type: bool, default: false, description: Keep the daemons' logs in /var/log/gpuaas-slurm.}
  claim: {type: dict, default: {}, description: "For whom the call is made. Its action plugin sets it."}
author: [gpuaas-slurm]
"""

RETURN = r"""
changes: {type: list, returned: always, description: What changed, by name.}
hostname: {type: str, returned: always, description: Short name of the host.}
instance: {type: str, returned: always, description: The instance that the host says it serves.}
units_noted: {type: list, returned: always, description: Units that this component once started here.}
residue: {type: list, returned: "mode=clean", description: What is left and should not be.}
logs_kept: {type: str, returned: "keep_logs=true", description: Where logs were kept; none if there was nothing.}
"""

# The message is for a person, the list for the member's record, which is bounded: a host with more left needs a person.
NAMED, LISTED = 12, 50


def clean(entries: dict[str, dict[str, Any]], component: str) -> tuple[list[str], list[str]]:
    """What changed, and what is left that should not be."""
    going = leaving(entries, component)
    units, packages, users = of_kind(going, "unit"), of_kind(going, "package"), of_kind(going, "user")
    paths, trees, databases = of_kind(going, "path"), of_kind(going, "tree"), of_kind(going, "database")
    ours = [name for name, before in packages.items() if not before["installed"]]
    server = {name: before for name, before in units.items() if name == SERVER}
    changes = stop_units({name: before for name, before in units.items() if name not in server})
    if "slurmd" in units and not running_jobs():
        end_jobs()  # the one process that slurmd keeps for jobs to come
    if not any(name.startswith("mariadb-server") for name in ours):
        # Without our settings: they would make the database again if the server has to be started to drop it.
        settings = {name: before for name, before in paths.items() if name.startswith("/etc/mysql/")}
        changes += restore_paths(settings, STATE_DIRECTORY / "before")
        changes += drop_databases(databases)
    changes += stop_units(server)
    changes += purge_packages(ours)
    clear_source()  # of a run that was killed
    changes += restore_trees(trees)
    changes += restore_paths(paths, STATE_DIRECTORY / "before")
    changes += _remove_users(name for name, before in users.items() if not before["present"])
    reload_units()
    changes += bring_back_units(units)
    left = [f"package {name}" for name in sorted(set(statuses(ours)) - set(still_needed(ours)))]
    left += residue(paths, trees) + units_left(units) + _users_left(users) + databases_left(databases)
    return changes, left


def accounts_brought(entries: dict[str, dict[str, Any]], baseline: Picture | None, component: str) -> list[str]:
    """Packages make accounts and not all take them back. Those that were not there before us go with the last of us."""
    if baseline is None or remaining(entries, component) or _needed(entries):
        return []
    made = [name for name in ACCOUNTS if name not in baseline["account"] and name not in baseline["group"]]
    return _remove_users(made)


def unnoted(entries: dict[str, dict[str, Any]], baseline: Picture | None, component: str) -> list[str]:
    """What nobody wrote down: the host now against the picture of it before the first change."""
    if baseline is None or remaining(entries, component):
        return []  # another member here still needs what would be missing from it
    if _needed(entries):
        return []  # somebody has come to depend on a part of it, and on whatever belongs to that
    return list(left_behind(baseline, take()))


def _needed(entries: dict[str, dict[str, Any]]) -> list[str]:
    brought = [name for name, before in of_kind(entries, "package").items() if not before["installed"]]
    return list(still_needed(brought))


def forget(known: Document, component: str) -> None:
    """The ledger goes last, and only when nobody else on the host needs it; then the mark."""
    rest = remaining(known.entries, component)
    if rest:
        write(LEDGER, replace(known, entries=rest))
    else:
        shutil.rmtree(STATE_DIRECTORY)
        remove_mark()


def _remove_users(names: Iterable[str]) -> list[str]:
    changes = []
    for name in sorted(names):
        if _exists(pwd.getpwnam, name):
            # One who is still logged in, or left something running, would keep the account.
            _command("pkill", "--signal", "KILL", "--uid", name)
            _command("userdel", "--force", name)
            changes.append(f"user {name}")
        if _exists(grp.getgrnam, name):
            _command("groupdel", name)
            changes.append(f"group {name}")
    return changes


def _users_left(users: dict[str, dict[str, Any]]) -> list[str]:
    absent = sorted(name for name, before in users.items() if not before["present"])
    left = [f"account {name}" for name in absent if _exists(pwd.getpwnam, name)]
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


def stop(params: dict[str, Any]) -> list[str]:
    running = running_jobs() if params["jobs"] != "ignore" else []
    if running and params["jobs"] == "wait":
        raise AdapterError(
            "jobs_on_host",
            f"Job {', '.join(running)} still runs on the host, so nothing was stopped. It is waited for.",
            RETRYABLE,
        )
    changes: list[str] = stop_units({name: {} for name in params["units"]})
    return changes + (end_jobs() if params["jobs"] == "end" else [])


def act(params: dict[str, Any], dry: bool, ours: bool) -> dict[str, Any]:
    marked, found, component = read_mark(), read(LEDGER), params["owner"]
    known = found if ours else None
    entries, baseline = (known.entries, known.baseline) if known else ({}, None)
    mine = {key: entry for key, entry in entries.items() if any(o.startswith(f"{component}/") for o in entry["owners"])}
    told: dict[str, Any] = {
        "hostname": socket.gethostname().split(".")[0],
        "instance": marked or (found.instance if found else None),
        "units_noted": sorted(of_kind(mine, "unit")),
        "changes": [],
    }
    if dry or params["mode"] == "look":
        return told
    half_cleaned = known is None and marked is not None and marked == Claim.of(params).instance
    if params["mode"] == "stop":
        told["changes"] = stop(params) if known or half_cleaned else []
        return told
    if known is None:
        if half_cleaned:
            remove_mark()
        return told | {"residue": []}
    if params["keep_logs"]:
        told["logs_kept"] = keep_logs(mine, component, told["units_noted"])
    changes, left = clean(entries, component)
    told["changes"] += changes + accounts_brought(entries, baseline, component)
    told["residue"] = sorted({*left, *unnoted(entries, baseline, component)})[:LISTED]
    if not told["residue"]:
        forget(known, component)
        told["changes"].append("ledger")
    return told


def residue_left(residue: list[str]) -> AdapterError:
    more = f" and {len(residue) - NAMED} more" if len(residue) > NAMED else ""
    return AdapterError(
        "residue_left",
        f"The host is not as it was found; left are: {', '.join(residue[:NAMED])}{more}. Remove these by hand, or see"
        " who uses them, then ask again.",
        REPAIRABLE,
    )


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **CLAIM_ARGUMENT,
            "mode": {"type": "str", "required": True, "choices": ["look", "stop", "clean"]},
            "owner": {"type": "str", "required": True},
            "units": {"type": "list", "elements": "str", "default": []},
            "jobs": {"type": "str", "default": "ignore", "choices": ["ignore", "wait", "end"]},
            "keep_logs": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    changes = module.params["mode"] != "look"
    with host_turn(module, "cleaning the host", changes=changes, begin=False, absent_ok=True) as ours:
        told = act(module.params, module.check_mode, ours)
    if told.get("residue"):
        problem = residue_left(told["residue"])
        module.fail_json(msg=problem.message, adapter_error=problem.as_dict(), **told)
    module.exit_json(changed=bool(told["changes"]), **told)


if __name__ == "__main__":
    main()
