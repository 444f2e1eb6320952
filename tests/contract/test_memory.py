"""A runner's memory holds secrets: it is in no core file, and other processes of its user cannot read it."""

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandbox.fleet.keys import KeyPair
from tests.commands import EXEC
from tests.e2e.cluster import until
from tests.platform_process import Project
from tests.runner_process import COMMAND, environment

CORES = Path("/proc/sys/kernel/core_pattern").read_text()
UNPRIVILEGED = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


def may_leave_cores() -> None:
    """Allow core files, as a parent without a limit does."""
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))


@contextmanager
def running(command: Sequence[str], variables: Mapping[str, str], directory: Path) -> Iterator[int]:
    with subprocess.Popen(
        command, env=variables, cwd=directory, stderr=subprocess.DEVNULL, preexec_fn=may_leave_cores
    ) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def watching(project: Project, **changes: str) -> dict[str, str]:
    return environment(project, GPUAAS_WATCH_SECONDS="600", PATH="/usr/bin:/bin", **changes)


def has_asked(project: Project) -> None:
    asked = f"/projects/{project.project_id}/app-instances"
    control = project.platform.control
    until(lambda: any(asked in one["path"] for one in control.requests()["requests"]), 60, "the runner asks")


@pytest.mark.parametrize("how", [signal.SIGABRT, signal.SIGSEGV])
def test_a_runner_that_crashes_leaves_no_core(project: Project, tmp_path: Path, how: signal.Signals) -> None:
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    if hard != 0 and not CORES.startswith(("|", "/")):
        # Control: another program does leave its core file in this directory.
        subprocess.run([sys.executable, "-c", f"import os; os.kill(os.getpid(), {how})"], cwd=tmp_path,
                       preexec_fn=may_leave_cores, check=False)  # fmt: skip
        (core,) = tmp_path.iterdir()
        core.unlink()
    with running([COMMAND, "run", "--watch"], watching(project), tmp_path) as runner:
        has_asked(project)
        limit = next(line for line in Path(f"/proc/{runner}/limits").read_text().splitlines() if "core" in line)
        assert limit.split()[4:6] == ["0", "0"]
        os.kill(runner, how)
        _, status = os.waitpid(runner, 0)
    assert os.WTERMSIG(status) == how and not os.WCOREDUMP(status)
    assert list(tmp_path.iterdir()) == []


def test_what_a_runner_starts_may_leave_no_core_either(project: Project, tmp_path: Path) -> None:
    control = project.platform.control
    key = KeyPair.generate().private
    control.put_credential(project.project_id, project.credential_id, username="ops", private_key=key)
    project.deploy()
    asked = subprocess.run(
        [COMMAND, *EXEC, "--", "sh", "-c", "ulimit -S -c; ulimit -H -c"],
        env=watching(project),
        preexec_fn=may_leave_cores,
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.stdout.split() == ["0", "0"], asked.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of another user")
def test_other_processes_of_the_user_cannot_read_a_runners_memory(project: Project, tmp_path: Path) -> None:
    if subprocess.run([*UNPRIVILEGED, "test", "-x", COMMAND], check=False).returncode:
        pytest.skip("this checkout is where no other user can go")
    variables = watching(project, HOME=str(tmp_path))

    def read(process: int, what: str) -> int:
        script = f"open('/proc/{process}/{what}', 'rb')"
        return subprocess.run(
            [*UNPRIVILEGED, "/usr/bin/python3", "-c", script], capture_output=True, check=False
        ).returncode

    assert shutil.which("setpriv") and Path("/usr/bin/python3").exists()
    with running([*UNPRIVILEGED, "sleep", "600"], variables, tmp_path) as other:
        # Control: any other program of that user can be read this way.
        until(lambda: read(other, "environ") == 0, 30, "a process of the user's is readable")
    with running([*UNPRIVILEGED, COMMAND, "run", "--watch"], variables, tmp_path) as runner:
        has_asked(project)
        assert read(runner, "environ") != 0
        assert read(runner, "mem") != 0
