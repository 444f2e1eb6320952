"""The demo shows its own job in accounting, and fails if the job never gets there."""

import os
import subprocess
from pathlib import Path

import pytest

from sandbox import demo

# Answers RUNNING twice, then STATE; the whole table when it is asked without --noheader.
SACCT = """#!/bin/sh
echo x >> {calls}
case "$*" in
  *--noheader*) if [ $(wc -l < {calls}) -gt 2 ]; then echo {state}; else echo RUNNING; fi ;;
  *) echo "JobID State"; echo "7 {state}" ;;
esac
"""


def shown(tmp_path: Path, state: str) -> "subprocess.CompletedProcess[str]":
    stand_in = tmp_path / "sacct"
    stand_in.write_text(SACCT.format(calls=tmp_path / "calls", state=state))
    stand_in.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    command = ["sh", "-c", demo.show_record("7")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_jobs_record_is_shown_once_it_is_completed(tmp_path: Path) -> None:
    done = shown(tmp_path, "COMPLETED")
    assert (done.returncode, done.stdout) == (0, "JobID State\n7 COMPLETED\n")


def test_a_job_that_does_not_complete_is_shown_and_fails_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "RECORD_SECONDS", 1)
    done = shown(tmp_path, "FAILED")
    assert done.returncode != 0 and "7 FAILED" in done.stdout


def test_the_jobs_number_is_read_from_what_it_prints_on_its_nodes() -> None:
    assert demo.read_job("srun: job 7 queued\njob 7 on gs-2\njob 7 on gs-3\n") == "7"
    with pytest.raises(SystemExit):
        demo.read_job("srun: error: no nodes\n")
