"""The real command in a process of its own, whose plays are real Ansible on this machine: see unit/local_plays.py.

Arguments: a directory for the bundle, a file for which hosts wait in the middle of a play, and a secret that they show.
"""

import shutil
import sys
from pathlib import Path

import pytest

from runner.cli import main
from tests.unit.local_plays import ROOT, STUBS, LocalPlays

WAIT = """
import time
while not os.path.exists({flag!r}):
    time.sleep(0.05)
"""
# Whoever has root on a host answers what they like.
SAYS = """
result["stdout"] = result["msg"] = {secret!r}
result["token"] = {{"password": {secret!r}}}
"""


def run() -> None:
    directory, flag, secret = sys.argv[1:]
    local = LocalPlays(Path(directory), pytest.MonkeyPatch())
    local.module("converge_host", WAIT.format(flag=flag) + STUBS["converge_host"])
    shutil.copy(ROOT / "plugins" / "lookup" / "runtime_secret.py", local.bundle / "plugins" / "lookup")
    local.of_every_host = SAYS.format(secret=secret)
    sys.argv[1:] = ["run"]
    main.main()


if __name__ == "__main__":
    run()
