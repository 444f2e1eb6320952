"""Gives plays access to secrets: runtime secrets, and the ssh key through an agent that ends with the play.

A secret never goes into an argument, an environment block or a file on this machine. Plays fetch runtime secrets
by name over a private Unix socket (`secret_server`); ssh finds its key in a private ssh-agent (`ssh_agent`). Each
credential has an agent of its own, and a host is only offered the key of its own credential.
"""

import contextlib
import json
import os
import shutil
import socket
import socketserver
import subprocess
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from uuid import UUID

from runner import log
from runner.act.inventory import Agent
from runner.act.runtime_secrets import RuntimeSecrets
from runner.act.scratch import scratch
from runner.act.vault import SPENT, SecretsError, Vault
from runner.intent.errors import IntentError
from runner.model.app import App
from runner.model.errors import Conflict, NotFound, PlatformError, Rejected
from runner.model.plan import AdapterError
from runner.model.platform import AppInstance, Delivery
from runner.platform.client import Client
from runner.settings import Settings

SOCKET_VARIABLE = "GPUAAS_SECRETS_SOCKET"
# The login of a private package source. It is not a secret of the instance, so Vault does not keep it.
PACKAGE_LOGIN = "package_login"
# The agents of credentials that belong to single members, for the inventory of a command by hand: JSON of credential to
# socket and public key.
AGENTS_VARIABLE = "GPUAAS_SSH_AGENTS"
UNAVAILABLE = "own_credential_unavailable"


@dataclass(frozen=True)
class Access:
    """How a play reaches hosts and secrets. It holds no secret itself."""

    # SSH_AUTH_SOCK is of the instance's own credential.
    environment: Mapping[str, str]
    # Of the credentials that belong to single members.
    agents: Mapping[UUID, Agent] = field(default_factory=dict)
    # Credentials that could not be delivered. Only their own members have the error.
    problems: Mapping[UUID, AdapterError] = field(default_factory=dict)

    @property
    def for_command(self) -> dict[str, str]:
        """The environment of a person's command."""
        shown = {str(one): [agent.socket, agent.public_key] for one, agent in self.agents.items()}
        return {**self.environment, AGENTS_VARIABLE: json.dumps(shown)}


def read_agents(text: str | None) -> dict[UUID, Agent] | None:
    """The agents in the environment that `exec` sets; None without it."""
    try:
        return None if text is None else {UUID(one): Agent(*found) for one, found in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):
        message = f"{AGENTS_VARIABLE} is not what gpuaas-slurm exec sets: unset it, and use exec"
        raise IntentError("claims_invalid", message) from None


class Source(Protocol):
    def runtime_secret(self, instance_id: UUID, name: str, step: str = "current") -> str: ...


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
    source: Source,
    only: UUID,
    given: Mapping[str, str] | None = None,
    refused: list[SecretsError] | None = None,
) -> Iterator[Path]:
    """Answer `<instance> <name> <step>` on a socket in a private directory, from `given` or from the source.

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
        with lock:  # hosts of one play ask in parallel; hvac's session is not thread-safe
            try:
                return play.run(source.runtime_secret, instance_id, name, step)
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
def ssh_agent(directory: Path, private_key: str, name: str = "agent.sock") -> Iterator[Path]:
    """A private agent that holds one key in memory. It ends with this process, even if that is killed."""
    path = directory / name
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
    own_credentials: Collection[UUID] = (),
) -> Iterator[Access]:
    """How a play reaches hosts and secrets. `own_credentials` belong to single members, as of a contributed machine."""
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
    with scratch() as directory, contextlib.ExitStack() as stack:
        agent = stack.enter_context(ssh_agent(directory, key))
        del key
        agents: dict[UUID, Agent] = {}
        problems: dict[UUID, AdapterError] = {}
        for number, credential in enumerate(sorted(own_credentials, key=str)):
            try:
                own_key = vault.unwrap_private_key(_deliver(client, credential, "member's own credential"))
                path = stack.enter_context(ssh_agent(directory, own_key, f"agent-{number}.sock"))
                del own_key
                agents[credential] = Agent(str(path), _public_key(path))
            except (SecretsError, PlatformError) as error:
                problems[credential] = _of_one_credential(error)
        secrets = RuntimeSecrets(vault, stack.enter_context(client.clone()))
        server = stack.enter_context(secret_server(directory, secrets, instance.id, given, refused))
        yield Access({"SSH_AUTH_SOCK": str(agent), SOCKET_VARIABLE: str(server)}, agents, problems)


def _of_one_credential(error: SecretsError | PlatformError) -> AdapterError:
    """The error of the members that the credential opens. A token that another party used stays an alarm."""
    log.get().warning("credential of a member not available", error_code=error.code, problem=error.message)
    if isinstance(error, SecretsError):
        again, code = error.klass == "retryable", SPENT if error.code == SPENT else UNAVAILABLE
    else:
        again, code = error.status is None or error.status >= 500, UNAVAILABLE
    message = (
        f"the credential that opens this host is not available ({error.code}: {error.message}). Nothing was done there."
        " The project that it belongs to can withdraw it and contribute it with a current credential"
    )
    return AdapterError(code, message, "retryable" if again else "intervention")


def _public_key(agent: Path) -> str:
    """Type and body of the agent's only key."""
    shown = subprocess.run(
        ["ssh-add", "-L"],
        env={"SSH_AUTH_SOCK": str(agent), "PATH": os.environ.get("PATH", "/usr/bin:/bin")},
        capture_output=True,
        text=True,
        check=False,
    )
    words = shown.stdout.split()
    if shown.returncode != 0 or len(words) < 2:
        raise SecretsError("agent_failed", "ssh-agent does not show its key")
    return " ".join(words[:2])


def _deliver(client: Client, credential: UUID, what: str) -> Delivery:
    try:
        return client.deliver_credential(credential)
    except (Conflict, NotFound, Rejected) as refusal:
        problem = f"the {what} is not available: {refusal.message}. Give the instance a current one"
        raise SecretsError("credential_unavailable", problem) from None
