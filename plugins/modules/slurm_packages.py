#!/usr/bin/python3
"""Move Slurm's packages on a host to another version, restart its daemons in order, and revert on a failure."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host.claim import CLAIM_ARGUMENT
from ansible.module_utils.host.errors import INTERVENTION, REPAIRABLE, AdapterError
from ansible.module_utils.host.ledger import Ledger
from ansible.module_utils.host.lock import host_lock
from ansible.module_utils.host.package_source import SOURCE_ARGUMENTS, package_source
from ansible.module_utils.host.packages import refresh_index
from ansible.module_utils.host.units import UNIT_OPTIONS
from ansible.module_utils.slurm.backups import of_change
from ansible.module_utils.slurm.conversion import Patience, StillConverting
from ansible.module_utils.slurm.join_terms import series
from ansible.module_utils.slurm.kept import Kept
from ansible.module_utils.slurm.move import RESTORE, Mover
from ansible.module_utils.slurm.versions import check_window, choose, installed_slurm, offered, oldest

DOCUMENTATION = r"""
module: slurm_packages
short_description: Find the version of Slurm that a host can move to, or move it there
description:
  - C(plan) changes nothing but the package index. It resolves the requested version and refuses one outside of the
    version window, one that no source offers, and one from which no return is possible.
  - C(plan_back) resolves the target of a rollback, or checks that a given version can be installed.
  - C(move) installs all packages of Slurm at once without starting services, then restarts the daemons that started
    before, in the given order, and watches them. If they do not serve, the former packages are installed again and the
    module fails with C(upgrade_taken_back); across series nothing is reverted and it fails with C(upgrade_unfinished).
    A document on the host has the former version, so the next run can continue.
  - While slurmdbd converts its database, C(move) returns C(conversion) and no C(target) after C(conversion_round)
    seconds. Call it again to continue.
options:
  owner: {type: str, required: true, description: "Owner in the ledger, as component/role."}
  source: {type: dict, description: "Where Slurm's packages come from, as in converge_host."}
  source_login: {type: str, description: "Login of the source, as user:password."}
  mode: {type: str, required: true, choices: [plan, plan_back, move], description: What to do.}
  version: {type: str, default: "", description: "A package version, a series, or empty for the newest allowed."}
  window: {type: dict, default: {}, description: "Series of a controller to the series that it can be upgraded from."}
  accept_no_way_back: {type: bool, default: false, description: Move even if no source has the installed version.}
  units: {type: list, elements: dict, default: [], description: "Daemons in order of restart, as in converge_host."}
  watch_controller: {type: bool, default: false, description: Whether slurmctld must serve its nodes again.}
  live_timeout: {type: float, default: 90, description: Seconds until slurmctld must serve.}
  change: {type: str, default: "", description: Name of the change.}
  backup: {type: str, default: "", description: "The backup from before the move, for error messages."}
  database: {type: str, default: "", description: "The accounting database, to watch a conversion."}
  conversion_round: {type: float, default: 45, description: Seconds that one call waits for slurmdbd.}
  conversion_idle: {type: float, default: 900, description: Seconds that slurmdbd may be idle before it listens.}
  conversion_limit: {type: float, default: 604800, description: Seconds until slurmdbd must listen.}
  across_series: {type: bool, default: false, description: "For C(plan_back), whether the series may differ."}
  claim: {type: dict, default: {}, description: "Instance, member and claim number; set by the action plugin."}
