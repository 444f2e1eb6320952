"""Try a configuration with a real slurmctld beside the live one: nothing else finds every error in it.

No supported slurmctld has an option to test a file, and the client commands only parse its syntax. A wrong plugin or a
partition without nodes is found only at the start of slurmctld, and a reload with it ends a 22.05 daemon.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from ..host.errors import INTERVENTION, AdapterError
from .conf import replace_settings

SUCCESS = "Running as primary controller"
NOISE = re.compile(r"state file|state save file|fed_mgr|MailProg|accounting information|asked for it not to be stored")
POLL_SECONDS = 0.02
SCRATCH = "gpuaas-slurm-config."


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def trial_text(text: str, scratch: Path, user: str) -> str:
    """The configuration with other state, ports, accounting and logs, so that the trial does not touch the cluster."""
    return replace_settings(
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
            "SlurmUser": user,
            "StateSaveLocation": str(scratch / "state"),
        },
    )


def run_trial(text: str, companions: dict[str, str], user: str, seconds: float) -> None:
    for left in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
        shutil.rmtree(left, ignore_errors=True)  # of a run that was killed; the host's lock allows one trial at a time
    scratch = Path(tempfile.mkdtemp(prefix=SCRATCH))
    try:
        account = pwd.getpwnam(user)
        (scratch / "state").mkdir()
        for name, content in {**companions, "slurm.conf": trial_text(text, scratch, user)}.items():
            (scratch / name).write_text(content)
        for path in (scratch, *scratch.iterdir()):
            os.chown(path, account.pw_uid, account.pw_gid)
        _start_and_stop(scratch, user, seconds)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _start_and_stop(scratch: Path, user: str, seconds: float) -> None:
    log = scratch / "log"
    with log.open("wb") as sink:
        daemon = subprocess.Popen(
            # pdeathsig ends it with this process. slurmctld would clear it if it changed its user itself.
            [
                *("setpriv", "--reuid", user, "--regid", user, "--init-groups", "--pdeathsig", "KILL"),
                *("slurmctld", "-D", "-f", str(scratch / "slurm.conf")),
            ],
            stdout=sink,
            stderr=subprocess.STDOUT,
            cwd=scratch,
        )
    deadline = time.monotonic() + seconds
    try:
        while SUCCESS not in log.read_text(errors="replace"):
            ended = daemon.poll() is not None
            if ended or time.monotonic() > deadline:
                raise _refused(log.read_text(errors="replace"), "" if ended else " (it did not start in time)")
            time.sleep(POLL_SECONDS)
        # 22.05 logs this before it loads its last plugins, and blocks signals until then. Exit code 0 after a signal
        # shows that the start was complete.
        daemon.terminate()
        if daemon.wait(timeout=seconds) != 0:
            raise _refused(log.read_text(errors="replace"), "")
    except subprocess.TimeoutExpired:
        raise _refused(log.read_text(errors="replace"), " (it did not end after SIGTERM)") from None
    finally:
        if daemon.poll() is None:
            daemon.kill()
            daemon.wait()


def _refused(log: str, how: str) -> AdapterError:
    errors = [line.removeprefix("slurmctld: ") for line in log.splitlines() if "error:" in line or "fatal:" in line]
    errors = [line for line in errors if not NOISE.search(line)][-4:]
    return AdapterError(
        "config_refused",
        f"slurmctld refuses the configuration{how}: {' | '.join(errors) or 'it gave no reason'}."
        " The live one is unchanged. Correct the instance's configuration, then retry.",
        INTERVENTION,
    )
