"""Gives plays access to secrets: runtime secrets from Vault, and the ssh key through an agent that ends with the play.

A secret never goes into an argument, an environment block or a file on this machine. Plays fetch runtime secrets
by name over a private Unix socket (`secret_server`); ssh finds its key in a private ssh-agent (`ssh_agent`).
"""

import contextlib
import os
import shutil
import socket
import socketserver
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import copy_context
from pathlib import Path
from uuid import UUID

from runner.act.scratch import scratch
from runner.act.vault import SecretsError, Vault
from runner.model.app import App
from runner.model.errors import Conflict, NotFound, Rejected
from runner.model.platform import AppInstance, Delivery
from runner.platform.client import Client
from runner.settings import Settings

SOCKET_VARIABLE = "GPUAAS_SECRETS_SOCKET"
# The login of a private package source. It is not a secret of the instance, so Vault does not keep it.
PACKAGE_LOGIN = "package_login"


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        words = self.rfile.readline(256).decode(errors="replace").split()
        try:
            if len(words) != 3:
                raise SecretsError(
                    "secret_unknown", "a request has three words: the instance, the secret's name, the step"
                )
            answer = "ok " + server.fetch(UUID(words[0]), words[1], words[2])
        except SecretsError as error:
            answer = f"error {error.code}: {error.message}"
        except ValueError:
            answer = "error secret_unknown: that is not an instance id"
        self.wfile.write(answer.encode())


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    fetch: Callable[[UUID, str, str], str]


@contextlib.contextmanager
def secret_server(
    directory: Path,
    vault: Vault,
    only: UUID,
    given: Mapping[str, str] | None = None,
    refused: list[SecretsError] | None = None,
) -> Iterator[Path]:
    """Answer `<instance> <name> <step>` on a socket in a private directory, from `given` or from Vault.

    Only for one instance: a host of the play may have influenced the request. Errors are added to `refused`, because
    the play itself reports only a failed task.
    """
    path = directory / "secrets.sock"
    lock, play = threading.Lock(), copy_context()  # calls to Vault belong to the play, not to the thread that answers

    def fetch(instance_id: UUID, name: str, step: str) -> str:
        if instance_id != only:
            raise SecretsError("secret_foreign", "a play may read the secrets of its own instance only")
        if given and name in given and step == "current":
            return given[name]
        with lock:  # hosts of one play ask in parallel, and hvac's session is not thread-safe
            try:
                return play.run(vault.runtime_secret, instance_id, name, step)
            except SecretsError as error:
                if refused is not None:
                    refused.append(error)
                raise

    with _Server(str(path), _Handler) as server:
        server.fetch = fetch
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield path
        finally:
            server.shutdown()


def fetch_secret(path: str, instance_id: str, name: str, step: str = "current") -> str:
    """Ask `secret_server` for a secret; for the lookup plugin."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(path)
        connection.sendall(f"{instance_id} {name} {step}\n".encode())
        connection.shutdown(socket.SHUT_WR)
        chunks = []
        while chunk := connection.recv(65536):
            chunks.append(chunk)
    word, _, rest = b"".join(chunks).decode().partition(" ")
    if word != "ok":
        raise SecretsError("secret_unavailable", rest or "the runner closed the connection")
    return rest


@contextlib.contextmanager
def ssh_agent(directory: Path, private_key: str) -> Iterator[Path]:
    """A private agent that holds one key in memory. It ends with this process, even if that is killed."""
    path = directory / "agent.sock"
    agent = subprocess.Popen(
        # The kernel drops the parent-death signal of a setgid program such as ssh-agent; --no-new-privs prevents it.
        ["setpriv", "--no-new-privs", "--pdeathsig", "TERM", "ssh-agent", "-D", "-a", str(path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C must not end it: the play that finishes still needs the key
    )
    try:
        added = _add_key(path, private_key, agent)
        if added.returncode != 0:
            raise SecretsError("credential_invalid", f"ssh-add refused the access credential: {added.stderr.strip()}")
        yield path
    finally:
        agent.terminate()
        agent.wait()


def _listens(path: Path) -> bool:
    """The socket file exists a moment before the agent accepts connections."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def _add_key(path: Path, private_key: str, agent: "subprocess.Popen[bytes]") -> "subprocess.CompletedProcess[str]":
    waited = threading.Event()
    while not _listens(path):
        if agent.poll() is not None:
            raise SecretsError("agent_failed", "ssh-agent did not start: is openssh-client installed?")
        waited.wait(0.01)
    return subprocess.run(
        ["ssh-add", "-q", "-"],
        input=private_key if private_key.endswith("\n") else private_key + "\n",
        env={"SSH_AUTH_SOCK": str(path), "PATH": os.environ.get("PATH", "/usr/bin:/bin")},
        capture_output=True,
        text=True,
    )


@contextlib.contextmanager
def access(
    client: Client,
    settings: Settings,
    app: App,
    instance: AppInstance,
    package_credential: UUID | None = None,
    refused: list[SecretsError] | None = None,
) -> Iterator[dict[str, str]]:
    """The environment with which a play reaches hosts and secrets. It holds no secret itself."""
    if instance.access_credential_id is None:
        raise SecretsError(
            "credential_missing",
            "the instance has no access_credential_id: set it with gpuaas-slurm configure --access-credential",
        )
    for command, package in (("ssh-agent", "openssh-client"), ("setpriv", "util-linux")):
        if not shutil.which(command):
            raise SecretsError("agent_failed", f"{command} is not installed: install {package}")
    vault = Vault(settings, app.runtime_secrets, client.meter, client.tracer)
    key = vault.unwrap_private_key(_deliver(client, instance.access_credential_id, "access credential"))
    given = {}
    if package_credential:
        delivery = _deliver(client, package_credential, "package source's credential")
        given[PACKAGE_LOGIN] = vault.unwrap_login(delivery)
    # The path of a socket must be short, and the socket must not outlive this process: hence a scratch directory.
    with (
        scratch() as directory,
        ssh_agent(directory, key) as agent,
        secret_server(directory, vault, instance.id, given, refused) as server,
    ):
        del key
        yield {"SSH_AUTH_SOCK": str(agent), SOCKET_VARIABLE: str(server)}


def _deliver(client: Client, credential: UUID, what: str) -> Delivery:
    try:
        return client.deliver_credential(credential)
    except (Conflict, NotFound, Rejected) as refusal:
        problem = f"the {what} is not available: {refusal.message}. Give the instance a current one"
        raise SecretsError("credential_unavailable", problem) from None
