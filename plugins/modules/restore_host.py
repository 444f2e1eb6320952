#!/usr/bin/python3
"""Take a member off a host and leave the host as its ledger says it was found."""

from __future__ import annotations

import shutil
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ansible.module_utils.app import STATE_DIRECTORY
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host.baseline import Picture, left_behind, take
from ansible.module_utils.host.claim import CLAIM_ARGUMENT, Claim, read_mark, remove_mark
from ansible.module_utils.host.errors import REPAIRABLE, RETRYABLE, AdapterError
from ansible.module_utils.host.kept_logs import keep_logs
from ansible.module_utils.host.ledger import LEDGER, Document, read, write
from ansible.module_utils.host.lock import host_lock
from ansible.module_utils.host.package_source import clear_source
from ansible.module_utils.host.restore.accounts import remove_accounts, remove_users, users_left
from ansible.module_utils.host.restore.entries import leaving, of_kind, remaining
from ansible.module_utils.host.restore.homes import homes_of, settle_homes
from ansible.module_utils.host.restore.origin import accounts_to_remove, brought, is_ours
from ansible.module_utils.host.restore.packages import purge_packages, settle_packages, statuses, still_needed
from ansible.module_utils.host.restore.paths import paths_left, restore_paths
from ansible.module_utils.host.restore.server import ServerFate, fate_of, in_use, is_servers
from ansible.module_utils.host.restore.trees import doomed, mount_points, obstacle, packages_of, restore_trees
from ansible.module_utils.host.restore.units import bring_back_units, reload_units, stop_units, units_left
from ansible.module_utils.slurm.job_processes import end_jobs, running_jobs

DOCUMENTATION = r"""
module: restore_host
short_description: Stop a member's services, or take the member off its host altogether
description:
  - Goes by the ledger that converge_host keeps. Only what no other member on the host asked for is touched.
  - Order is units, databases, packages, trees, files, directories, users, homes; the ledger goes last, so that a run
    which was cut off is taken up by the next. On a host that has no ledger of the call's instance there is nothing to
    do, and nothing is touched.
  - A tree goes with its package. A MariaDB that was there before, that something else needs or that holds databases of
    others stays as it is, without our database. Homes stay unless O(remove_homes).
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
  remove_homes:
    type: bool
    default: false
    description: Delete the homes that we made, on the root file system only. What is left is listed with the reason.
  claim: {type: dict, default: {}, description: "Instance, member and claim number; set by the action plugin."}
author: [gpuaas-slurm]
"""

RETURN = r"""
changes: {type: list, returned: always, description: "What changed, by name."}
hostname: {type: str, returned: always, description: Short name of the host.}
instance: {type: str, returned: always, description: The instance that the host says it serves.}
units_noted: {type: list, returned: always, description: Units that this component once started here.}
residue: {type: list, returned: "mode=clean", description: What is left and should not be.}
homes_left: {type: list, returned: "mode=clean", description: "Homes of users that were made here, with the reason."}
data_left: {type: list, returned: "mode=clean", description: What stays because others use or brought it.}
logs_kept: {type: str, returned: "keep_logs=true", description: Where logs were kept; none if there was nothing.}
"""

# They came with the server, if it did not stand there before, and stay with it.
SERVER_DIRECTORIES = ("/etc/mysql", "/etc/mysql/mariadb.conf.d")
# The message is for a person, the list for the member's record, which is bounded: a host with more left needs a person.
NAMED, LISTED = 12, 50


@dataclass
class Cleaned:
    """What was done, and what is left: by mistake (residue), on purpose (homes, data)."""

    changes: list[str]
    residue: list[str]
    homes: list[str]
    server: ServerFate