author: [gpuaas-slurm]
"""

RETURN = r"""
now: {type: str, description: The version that is installed., returned: success}
target: {type: str, description: The target version., returned: success}
moves: {type: bool, description: Whether these differ., returned: success}
changes: {type: list, description: What was done., returned: success}
from: {type: str, description: The version before the move that is or was under way., returned: by plan}
backup: {type: str, description: The backup of a move that an earlier run began., returned: by plan}
needs_backup: {type: bool, description: Whether to take a backup before the move., returned: by plan}
conversion: {type: dict, description: Progress of the conversion., returned: while slurmdbd converts}
"""


def plan(params: dict[str, Any]) -> dict[str, Any]:
    now = _now()
    check_window(params["version"], now, params["window"])
    refresh_index()
    offers = offered("slurm-client", _origin(params))
    target = choose(params["version"], now, offers, params["window"])
    if target != now and now not in offers and not params["accept_no_way_back"]:
        raise AdapterError(
            "no_way_back",
            f"Nothing was changed: no package source of the host has the installed Slurm {now}, so a failed upgrade"
            " could not be reverted. Give the host a source that has it, or retry with accept_no_way_back.",
            INTERVENTION,
        )
    kept = Kept(params["owner"])
    before, backup = begun(kept, params["change"])
    before = before or now
    # A database that an interrupted move converted in part is still of the former series.
    check_window(target, before, params["window"])
    Mover(kept, Ledger(params["owner"])).check(target)
    return {
        "now": now,
        "target": target,
        "moves": target != now,
        "from": before,
        "backup": backup,
        # A move that an earlier run started has its backup. A new one would contain the unfinished move.
        "needs_backup": target != now and not backup,
    }


def begun(kept: Kept, change: str) -> tuple[str, str]:
    """The version before this change and its backup, if an earlier run started it; otherwise empty texts."""
    note = kept.read("move")
    if note:
        return str(note.get("from") or ""), str(note.get("backup") or "")
    backup = of_change(kept.directory / "backups", change)
    return (str(backup.manifest.get("version") or ""), str(backup.path)) if backup else ("", "")


def plan_back(params: dict[str, Any]) -> dict[str, Any]:
    now, target = _now(), params["version"]
    point = {"packages": {"": target}} if target else Kept(params["owner"]).read("point")
    if point is None or point.get("returned_by", params["change"]) != params["change"]:
        raise AdapterError(
            "nothing_to_return_to",
            "Nothing was changed: the controller has no earlier state to return to. There was no change, or it was"
            " reverted already.",
            INTERVENTION,
        )
    target = target or oldest(point["packages"].values()) or now
    newer = [one for one in installed_slurm().values() if series(one) != series(target)]
    if newer and not params["across_series"]:
        raise AdapterError(
            "rollback_across_series",
            f"Nothing was changed: Slurm {series(target)} can read neither the state nor the database of"
            f" {series(newer[0])}. A backup on the controller has both as they were; a restore loses all later jobs."
            f" To restore, run {RESTORE.format(name='NAME')} (without backup=NAME it lists the backups).",
            INTERVENTION,
        )
    refresh_index()
    Mover(Kept(params["owner"]), Ledger(params["owner"])).check(target)
    return {"now": now, "target": target, "moves": target != now}


def move(params: dict[str, Any]) -> dict[str, Any]:
    kept = Kept(params["owner"])
    mover = Mover(kept, Ledger(params["owner"]))
    target = params["version"]
    mover.finish_interrupted()
    installed = installed_slurm()
    # An upgrade without a change must not replace the point to return to.
    moves = set(installed.values()) != {target} and kept.read("move") is None
    if params["watch_controller"] and params["change"] and moves:
        kept.keep_point(params["change"], installed)
    try:
        changes = mover.move(
            target,
            params["units"],
            controller=params["watch_controller"],
            seconds=params["live_timeout"],
            database=params["database"],
            backup=params["backup"],
            patience=Patience(params["conversion_round"], params["conversion_idle"], params["conversion_limit"]),
        )
    except StillConverting as still:
        return {"now": _now(), "moves": True, "changes": ["packages"], "conversion": still.progress}
    return {"now": _now(), "target": target, "moves": bool(changes), "changes": changes}


def _origin(params: dict[str, Any]) -> str:
    return str((params["source"] or {}).get("uri") or "")


def _now() -> str:
    """The version of Slurm's packages; after an interrupted install the oldest of them."""
    found = oldest(installed_slurm().values())
    if found is None:
        raise AdapterError(
            "slurm_not_installed", "The host has no package of Slurm. Deploy Slurm first, then retry.", REPAIRABLE
        )
    return found


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **CLAIM_ARGUMENT,
            "owner": {"type": "str", "required": True},
            **SOURCE_ARGUMENTS,
            "mode": {"type": "str", "required": True, "choices": ["plan", "plan_back", "move"]},
            "version": {"type": "str", "default": ""},
            "window": {"type": "dict", "default": {}},
            "accept_no_way_back": {"type": "bool", "default": False},
            "units": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    **UNIT_OPTIONS,
                    "timeout": {"type": "float", "default": 60},
                    "enabled": {"type": "bool", "default": False},
                    "watches": {"type": "list", "elements": "str", "default": []},
                    "converts": {"type": "bool", "default": False},
                },
            },
            "watch_controller": {"type": "bool", "default": False},
            "live_timeout": {"type": "float", "default": 90},
            "change": {"type": "str", "default": ""},
            "backup": {"type": "str", "default": ""},
            "database": {"type": "str", "default": ""},
            "conversion_round": {"type": "float", "default": 45},
            "conversion_idle": {"type": "float", "default": 900},
            "conversion_limit": {"type": "float", "default": 604800},
            "across_series": {"type": "bool", "default": False},
        },
        supports_check_mode=False,
    )
    with (
        host_lock(module, "moving Slurm's packages", changes=module.params["mode"] == "move"),
        package_source(module.params["source"], module.params["source_login"]),
    ):
        result = {"plan": plan, "plan_back": plan_back, "move": move}[module.params["mode"]](module.params)
    module.exit_json(changed=bool(result.get("changes")), **result)


if __name__ == "__main__":
    main()
