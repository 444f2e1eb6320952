#!/usr/bin/python3
"""Remove a member from a host and restore the host's former state from its ledger."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ansible.module_utils.app import STATE_DIRECTORY
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host.baseline import HostState, left_behind, read_host_state
from ansible.module_utils.host.claim import CLAIM_ARGUMENT, Claim, read_mark, remove_mark
from ansible.module_utils.host.errors import REPAIRABLE, RETRYABLE, AdapterError
from ansible.module_utils.host.facts import short_hostname
from ansible.module_utils.host.kept_logs import keep_logs
from ansible.module_utils.host.ledger import LEDGER, Document, read, write
from ansible.module_utils.host.lock import host_lock
from ansible.module_utils.host.package_source import clear_source
from ansible.module_utils.host.restore.accounts import remove_accounts, remove_users, users_left
from ansible.module_utils.host.restore.entries import entries_to_keep, entries_to_remove, of_kind
from ansible.module_utils.host.restore.homes import clear_homes, homes_of
from ansible.module_utils.host.restore.origin import accounts_to_remove, installed_by_us, is_ours
from ansible.module_utils.host.restore.packages import purge_packages, repair_packages, statuses, still_needed
from ansible.module_utils.host.restore.paths import paths_left, restore_paths
from ansible.module_utils.host.restore.server import ServerPlan, belongs_to_server, in_use, plan_server
from ansible.module_utils.host.restore.trees import mount_points, obstacle, packages_of, paths_to_delete, restore_trees
from ansible.module_utils.host.restore.units import reload_units, restart_former_units, stop_units, units_left
from ansible.module_utils.slurm.job_processes import end_jobs, running_jobs

DOCUMENTATION = r"""
module: restore_host
short_description: Stop a member's services, or remove the member from its host
description:
  - Uses the ledger that converge_host writes. Things that another member on the host owns too are not changed.
  - Order is units, databases, packages, trees, files, directories, users, homes. The ledger is removed last, so the
    next run continues an interrupted one. A host without a ledger of the call's instance is not changed.
  - A tree is removed with its package. A MariaDB that was there before, that other packages need or that has databases
    of others stays, without our database. Homes stay unless O(remove_homes).
  - When the last member leaves, the host is compared with the baseline in the ledger.
