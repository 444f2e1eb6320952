#!/usr/bin/python3
"""Put a configuration live only after Slurm itself has run with it."""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from ansible.module_utils.adapter_error import INTERVENTION, AdapterError, from_os_error
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.converge_files import find
from ansible.module_utils.converge_ledger import Ledger, write_atomically
from ansible.module_utils.slurm_conf import render, replace_settings

DOCUMENTATION = r"""
module: slurm_config
short_description: Render slurm.conf, let slurmctld start with it beside the live one, then swap it in
description:
  - No supported slurmctld has an option to test a file, and the client commands only parse its syntax. A wrong
    plugin or a partition without nodes shows when slurmctld starts, and a reload with it kills a 22.05 daemon.
  - So the rendered text is tried by a real slurmctld with a scratch state directory, another port and no
    accounting. Once that says it is the primary controller it is stopped, and the text goes live atomically.
  - A refused text leaves the live files as they are.
options:
  owner: {type: str, required: true, description: "Who asks, for the ledger, as component/role."}
  directory: {type: path, default: /etc/slurm, description: Where the configuration lives.}
  managed: {type: dict, required: true, description: The adapter's own settings.}
  requested: {type: dict, default: {}, description: Settings asked for from outside.}
  nodesets: {type: dict, default: {}, description: Name to options.}
  partitions: {type: dict, default: {}, description: Name to options.}
  companions: {type: dict, default: {}, description: "Other files of the directory, name to text."}
  slurm_user: {type: str, default: slurm, description: User that slurmctld runs as.}
  timeout: {type: float, default: 20, description: Seconds the trial may take.}
author: [gpuaas-slurm]
"""

RETURN = r"""
config_version: {type: str, description: Digest of slurm.conf as rendered., returned: success}
replaced: {type: bool, description: Another configuration was live before., returned: success}
"""

SUCCESS = "Running as primary controller"
NOISE = re.compile(r"state file|state save file|fed_mgr|MailProg|accounting information|asked for it not to be stored")
POLL_SECONDS = 0.02


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def trial_text(text: str, scratch: Path) -> str:
    """What must differ so that the trial touches nothing of a live cluster: state, ports, accounting, logs."""
    trial: str = replace_settings(
        text,
        {
            "AccountingStorageEnforce": "",
            "AccountingStorageHost": "",
            "AccountingStorageTRES": "",
            "AccountingStorageType": "",
            "SlurmctldDebug": "info",
            "SlurmctldLogFile": "",
            "SlurmctldPidFile": str(scratch / "slurmctld.pid"),
            "SlurmctldPort": str(free_port()),
            "StateSaveLocation": str(scratch / "state"),
        },
    )
    return trial


def try_out(text: str, companions: dict[str, str], user: str, seconds: float) -> None:
    scratch = Path(tempfile.mkdtemp(prefix="gpuaas-slurm-config."))
    try:
        account = pwd.getpwnam(user)
        (scratch / "state").mkdir()
        for name, content in {**companions, "slurm.conf": trial_text(text, scratch)}.items():
            (scratch / name).write_text(content)
        for path in (scratch, *scratch.iterdir()):
            os.chown(path, account.pw_uid, account.pw_gid)
        _start_and_stop(scratch, seconds)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _start_and_stop(scratch: Path, seconds: float) -> None:
    log = scratch / "log"
    with log.open("wb") as sink:
        daemon = subprocess.Popen(
            ["slurmctld", "-D", "-f", str(scratch / "slurm.conf")], stdout=sink, stderr=subprocess.STDOUT, cwd=scratch
        )
    deadline = time.monotonic() + seconds
    try:
        while SUCCESS not in log.read_text(errors="replace"):
            ended = daemon.poll() is not None
            if ended or time.monotonic() > deadline:
                raise _refused(log.read_text(errors="replace"), "" if ended else " (it did not start in time)")
            time.sleep(POLL_SECONDS)
        # 22.05 says so before it loads its last plugins, and blocks signals until it has. Only one that started whole
        # ends in good order.
        daemon.terminate()
        if daemon.wait(timeout=seconds) != 0:
            raise _refused(log.read_text(errors="replace"), "")
    except subprocess.TimeoutExpired:
        raise _refused(log.read_text(errors="replace"), " (it did not end when asked to)") from None
    finally:
        if daemon.poll() is None:
            daemon.kill()
            daemon.wait()


def _refused(log: str, how: str) -> AdapterError:
    told = [line.removeprefix("slurmctld: ") for line in log.splitlines() if "error:" in line or "fatal:" in line]
    told = [line for line in told if not NOISE.search(line)][-4:]
    return AdapterError(
        "config_refused",
        f"slurmctld refuses the configuration{how}: {' | '.join(told) or 'it gave no reason'}."
        " The live one is untouched. Correct the instance's configuration, then retry.",
        INTERVENTION,
    )


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "owner": {"type": "str", "required": True},
            "directory": {"type": "path", "default": "/etc/slurm"},
            "managed": {"type": "dict", "required": True},
            "requested": {"type": "dict", "default": {}},
            "nodesets": {"type": "dict", "default": {}},
            "partitions": {"type": "dict", "default": {}},
            "companions": {"type": "dict", "default": {}},
            "slurm_user": {"type": "str", "default": "slurm"},
            "timeout": {"type": "float", "default": 20},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    try:
        text = render(wanted["managed"], wanted["requested"], wanted["nodesets"], wanted["partitions"])
        files = {**wanted["companions"], "slurm.conf": text}
        directory = Path(wanted["directory"])
        differing = [
            name
            for name in sorted(files)
            if find(directory / name).digest != hashlib.sha256(files[name].encode()).hexdigest()
        ]
        replaced = bool(differing) and (directory / "slurm.conf").exists()
        if differing and not module.check_mode:
            try_out(text, wanted["companions"], wanted["slurm_user"], wanted["timeout"])
            ledger = Ledger(wanted["owner"])
            for name in differing:
                path = directory / name
                if path.is_file() and not ledger.knows("path", str(path)):
                    ledger.keep(path.read_bytes())
                ledger.note("path", str(path), find(path).as_before())
            ledger.save()
            # slurm.conf last: nobody reads it before what it stands on is there.
            for name in sorted(differing, key=lambda name: name == "slurm.conf"):
                write_atomically(directory / name, files[name].encode(), mode=0o644)
    except OSError as error:
        problem = from_os_error(error, "writing Slurm's configuration")
        module.fail_json(msg=problem.message, adapter_error=problem.as_dict())
    except AdapterError as error:
        module.fail_json(msg=error.message, adapter_error=error.as_dict())
    version = "sha256:" + hashlib.sha256(text.encode()).hexdigest()[:16]
    module.exit_json(
        changed=bool(differing),
        changes=[f"file {name}" for name in differing],
        config_version=version,
        replaced=replaced,
    )


if __name__ == "__main__":
    main()
