#!/usr/bin/python3
"""Converge packages, users, files and units of a host in one round trip."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host.claim import CLAIM_ARGUMENT
from ansible.module_utils.host.database import note_databases
from ansible.module_utils.host.digest import file_version
from ansible.module_utils.host.files import (
    converge_directories,
    converge_files,
    converge_links,
    note_paths,
    note_trees,
)
from ansible.module_utils.host.foreign_packages import converge_services, preinstalled_packages, restore_former_files
from ansible.module_utils.host.ledger import Ledger
from ansible.module_utils.host.lock import host_lock
from ansible.module_utils.host.package_source import SOURCE_ARGUMENTS, clear_source, package_source
from ansible.module_utils.host.packages import MINIMUM_OPTIONS, check_minimums, converge_packages, installed_versions
from ansible.module_utils.host.proofs import run_proofs
from ansible.module_utils.host.units import UNIT_OPTIONS, dropin_path, note_units, show
from ansible.module_utils.host.users import converge_users

DOCUMENTATION = r"""
module: converge_host
short_description: Converge packages, users, files and units of one host in one round trip
description:
  - Every task costs a round trip, and a worker should join in seconds, so a role passes its desired state at once.
  - Order is users, packages, directories, files, links, units. Packages start no service when installed.
  - A unit is restarted only if it does not run, or if its drop-in or a path in its C(watches) changed after its start.
  - Before the first change of a thing its state and its owner are noted in a ledger on the host.