options:
  mode:
    type: str
    required: true
    choices: [look, stop, clean]
    description: >-
      C(look) reads the ledger, C(stop) stops and disables O(units), C(clean) removes everything and fails if anything
      is left.
  owner: {type: str, required: true, description: The component that is removed; the first part of its owners.}
  units: {type: list, elements: str, default: [], description: Units to stop, without .service.}
  jobs:
    type: str
    choices: [ignore, wait, end]
    default: ignore
    description: >-
      For C(stop), how to treat jobs on the host. C(wait) fails and stops nothing, C(end) ends them, C(ignore) is for a
      caller that has checked on the controller that there are none.
  keep_logs: {type: bool, default: false, description: Keep the daemons' logs in /var/log/gpuaas-slurm.}
  remove_homes:
    type: bool
    default: false
    description: Delete homes that the adapter created, on the root file system only. Others are listed.
  claim: {type: dict, default: {}, description: "Instance, member and claim number; set by the action plugin."}
author: [gpuaas-slurm]
"""

RETURN = r"""
changes: {type: list, returned: always, description: "What changed, by name."}
hostname: {type: str, returned: always, description: Short name of the host.}
instance: {type: str, returned: always, description: The instance that the host serves.}
units_noted: {type: list, returned: always, description: Units of this component in the ledger.}
residue: {type: list, returned: "mode=clean", description: Things that should have been removed.}
homes_left: {type: list, returned: "mode=clean", description: "Homes that were not deleted, with the reason."}
data_left: {type: list, returned: "mode=clean", description: Things that stay because others use or own them.}
logs_kept: {type: str, returned: "keep_logs=true", description: Directory with the kept logs; null if there were none.}
"""

# Directories of the server's package, which stay with it.
SERVER_DIRECTORIES = ("/etc/mysql", "/etc/mysql/mariadb.conf.d")
# Limits for the message and for the list in the member's record.
NAMED, LISTED = 12, 50


@dataclass
class CleanResult:
    """Changes, and things that are left: by mistake (residue) or on purpose (homes, data)."""

    changes: list[str]
    residue: list[str]
    homes: list[str]
    server: ServerPlan


def clean(
    entries: dict[str, dict[str, Any]], baseline: HostState | None, component: str, *, remove_homes: bool
) -> CleanResult:
    going = entries_to_remove(entries, component)
    units, packages, users = of_kind(going, "unit"), of_kind(going, "package"), of_kind(going, "user")
    paths, trees = of_kind(going, "path"), of_kind(going, "tree")
    homes = homes_of(of_kind(going, "home"), trees)
    ours = [name for name, before in packages.items() if not before["installed"]]
    databases = of_kind(going, "database")
    # First: apt does not work while an install is unfinished. A server in use is never removed by force.
    repair_packages(name for name in ours if not (belongs_to_server(name) and in_use(databases)))
    server = plan_server(units, packages, databases)
    changes = stop_units({name: before for name, before in units.items() if not belongs_to_server(name)})
    if "slurmd" in units and not running_jobs():
        end_jobs()  # the idle slurmstepd that slurmd keeps
    if server.stays:
        # Remove our settings first: a server that has to be started must not create the database again.
        settings = {name: before for name, before in paths.items() if name.startswith("/etc/mysql/")}
        changes += restore_paths(settings, STATE_DIRECTORY / "before")
        changes += server.drop()
        paths = {name: before for name, before in paths.items() if name not in SERVER_DIRECTORIES}
    units = {name: before for name, before in units.items() if not (belongs_to_server(name) and server.keeps_running)}
    changes += stop_units({name: before for name, before in units.items() if belongs_to_server(name)})
    ours = [name for name in ours if not (belongs_to_server(name) and server.stays)]
    changes += purge_packages(ours)
    clear_source()  # of a run that was killed
    changes += restore_trees(_paths_to_delete(trees, of_kind(entries, "package"), baseline))
    changes += restore_paths(paths, STATE_DIRECTORY / "before")
    changes += remove_users(name for name, before in users.items() if not before["present"])
    deleted, homes_left = clear_homes(homes, remove=remove_homes)
    reload_units()
    changes += deleted + restart_former_units(units)
    left = [f"package {name}" for name in sorted(set(statuses(ours)) - set(still_needed(ours)))]
    left += [f"path {path}" for path in _paths_to_delete(trees, of_kind(entries, "package"), baseline)]
    left += paths_left(paths) + units_left(units) + users_left(users)
    return CleanResult(changes, left, homes_left, server)


def _paths_to_delete(
    trees: dict[str, dict[str, Any]], packages: dict[str, dict[str, Any]], baseline: HostState | None
) -> list[Path]:
    return list(paths_to_delete(trees, packages, baseline, statuses(packages_of(trees))))


def remove_package_accounts(
    entries: dict[str, dict[str, Any]], baseline: HostState | None, component: str
) -> tuple[list[str], list[str]]:
    """Remove accounts that our packages created. Returns the changes, and the accounts that are left.

    A process of such an account is not the cluster's: it is not ended, and userdel fails.
    """
    # Another member on the host may be installing its packages now.
    kept = installed_by_us(entries_to_keep(entries, component))
    made = accounts_to_remove(entries, baseline, [*read_host_state()["package"], *kept])
    changes = remove_accounts(made, "userdel")
    return changes, users_left({name: {"present": False} for name in made})


def compare_with_baseline(
    entries: dict[str, dict[str, Any]], baseline: HostState | None, component: str, server: ServerPlan
) -> tuple[list[str], list[str]]:
    """New things that the ledger does not have: those of the cluster, and those of others."""
    if baseline is None or entries_to_keep(entries, component):
        return [], []  # another member is still on the host
    if still_needed(installed_by_us(entries)):
        return [], []  # other packages depend on ours, which explains their files
    now = read_host_state()
    new = [one for one in left_behind(baseline, now) if not (server.stays and belongs_to_server(one))]
    ours = [one for one in new if is_ours(one, entries, now["package"])]
    return ours, [f"{one}: created by others while the cluster existed" for one in new if one not in ours]


def drop_ledger(ledger: Document, component: str) -> None:
    """Remove the component from the ledger; after the last component, remove the ledger and then the mark."""
    rest = entries_to_keep(ledger.entries, component)
    if rest:
        write(LEDGER, replace(ledger, entries=rest))
    else:
        shutil.rmtree(STATE_DIRECTORY)
        remove_mark()


def stop(params: dict[str, Any]) -> list[str]:
    running = running_jobs() if params["jobs"] != "ignore" else []
    if running and params["jobs"] == "wait":
        raise AdapterError(
            "jobs_on_host",
            f"Job {', '.join(running)} still runs on the host, so nothing was stopped. The adapter waits for it.",
            RETRYABLE,
        )
    changes: list[str] = stop_units({name: {} for name in params["units"]})
    return changes + (end_jobs() if params["jobs"] == "end" else [])


def run_mode(params: dict[str, Any], dry: bool, ours: bool) -> dict[str, Any]:
    marked, found, component = read_mark(), read(LEDGER), params["owner"]
    ledger = found if ours else None
    entries, baseline = (ledger.entries, ledger.baseline) if ledger else ({}, None)
    mine = {key: entry for key, entry in entries.items() if any(o.startswith(f"{component}/") for o in entry["owners"])}
    result: dict[str, Any] = {
        "hostname": short_hostname(),
        "instance": marked or (found.instance if found else None),
        "units_noted": sorted(of_kind(mine, "unit")),
        "changes": [],
    }
    if dry or params["mode"] == "look":
        return result
    half_cleaned = ledger is None and marked is not None and marked == Claim.of(params).instance
    if params["mode"] == "stop":
        result["changes"] = stop(params) if ledger or half_cleaned else []
        return result
    if ledger is None:
        if half_cleaned:
            remove_mark()
        return result | {"residue": []}
    if params["keep_logs"]:
        result["logs_kept"] = keep_logs(mine, component, result["units_noted"])
    cleaned = clean(entries, baseline, component, remove_homes=params["remove_homes"])
    changes, accounts_left = remove_package_accounts(entries, baseline, component)
    result["changes"] += cleaned.changes + changes
    ours_left, others = compare_with_baseline(entries, baseline, component, cleaned.server)
    result["residue"] = sorted({*cleaned.residue, *accounts_left, *ours_left})[:LISTED]
    if not result["residue"] and (why := obstacle(STATE_DIRECTORY, STATE_DIRECTORY.parent, list(mount_points()))):
        result["residue"] = [f"path {STATE_DIRECTORY} ({why})"]
    result["homes_left"], result["data_left"] = shorten(cleaned.homes), shorten(cleaned.server.reasons + others)
    if not result["residue"]:
        drop_ledger(ledger, component)
        result["changes"].append("ledger")
    return result


def shorten(names: list[str]) -> list[str]:
    """The first names, since a member's record has a limited size."""
    more = len(names) - NAMED
    return [*names[:NAMED], *([f"and {more} more"] if more > 0 else [])]


def residue_left(residue: list[str]) -> AdapterError:
    more = f" and {len(residue) - NAMED} more" if len(residue) > NAMED else ""
    return AdapterError(
        "residue_left",
        f"The clean-up left on the host: {', '.join(residue[:NAMED])}{more}. Remove these by hand, or find out who"
        " uses them, then retry.",
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
            "remove_homes": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    changes = module.params["mode"] != "look"
    with host_lock(module, "cleaning the host", changes=changes, begin=False, absent_ok=True) as ours:
        result = run_mode(module.params, module.check_mode, ours)
    if result.get("residue"):
        problem = residue_left(result["residue"])
        module.fail_json(msg=problem.message, adapter_error=problem.as_dict(), **result)
    module.exit_json(changed=bool(result["changes"]), **result)


if __name__ == "__main__":
    main()
