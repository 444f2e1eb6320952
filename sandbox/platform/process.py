"""The platform as a background process, identified by its state directory."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

DEFAULT_CONTRACT = Path(__file__).resolve().parents[2] / "contract" / "openapi.yaml"
PID_FILE = "platform.pid"
URL_FILE = "platform.url"
LOG_FILE = "platform.log"
START_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True)
class Running:
    base_url: str
    pid: int
    admin_token: str


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def running(state: Path) -> Running | None:
    """The platform of this state directory, if it answers."""
    try:
        pid = int((state / PID_FILE).read_text())
        url = (state / URL_FILE).read_text().strip()
        token = (state / "admin.token").read_text().strip()
        # Another program may use the port by now; only our platform accepts this token.
        connection = HTTPConnection(urlsplit(url).netloc, timeout=5)
        with contextlib.closing(connection):
            connection.request("GET", "/sandbox/v1/faults", headers={"Authorization": f"Bearer {token}"})
            status = connection.getresponse().status
    except (OSError, ValueError, HTTPException):
        return None
    return Running(url, pid, token) if status == 200 else None


def start(
    state: Path, *, host: str = "127.0.0.1", port: int | None = None, contract: Path = DEFAULT_CONTRACT
) -> Running:
    """Start the platform, or find it running. Raises RuntimeError with the end of its log if it does not start."""
    found = running(state)
    if found is not None:
        return found
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    port = port or _former_port(state, host) or free_port(host)
    command = [sys.executable, "-m", "sandbox.platform", "serve", "--state", str(state), "--host", host]
    command += ["--port", str(port), "--contract", str(contract)]
    root = Path(__file__).resolve().parents[2]
    with (state / LOG_FILE).open("ab") as log:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=root, start_new_session=True
        )
    (state / PID_FILE).write_text(f"{child.pid}\n")
    (state / URL_FILE).write_text(f"http://{host}:{port}\n")
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < deadline and child.poll() is None:
        found = running(state)
        if found is not None:
            return found
        time.sleep(0.05)
    stop(state)
    tail = (state / LOG_FILE).read_text(errors="replace").splitlines()[-15:]
    raise RuntimeError("the sandbox platform did not start:\n" + "\n".join(tail))


def _former_port(state: Path, host: str) -> int | None:
    """The port of the last start, if it is free, so that clients can keep the address."""
    try:
        port = int((state / URL_FILE).read_text().strip().rpartition(":")[2])
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, ValueError):
        return None
    return port


def _is_ours(pid: int, state: Path) -> bool:
    """Whether the pid is our platform: a stale pid file may name another process, which must not get a signal."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"sandbox.platform" in command and str(state).encode() in command


def _has_ended(pid: int) -> bool:
    """Whether the process is gone, or a zombie without threads. Only then is its port free: an ending process keeps
    its sockets until its last thread has ended, and its command line disappears before that."""
    # A child of this process stays a zombie until it is waited for.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        zombie = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
        return zombie and len(list(Path(f"/proc/{pid}/task").iterdir())) == 1
    except OSError:
        return True


def stop(state: Path, *, kill: bool = False, timeout_seconds: float = 10.0) -> bool:
    """Stop the platform and wait until its process has ended; False if it was not running."""
    try:
        pid = int((state / PID_FILE).read_text())
    except (OSError, ValueError):
        return False
    if not _is_ours(pid, state):
        (state / PID_FILE).unlink(missing_ok=True)
        return False
    os.kill(pid, signal.SIGKILL if kill else signal.SIGTERM)
    deadline = time.monotonic() + timeout_seconds
    while not _has_ended(pid):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    (state / PID_FILE).unlink(missing_ok=True)
    return True
