#!/usr/bin/python3
"""Move Slurm's packages on a host to another version, its daemons in order, and back if they do not serve."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host.claim import CLAIM_ARGUMENT
from ansible.module_utils.host.errors import INTERVENTION, REPAIRABLE, AdapterError
from ansible.module_utils.host.ledger import Ledger
from ansible.module_utils.host.lock import host_lock
from ansible.module_utils.host.package_source import SOURCE_ARGUMENTS, package_source
from ansible.module_utils.host.packages import refresh_index
from ansible.module_utils.slurm.backups import of_change
from ansible.module_utils.slurm.conversion import Patience, StillConverting
from ansible.module_utils.slurm.join_terms import series
from ansible.module_utils.slurm.kept import Kept
from ansible.module_utils.slurm.move import RESTORE, Mover
from ansible.module_utils.slurm.versions import check_window, choose, installed_slurm, offered, oldest

DOCUMENTATION = r"""
module: slurm_packages
short_description: See which version of Slurm a host can move to, or move it there
description:
  - C(plan) touches nothing but the package index. It resolves what was asked for and refuses what lies outside the
    version window, what no source offers, and what one could not return from.
  - C(plan_back) resolves what C(rollback) returns to, or sees that a given version can be returned to.
  - C(move) installs all packages of Slurm in one go with services held, then restarts the daemons that started before
    that, in the order given, and watches them. If they do not serve, the former packages are put back and it fails with
    C(upgrade_taken_back); across series nothing is put back and it fails with C(upgrade_unfinished). A note on the host
    says that packages are being moved, so the next run knows what was before.
  - While slurmdbd converts its database, C(move) returns C(conversion) and no C(target) after C(conversion_round)
    seconds. Call it again to go on.
options:
  owner: {type: str, required: true, description: "Who asks, for the ledger, as component/role."}
  source: {type: dict, description: "Where Slurm's packages come from, as in converge_host."}
  source_login: {type: str, description: "What opens it, as user:password."}
  mode: {type: str, required: true, choices: [plan, plan_back, move], description: What to do.}
  version: {type: str, default: "", description: "A package version, a series, or nothing for the newest that fits."}
  window: {type: dict, default: {}, description: "By series of a controller, the series it can take over from."}
  accept_no_way_back: {type: bool, default: false, description: Also if no source has the version installed now.}
  units: {type: list, elements: dict, default: [], description: "Daemons in order of restart, as in converge_host."}
  watch_controller: {type: bool, default: false, description: Whether slurmctld must serve its nodes again.}
  live_timeout: {type: float, default: 90, description: Seconds until it must.}
  change: {type: str, default: "", description: A name for the change that this is a part of.}
  backup: {type: str, default: "", description: "The backup from before the move, which an error names."}
  database: {type: str, default: "", description: "The accounting database, to see whether a conversion goes on."}
  conversion_round: {type: float, default: 45, description: Seconds that one call waits for slurmdbd.}
  conversion_idle: {type: float, default: 900, description: Seconds that slurmdbd may do nothing before it listens.}
  conversion_limit: {type: float, default: 604800, description: Seconds until slurmdbd must listen.}
  across_series: {type: bool, default: false, description: "For C(plan_back), whether the series may differ."}
  claim: {type: dict, default: {}, description: "Instance, member and claim number; set by the action plugin."}
author: [gpuaas-slurm]
"""

RETURN = r"""
now: {type: str, description: The version that is installed., returned: success}
target: {type: str, description: The version to move to., returned: success}
moves: {type: bool, description: Whether these differ., returned: success}
changes: {type: list, description: What was done., returned: success}
from: {type: str, description: The version before the move that is or was under way., returned: by plan}
backup: {type: str, description: The backup of a move that an earlier run began., returned: by plan}
conversion: {type: dict, description: How far slurmdbd is., returned: while slurmdbd converts}
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
            f"Nothing was touched: no package source of the host has Slurm {now}, which is installed, so a failed"
            " upgrade could not be taken back. Give the host a source that has it, or ask with accept_no_way_back.",
            INTERVENTION,
        )
    kept = Kept(params["owner"])
    before, backup = begun(kept, params["change"])
    before = before or now
    # A database that an unfinished move left half converted is still of the series before it.
    check_window(target, before, params["window"])
    Mover(kept, Ledger(params["owner"])).check(target)
    return {"now": now, "target": target, "moves": target != now, "from": before, "backup": backup}


def begun(kept: Kept, change: str) -> tuple[str, str]:
    """The version before this change, and its backup, if an earlier run began it: nothing may be left to do by now."""
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
            "Nothing was touched: the controller keeps nothing to return to, since nothing was changed or it has been"
            " taken back already.",
            INTERVENTION,
        )
    target = target or oldest(point["packages"].values()) or now
    newer = [one for one in installed_slurm().values() if series(one) != series(target)]
    if newer and not params["across_series"]:
        raise AdapterError(
            "rollback_across_series",
            f"Nothing was touched: Slurm {series(target)} can read neither the state nor the database of"
            f" {series(newer[0])}. Both as they were are in a backup on the controller; what ran since is lost with it,"
            f" so this is for a person to decide: {RESTORE.format(name='NAME')} (without backup=NAME it lists them).",
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
    # An upgrade that finds nothing to do is no change: what was before the last one is still what one returns to.
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
    """One version for all of Slurm's packages; after an install that was cut off, the oldest is what counts."""
    found = oldest(installed_slurm().values())
    if found is None:
        raise AdapterError("slurm_not_installed", "The host has no package of Slurm. Deploy it first.", REPAIRABLE)
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
                    "name": {"type": "str", "required": True},
                    "enabled": {"type": "bool", "default": False},
                    "watches": {"type": "list", "elements": "str", "default": []},
                    "ready_port": {"type": "int"},
                    "ready_path": {"type": "path"},
                    "timeout": {"type": "float", "default": 60},
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
        told = {"plan": plan, "plan_back": plan_back, "move": move}[module.params["mode"]](module.params)
    module.exit_json(changed=bool(told.get("changes")), **told)


if __name__ == "__main__":
    main()
