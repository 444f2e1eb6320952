#!/usr/bin/python3
"""Change a host's munge key at a given time, and restart nothing but munged."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host.claim import CLAIM_ARGUMENT
from ansible.module_utils.host.errors import INTERVENTION, REPAIRABLE, AdapterError
from ansible.module_utils.host.facts import os_release
from ansible.module_utils.host.files import content_of, converge_files, find, note_paths
from ansible.module_utils.host.ledger import Ledger
from ansible.module_utils.host.lock import host_lock
from ansible.module_utils.host.packages import installed_versions, is_below
from ansible.module_utils.host.units import needs_restart, state_of
from ansible.module_utils.slurm.commands import run
from ansible.module_utils.slurm.munge_switch import delay, is_live, started_at

DOCUMENTATION = r"""
module: munge_rotate
short_description: Stage a new munge key, switch to it on all hosts at one time, and check the result
description:
  - munged reads its key at its start and has one key only. So the key is put beside the live one first, and a timer
    of the host's own systemd moves it into place and restarts munged at the time that all hosts were given.
  - Every mode may be run again. A host that has the key already is left alone.
options:
  mode:
    type: str
    required: true
    choices: [look, stage, switch, prove, drop]
    description: >-
      C(look) changes nothing; C(stage) writes the key beside the live one; C(switch) does that and sets the timer;
      C(prove) waits until munged has the key and tests it; C(drop) deletes a staged key.
  owner: {type: str, required: true, description: "Owner in the ledger, as component/role."}
  key: {type: str, description: The new key in base64.}
  at: {type: float, description: "When to switch, by the clock of the machine that runs Ansible."}
  reference_epoch: {type: float, description: The present time by that clock.}
  pause_jobs:
    type: bool
    default: false
    description: For the controller. Partitions that are up start no job for a few seconds around the switch.
  skew: {type: float, description: Measured seconds by which this host's clock is ahead of that clock.}
  timeout: {type: float, default: 30, description: Seconds after the switch until munged must have the key.}
  peer_credential: {type: str, description: A credential that another host made with the new key.}
  fixed:
    type: dict
    default: {}
    description: For C(prove). By system, as in Debian-12, the first version of munge without known holes.
  slurm: {type: bool, default: false, description: Whether slurmctld must answer a request from here.}
  claim: {type: dict, default: {}, description: "Instance, member and claim number; set by the action plugin."}
author: [gpuaas-slurm]
"""

RETURN = r"""
changes: {type: list, returned: always, description: "What changed, by name."}
ready: {type: bool, returned: success, description: "True; a failure does not have it."}
skew: {type: float, returned: "mode=look", description: Seconds by which this host's clock is ahead at most.}
credential: {type: str, returned: "mode=prove", description: "A new credential, made as nobody."}
munge_version: {type: str, returned: "mode=prove", description: The installed munge.}
munge_vulnerable: {type: bool, returned: "mode=prove", description: "Whether it is older than O(fixed), or unknown."}
switched_at: {type: float, returned: "mode=prove", description: "Start of munged with the key, by this host's clock."}
"""

LIVE = Path("/etc/munge/munge.key")
STAGED = Path("/etc/munge/munge.key.next")
SOCKET = Path("/run/munge/munge.socket.2")
TIMER = "gpuaas-slurm-munge-switch"
# touch first: the key must be older than the munged that reads it, also after an interruption.
SWITCH = f"if [ -f {STAGED} ]; then touch {STAGED} && mv -f {STAGED} {LIVE}; fi; systemctl restart munge"
# A job that is launched while hosts have different keys fails to start. So the controller sets its partitions down
# around the switch. They accept jobs meanwhile, and the script sets them up again even if this module was killed.
PAUSE_SECONDS = 2
PAUSED_SWITCH = f"""
up=$(scontrol --all --oneliner show partition | sed -n 's/^PartitionName=\\([^ ]*\\) .*State=UP .*/\\1/p')
for one in $up; do scontrol update "partitionname=$one" state=down; done
python3 -c 'import sys, time; time.sleep(max(0, float(sys.argv[1]) - time.time()))' "$1"
{SWITCH}
sleep {PAUSE_SECONDS}
for one in $up; do
  tries=0
  until scontrol update "partitionname=$one" state=up || [ $((tries += 1)) -gt 60 ]; do sleep 1; done
done
"""
POLL_SECONDS = 0.1


def check_ready() -> None:
    """Raise the reason why this host cannot change its key."""
    found = find(STAGED)
    # A file that is not in the ledger belongs to others.
    if found.kind not in ("absent", "file") or (found.kind == "file" and not _is_ours()):
        raise AdapterError(
            "path_in_the_way",
            f"{STAGED} on the host is a {found.kind} that the adapter did not create. Move it away, then retry.",
            INTERVENTION,
        )
    state = state_of("munge")
    if find(LIVE).kind != "file" or state.get("ActiveState") != "active":
        raise AdapterError(
            "munge_not_running",
            f"munge is {state.get('ActiveState', 'unknown')} on the host, so its key cannot be changed while the"
            " cluster runs. Repair munge there, then retry.",
            REPAIRABLE,
        )
    if not shutil.which("systemd-run"):
        raise AdapterError(
            "systemd_run_missing", "The host has no systemd-run. Install systemd there, then retry.", INTERVENTION
        )


def uses_key(key: bytes) -> bool:
    """Whether munged runs with this key: the key is in place, and munged started after it was written."""
    state = state_of("munge")
    return (
        is_live(LIVE, key)
        and state.get("ActiveState") == "active"
        and not needs_restart(state, [str(LIVE)])
        and SOCKET.exists()
    )


def stage(params: dict[str, Any], key: bytes) -> list[str]:
    check_ready()
    if is_live(LIVE, key):
        return drop()
    wanted = {"path": str(STAGED), "secret": params["key"], "owner": "munge", "group": "munge", "mode": "0400"}
    ledger = Ledger(params["owner"])
    note_paths(ledger, {"directories": [], "files": [wanted], "links": []})
    ledger.save()
    return converge_files([wanted], dry=False)


def switch(params: dict[str, Any], key: bytes) -> list[str]:
    changes = stage(params, key)
    if uses_key(key) or _is_armed():
        return changes  # done already, or another member on this host has set the timer
    now = time.time()
    seen = [now - params["reference_epoch"], *([] if params["skew"] is None else [params["skew"]])]
    seconds = delay(params["at"], now, seen)
    script = ["/bin/sh", "-c", SWITCH]
    if params["pause_jobs"]:
        script = ["/bin/sh", "-c", PAUSED_SWITCH, "switch", f"{now + seconds:.3f}"]
        seconds = max(0.0, seconds - PAUSE_SECONDS)
    command = ["systemd-run", "--quiet", "--collect", f"--unit={TIMER}", f"--on-active={seconds:.3f}"]
    command += ["--timer-property=AccuracySec=1ms", "--description=The cluster's new munge key takes effect"]
    done = subprocess.run([*command, *script], capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        raise AdapterError(
            "timer_failed",
            f"systemd set no timer on the host: {done.stderr.strip()}. Read its journal, then retry.",
            REPAIRABLE,
        )
    return [*changes, f"timer {TIMER}"]


def prove(params: dict[str, Any], key: bytes) -> dict[str, Any]:
    ahead = max(0.0, (params["at"] or 0) - (params["reference_epoch"] or 0))
    deadline = time.monotonic() + ahead + params["timeout"]
    while not uses_key(key) or _is_switching():
        if time.monotonic() > deadline:
            raise AdapterError(
                "munge_key_old",
                f"munged does not run with the new key. Read `journalctl -u munge -u {TIMER}` on the host, then run"
                " the deploy play for it.",
                REPAIRABLE,
            )
        time.sleep(POLL_SECONDS)
    if params["peer_credential"]:
        done = subprocess.run(
            ["unmunge", "--output=/dev/null", "--metadata=/dev/null"],
            input=params["peer_credential"],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        if done.returncode != 0:
            raise AdapterError(
                "munge_mismatch",
                f"munge refuses a credential of the controller ({done.stderr.strip()}). Compare clocks and keys of the"
                " two hosts, then run the deploy play for this one.",
                REPAIRABLE,
            )
    if params["slurm"]:
        _ask_slurmctld(deadline)
    code, credential, _ = run("runuser", "-u", "nobody", "--", "munge", "--no-input")
    return {
        "credential": credential.strip() if code == 0 else None,
        "switched_at": started_at(state_of("munge")),
        **munge_age(params["fixed"]),
    }


def munge_age(fixed: dict[str, str]) -> dict[str, Any]:
    """The installed munge, and whether it is older than the fixed version of this system."""
    release = os_release()
    version = installed_versions(["munge"]).get("munge")
    minimum = fixed.get(f"{release.get('ID', '').capitalize()}-{release.get('VERSION_ID', '')}", "")
    return {"munge_version": version or "unknown", "munge_vulnerable": is_below(version, minimum)}


def _ask_slurmctld(deadline: float) -> None:
    """Send a request and wait for the answer, which tests the credentials of both sides."""
    while True:
        code, answer, errors = run("scontrol", "ping")
        if code == 0 and " is UP" in answer:
            return
        if time.monotonic() > deadline:
            raise AdapterError(
                "slurmctld_not_answering",
                f"slurmctld did not answer a request from this host ({errors or answer.strip() or 'no reason given'})."
                " Read slurmctld's journal on the controller, then retry.",
                REPAIRABLE,
            )
        time.sleep(POLL_SECONDS)


def drop() -> list[str]:
    if find(STAGED).kind != "file" or not _is_ours():
        return []
    STAGED.unlink()
    return [f"file {STAGED}"]


def _is_ours() -> bool:
    return Ledger("nobody").has("path", str(STAGED))


def _is_armed() -> bool:
    return state_of(f"{TIMER}.timer").get("ActiveState") == "active"


def _is_switching() -> bool:
    """On the controller the switch ends only when its partitions are up again."""
    return state_of(TIMER).get("ActiveState") in ("active", "activating")


def run_mode(params: dict[str, Any], dry: bool) -> dict[str, Any]:
    mode, result = params["mode"], {"changes": [], "ready": True}
    if mode == "look" or dry:
        check_ready()
        return result | {"skew": time.time() - (params["reference_epoch"] or time.time())}
    if mode == "drop":
        return result | {"changes": drop()}
    key = content_of({"path": str(LIVE), "secret": params["key"]})
    if len(key) < 32:
        raise AdapterError(
            "secret_malformed", "The new key is too short. Correct it in the vault, then retry.", INTERVENTION
        )
    if mode == "stage":
        return result | {"changes": stage(params, key)}
    if mode == "switch":
        return result | {"changes": switch(params, key)}
    return result | prove(params, key)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **CLAIM_ARGUMENT,
            "mode": {"type": "str", "required": True, "choices": ["look", "stage", "switch", "prove", "drop"]},
            "owner": {"type": "str", "required": True},
            "key": {"type": "str", "no_log": True},
            "at": {"type": "float"},
            "reference_epoch": {"type": "float"},
            "pause_jobs": {"type": "bool", "default": False},
            "skew": {"type": "float"},
            "timeout": {"type": "float", "default": 30},
            "peer_credential": {"type": "str"},
            "fixed": {"type": "dict", "default": {}},
            "slurm": {"type": "bool", "default": False},
        },
        required_if=[
            ("mode", "stage", ["key"]),
            ("mode", "switch", ["key", "at", "reference_epoch"]),
            ("mode", "prove", ["key"]),
        ],
        supports_check_mode=True,
    )
    mode = module.params["mode"]
    # While this call waits for the switch, the other member on the host may continue.
    with host_lock(module, "changing the munge key", changes=mode not in ("look", "prove"), alone=mode != "prove"):
        result = run_mode(module.params, module.check_mode)
    module.exit_json(changed=bool(result["changes"]), **result)


if __name__ == "__main__":
    main()