def clean(
    entries: dict[str, dict[str, Any]], baseline: Picture | None, component: str, *, remove_homes: bool
) -> Cleaned:
    going = leaving(entries, component)
    units, packages, users = of_kind(going, "unit"), of_kind(going, "package"), of_kind(going, "user")
    paths, trees = of_kind(going, "path"), of_kind(going, "tree")
    homes = homes_of(of_kind(going, "home"), trees)
    ours = [name for name, before in packages.items() if not before["installed"]]
    databases = of_kind(going, "database")
    # First of all: apt answers no question while an install is unfinished. A server in use is never taken out by force.
    settle_packages(name for name in ours if not (is_servers(name) and in_use(databases)))
    server = fate_of(units, packages, databases)
    changes = stop_units({name: before for name, before in units.items() if not is_servers(name)})
    if "slurmd" in units and not running_jobs():
        end_jobs()  # the one process that slurmd keeps for jobs to come
    if server.stays:
        # Without our settings: they would make the database again if the server has to be started to drop it.
        settings = {name: before for name, before in paths.items() if name.startswith("/etc/mysql/")}
        changes += restore_paths(settings, STATE_DIRECTORY / "before")
        changes += server.drop()
        paths = {name: before for name, before in paths.items() if name not in SERVER_DIRECTORIES}
    units = {name: before for name, before in units.items() if not (is_servers(name) and server.keeps_running)}
    changes += stop_units({name: before for name, before in units.items() if is_servers(name)})
    ours = [name for name in ours if not (is_servers(name) and server.stays)]
    changes += purge_packages(ours)
    clear_source()  # of a run that was killed
    changes += restore_trees(_doomed(trees, of_kind(entries, "package"), baseline))
    changes += restore_paths(paths, STATE_DIRECTORY / "before")
    changes += remove_users(name for name, before in users.items() if not before["present"])
    deleted, homes_left = settle_homes(homes, remove=remove_homes)
    reload_units()
    changes += deleted + bring_back_units(units)
    left = [f"package {name}" for name in sorted(set(statuses(ours)) - set(still_needed(ours)))]
    left += [f"path {path}" for path in _doomed(trees, of_kind(entries, "package"), baseline)]
    left += paths_left(paths) + units_left(units) + users_left(users)
    return Cleaned(changes, left, homes_left, server)


def _doomed(
    trees: dict[str, dict[str, Any]], packages: dict[str, dict[str, Any]], baseline: Picture | None
) -> list[Path]:
    return list(doomed(trees, packages, baseline, statuses(packages_of(trees))))


def settle_accounts(
    entries: dict[str, dict[str, Any]], baseline: Picture | None, component: str
) -> tuple[list[str], list[str]]:
    """Packages make accounts and not all take them back: what went of those that ours made, and what is left.

    A process that still runs as one of them is not ours: it is not ended, and userdel refuses.
    """
    kept = brought(remaining(entries, component))  # by another member here, which may be installing them now
    made = accounts_to_remove(entries, baseline, [*take()["package"], *kept])
    changes = remove_accounts(made, "userdel")
    return changes, users_left({name: {"present": False} for name in made})


def unnoted(
    entries: dict[str, dict[str, Any]], baseline: Picture | None, component: str, server: ServerFate
) -> tuple[list[str], list[str]]:
    """What nobody wrote down: the host now against the picture of it before the first change. Ours, and others'."""
    if baseline is None or remaining(entries, component):
        return [], []  # another member here still needs what would be missing from it
    if still_needed(brought(entries)):
        return [], []  # somebody has come to depend on a part of it, and on whatever belongs to that
    now = take()
    new = [one for one in left_behind(baseline, now) if not (server.stays and is_servers(one))]
    ours = [one for one in new if is_ours(one, entries, now["package"])]
    return ours, [f"{one}: came during the cluster's life, but not with the cluster" for one in new if one not in ours]


def forget(known: Document, component: str) -> None:
    """The ledger goes last, and only when nobody else on the host needs it; then the mark."""
    rest = remaining(known.entries, component)
    if rest:
        write(LEDGER, replace(known, entries=rest))
    else:
        shutil.rmtree(STATE_DIRECTORY)
        remove_mark()


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
    cleaned = clean(entries, baseline, component, remove_homes=params["remove_homes"])
    changes, accounts_left = settle_accounts(entries, baseline, component)
    told["changes"] += cleaned.changes + changes
    ours_left, others = unnoted(entries, baseline, component, cleaned.server)
    told["residue"] = sorted({*cleaned.residue, *accounts_left, *ours_left})[:LISTED]
    if not told["residue"] and (why := obstacle(STATE_DIRECTORY, STATE_DIRECTORY.parent, list(mount_points()))):
        told["residue"] = [f"path {STATE_DIRECTORY} ({why})"]
    told["homes_left"], told["data_left"] = shortened(cleaned.homes), shortened(cleaned.server.reasons + others)
    if not told["residue"]:
        forget(known, component)
        told["changes"].append("ledger")
    return told


def shortened(names: list[str]) -> list[str]:
    """A member's record is bounded."""
    more = len(names) - NAMED
    return [*names[:NAMED], *([f"and {more} more"] if more > 0 else [])]


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
            "remove_homes": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    changes = module.params["mode"] != "look"
    with host_lock(module, "cleaning the host", changes=changes, begin=False, absent_ok=True) as ours:
        told = act(module.params, module.check_mode, ours)
    if told.get("residue"):
        problem = residue_left(told["residue"])
        module.fail_json(msg=problem.message, adapter_error=problem.as_dict(), **told)
    module.exit_json(changed=bool(told["changes"]), **told)


if __name__ == "__main__":
    main()