options:
  owner: {type: str, required: true, description: Owner in the ledger, as component/role.}
  claim: {type: dict, default: {}, description: "Instance, member and claim number; set by the action plugin."}
  packages: {type: list, elements: str, default: [], description: Packages to install.}
  source:
    type: dict
    description: Where Slurm's packages come from, if not from the host's own sources. Used for this call only.
    suboptions:
      uri: {type: str, description: URI of its dists directory.}
      suite: {type: str, description: Its suite.}
      components: {type: list, elements: str, description: Its components.}
      signing_key: {type: str, description: "The OpenPGP key that signs it, in base64."}
      private: {type: bool, description: Whether it needs a login.}
      denied: {type: str, description: The rule that denies installation; a missing package is then an error.}
  source_login: {type: str, description: "Login of the source, as user:password."}
  declared_users:
    type: list
    elements: dict
    description: >-
      Complete list of users that may submit. A user of an earlier list that is not on this one is locked. Without it
      users are not changed.
    suboptions:
      name: {type: str, required: true, description: Name of the user and its group.}
      uid: {type: int, required: true, description: Its uid.}
      gid: {type: int, required: true, description: Its gid.}
      shell: {type: str, default: /bin/bash, description: Its shell.}
  minimums:
    type: list
    elements: dict
    default: []
    description: Versions that packages must have, checked after they are installed and before anything is written.
    suboptions:
      package: {type: str, required: true, description: The package.}
      version: {type: str, required: true, description: The lowest version; an empty one is unknown, and never met.}
      code: {type: str, required: true, description: The error's code.}
      message: {type: str, required: true, description: What an operator does next.}
      refuse: {type: bool, default: true, description: Whether an older version is an error or only returned.}
  ssh_keys: {type: dict, default: {}, description: "User to its complete list of public keys."}
  directories:
    type: list
    elements: dict
    default: []
    description: Directories to create.
    suboptions:
      path: {type: path, required: true, description: Where.}
      owner: {type: str, default: root, description: User.}
      group: {type: str, default: root, description: Group.}
      mode: {type: str, default: "0755", description: Octal mode.}
  files:
    type: list
    elements: dict
    default: []
    description: Files to write, each replaced in one step.
    suboptions:
      path: {type: path, required: true, description: Where.}
      content: {type: str, description: Text.}
      secret: {type: str, description: Content in base64 that must never be shown.}
      owner: {type: str, default: root, description: User.}
      group: {type: str, default: root, description: Group.}
      mode: {type: str, default: "0644", description: Octal mode.}
      package:
        type: str
        description: >-
          Write the file only if the adapter installed this package. The configuration of a package that was there
          before belongs to its owner, and a file of ours in it is removed.
  retired:
    type: list
    elements: path
    default: []
    description: Files of earlier versions. Removed if the ledger has them, after the other files are written.
  links:
    type: list
    elements: dict
    default: []
    description: Symbolic links to create.
    suboptions:
      path: {type: path, required: true, description: Where.}
      target: {type: str, required: true, description: The link's target.}
  trees:
    type: list
    elements: dict
    default: []
    description: Directories that services fill while they run. Their content is noted, nothing is changed.
    suboptions:
      path: {type: path, required: true, description: Where.}
      package: {type: str, required: true, description: The package that the directory belongs to.}
  databases:
    type: list
    elements: dict
    default: []
    description: Databases to create in the host's MariaDB, by SQL over its socket.
    suboptions:
      name: {type: str, required: true, description: The database.}
      user: {type: str, required: true, description: Its user on localhost.}
      password: {type: str, required: true, description: The user's password.}
  units:
    type: list
    elements: dict
    default: []
    description: systemd services to run, in this order.
    suboptions:
      name: {type: str, required: true, description: Without .service.}
      dropin: {type: str, description: Text of our drop-in.}
      enabled: {type: bool, default: true, description: Start at boot.}
      restart: {type: bool, default: false, description: Restart it even if no watched path changed.}
      watches: {type: list, elements: str, default: [], description: "Paths, or package:NAME, read at its start."}
      ready_port: {type: int, description: Up when it listens here.}
      ready_path: {type: path, description: Up when this exists.}
      timeout: {type: float, default: 45, description: Seconds to come up.}
      package:
        type: str
        description: >-
          The package of the unit. If it was installed before the cluster, the unit is never restarted, and a unit that
          ran before is not started either.
  proofs:
    type: list
    elements: dict
    default: []
    description: Commands that must succeed once the units run, or after a restart of them.
    suboptions:
      argv: {type: list, elements: str, required: true, description: The command.}
      stdin: {type: str, description: Its standard input.}
      code: {type: str, required: true, description: The error's code if it fails.}
      message: {type: str, required: true, description: The error's message; the command's last line follows it.}
  digests:
    type: dict
    default: {}
    description: Name to path of files whose digest is returned; null for a file that does not exist.
author: [gpuaas-slurm]
"""

RETURN = r"""
changes: {type: list, description: "What changed, by name.", returned: always}
packages: {type: dict, description: Installed versions., returned: success}
below: {type: list, description: Packages that are older than O(minimums) and were not refused., returned: success}
units: {type: dict, description: ActiveState of each unit., returned: success}
digests: {type: dict, description: "Digests of O(digests).", returned: success}
"""


def converge(params: dict[str, Any], dry: bool) -> tuple[list[str], dict[str, Any]]:
    units: list[dict[str, Any]] = params["units"]
    dropins = [
        {"path": dropin_path(u["name"]), "content": u["dropin"], "owner": "root", "group": "root", "mode": "0644"}
        for u in units
        if u["dropin"] is not None
    ]
    ledger = Ledger(params["owner"])
    foreign = preinstalled_packages(params, ledger)
    left_alone = [file["path"] for file in params["files"] if file["package"] in foreign]
    params = {**params, "files": [file for file in params["files"] if file["package"] not in foreign] + dropins}
    if not dry:
        note_databases(ledger, params["databases"])
        note_paths(ledger, params)
        note_trees(ledger, params["trees"], foreign)
    note_units(ledger, units)
    changes = converge_users(params["declared_users"], params["ssh_keys"], ledger, dry)
    source = package_source(params["source"], params["source_login"])
    changes += converge_packages(params["packages"], ledger, dry, source)
    if not dry:
        clear_source()  # of a run that was killed
        ledger.save()
    below = [] if dry else check_minimums(params["minimums"])
    changes += converge_directories(params["directories"], dry)
    changes += converge_files(params["files"], dry)
    if not dry:
        changes += restore_former_files(left_alone + params["retired"], ledger)
    changes += converge_links(params["links"], dry)
    changes += converge_services(params, foreign, ledger, dry)
    if not dry:
        changes += run_proofs(params["proofs"], units)
    states = show([unit["name"] for unit in units])
    return changes, {
        "packages": installed_versions(params["packages"]),
        "below": below,
        "units": {name: state.get("ActiveState", "unknown") for name, state in states.items()},
        "digests": {name: file_version(path) for name, path in params["digests"].items()},
    }


def main() -> None:
    path: dict[str, Any] = {"type": "path", "required": True}
    ownership: dict[str, Any] = {
        "owner": {"type": "str", "default": "root"},
        "group": {"type": "str", "default": "root"},
    }
    several: dict[str, Any] = {"type": "list", "elements": "dict", "default": []}
    module = AnsibleModule(
        argument_spec={
            **CLAIM_ARGUMENT,
            "owner": {"type": "str", "required": True},
            "packages": {"type": "list", "elements": "str", "default": []},
            **SOURCE_ARGUMENTS,
            "declared_users": {
                "type": "list",
                "elements": "dict",
                "options": {
                    "name": {"type": "str", "required": True},
                    "uid": {"type": "int", "required": True},
                    "gid": {"type": "int", "required": True},
                    "shell": {"type": "str", "default": "/bin/bash"},
                },
            },
            "minimums": {**several, "options": MINIMUM_OPTIONS},
            "ssh_keys": {"type": "dict", "default": {}, "no_log": False},
            "directories": {
                **several,
                "options": {"path": path, **ownership, "mode": {"type": "str", "default": "0755"}},
            },
            "files": {
                **several,
                "options": {
                    "path": path,
                    "content": {"type": "str"},
                    "secret": {"type": "str", "no_log": True},
                    **ownership,
                    "mode": {"type": "str", "default": "0644"},
                    "package": {"type": "str"},
                },
                "required_one_of": [["content", "secret"]],
                "mutually_exclusive": [["content", "secret"]],
            },
            "links": {**several, "options": {"path": path, "target": {"type": "str", "required": True}}},
            "retired": {"type": "list", "elements": "path", "default": []},
            "trees": {**several, "options": {"path": path, "package": {"type": "str", "required": True}}},
            "databases": {
                **several,
                "options": {
                    "name": {"type": "str", "required": True},
                    "user": {"type": "str", "required": True},
                    "password": {"type": "str", "required": True, "no_log": True},
                },
            },
            "units": {
                **several,
                "options": {
                    **UNIT_OPTIONS,
                    "dropin": {"type": "str"},
                    "enabled": {"type": "bool", "default": True},
                    "restart": {"type": "bool", "default": False},
                    "watches": {"type": "list", "elements": "str", "default": []},
                    "package": {"type": "str"},
                },
            },
            "proofs": {
                **several,
                "options": {
                    "argv": {"type": "list", "elements": "str", "required": True},
                    "stdin": {"type": "str"},
                    "code": {"type": "str", "required": True},
                    "message": {"type": "str", "required": True},
                },
            },
            "digests": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    with host_lock(module, "converging the host"):
        changes, seen = converge(module.params, module.check_mode)
    module.exit_json(changed=bool(changes), changes=changes, **seen)


if __name__ == "__main__":
    main()
