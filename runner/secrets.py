"""Secrets: runtime ones in Vault, machine access through an agent that dies with the tick.

A secret never goes into an argument, an environment block or a file on this machine. Plays fetch runtime secrets
by name over a private Unix socket (`SecretServer`); ssh finds its key in a private ssh-agent (`ssh_agent`).
"""

import base64
import contextlib
import os
import secrets as random_source
import shutil
import socket
import socketserver
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

from runner.platform.client import Client
from runner.platform.errors import Conflict, NotFound, Rejected
from runner.platform.models import AppInstance, Delivery
from runner.scratch import scratch
from runner.settings import Settings
from runner.turnover import REPLACEABLE, STEPS

SOCKET_VARIABLE = "GPUAAS_SECRETS_SOCKET"

# name -> how a new one is made. munge takes up to 1024 bytes; 128 is what its own tools make.
MAKERS: dict[str, Callable[[], str]] = {
    "munge_key": lambda: base64.b64encode(random_source.token_bytes(128)).decode(),
    "slurmdbd_password": lambda: random_source.token_urlsafe(32),
}


class SecretsError(Exception):
    """A secret could not be had; the message says why and what to do, and holds no secret."""

    def __init__(self, code: str, message: str, klass: str = "intervention") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.klass = klass


class Vault:
    """The KV v2 part of Vault that holds one path for each app instance."""

    def __init__(self, settings: Settings) -> None:
        import hvac  # here, because a quiet tick needs no Vault and loading this takes longer than the tick

        if settings.vault_addr is None:
            raise SecretsError("vault_not_set", "VAULT_ADDR is not set: runtime secrets and machine access need Vault")
        self._settings = settings
        self.address = str(settings.vault_addr).rstrip("/")
        self._client = hvac.Client(
            url=self.address,
            namespace=settings.vault_namespace,
            verify=str(settings.vault_cacert) if settings.vault_cacert else True,
            timeout=settings.api_timeout_seconds,
        )
        # Whatever hvac found in the environment or a home directory is not what was configured.
        self._client.token = None
        self._logged_in = False

    def runtime_secret(self, instance_id: UUID, name: str, step: str = "current") -> str:
        """The instance's secret of that name, made on first use, after a step of its turnover if one is named.

        Check-and-set decides between two writers, and the loser looks again at what stands then.
        """
        if name not in MAKERS or step not in STEPS or (step != "current" and name not in REPLACEABLE):
            raise SecretsError("secret_unknown", f"there is no runtime secret called {name!r} to {step}")
        change, stands_under = STEPS[step]
        self._login()
        for _ in range(5):
            version, values = self._read(instance_id)
            changed = change(values, name, MAKERS[name])
            if changed is None:
                return str(values[stands_under(name)])
            with contextlib.suppress(_LostRace):
                self._write(instance_id, changed, version)
                return str(changed[stands_under(name)])
        raise SecretsError("vault_busy", "Vault kept refusing our check-and-set writes; try again", "retryable")

    def forget(self, instance_id: UUID) -> None:
        """Everything that was ever kept for the instance, every version of it. That there is nothing is fine."""
        self._login()
        with contextlib.suppress(_Absent):
            self._ask(
                lambda: self._client.secrets.kv.v2.delete_metadata_and_all_versions(
                    path=self._path(instance_id), mount_point=self._settings.vault_mount
                )
            )
        version, values = self._read(instance_id)
        if version or values:
            raise SecretsError("secrets_left", "Vault still has secrets of the instance after they were deleted")

    def unwrap(self, delivery: Delivery) -> str:
        """The private key behind a delivery, exactly once."""
        if delivery.vault_addr.rstrip("/") != self.address:
            raise SecretsError(
                "vault_address_mismatch",
                f"the platform delivers the access credential through {delivery.vault_addr}, but VAULT_ADDR is"
                f" {self.address}: correct whichever is wrong",
            )
        try:
            # The wrapping token itself is the authentication.
            answer = self._ask(lambda: self._client.sys.unwrap(token=delivery.wrapping_token))
        except _Refused:
            raise SecretsError(
                "wrapping_token_spent",
                "the wrapping token was already used or has expired. If nobody else ran, treat it as a break-in:"
                " rotate the access credential",
            ) from None
        key = (answer.get("data") or {}).get("private_key")
        if not isinstance(key, str) or "PRIVATE KEY" not in key:
            raise SecretsError("credential_invalid", "the access credential holds no private key")
        return key

    def _path(self, instance_id: UUID) -> str:
        return f"projects/{self._settings.project_id}/app-instances/{instance_id}"

    def _read(self, instance_id: UUID) -> tuple[int, dict[str, Any]]:
        try:
            answer = self._ask(
                lambda: self._client.secrets.kv.v2.read_secret_version(
                    path=self._path(instance_id), mount_point=self._settings.vault_mount, raise_on_deleted_version=True
                )
            )
        except _Absent:
            return 0, {}
        return int(answer["data"]["metadata"]["version"]), dict(answer["data"]["data"])

    def _write(self, instance_id: UUID, values: dict[str, Any], version: int) -> None:
        try:
            self._ask(
                lambda: self._client.secrets.kv.v2.create_or_update_secret(
                    path=self._path(instance_id), secret=values, cas=version, mount_point=self._settings.vault_mount
                )
            )
        except _Refused:
            raise _LostRace from None

    def _login(self) -> None:
        if self._logged_in:
            return
        settings = self._settings
        if settings.vault_token is not None:
            self._client.token = settings.vault_token.get_secret_value()
        elif settings.vault_role_id and settings.vault_secret_id is not None:
            secret_id = settings.vault_secret_id.get_secret_value()
            try:
                self._ask(lambda: self._client.auth.approle.login(role_id=settings.vault_role_id, secret_id=secret_id))
            except _Refused:
                raise SecretsError(
                    "vault_login_refused", "Vault refused the AppRole login: check VAULT_ROLE_ID and VAULT_SECRET_ID"
                ) from None
        else:
            raise SecretsError(
                "vault_login_missing", "set VAULT_ROLE_ID and VAULT_SECRET_ID (or VAULT_TOKEN): Vault needs a login"
            )
        self._logged_in = True

    def _ask(self, call: Callable[[], Any]) -> Any:
        import requests
        from hvac import exceptions

        try:
            return call()
        except exceptions.InvalidPath:
            raise _Absent from None
        except exceptions.InvalidRequest:
            raise _Refused from None
        except exceptions.VaultDown:
            message = f"Vault at {self.address} is sealed or in standby"
            raise SecretsError("vault_sealed", message, "retryable") from None
        except exceptions.Forbidden:
            message = f"Vault at {self.address} denied access: check the login's policy and its lease"
            raise SecretsError("vault_denied", message) from None
        except (exceptions.VaultError, requests.RequestException) as error:
            # Only the kind: the text of such an error may quote the request.
            message = f"Vault at {self.address} does not answer ({type(error).__name__})"
            raise SecretsError("vault_unreachable", message, "retryable") from None


class _Absent(Exception):
    """There is nothing at that path."""


class _Refused(Exception):
    """Vault understood and said no."""


class _LostRace(Exception):
    """Somebody else wrote first."""


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        words = self.rfile.readline(256).decode(errors="replace").split()
        try:
            if len(words) != 3:
                raise SecretsError("secret_unknown", "ask with three words: the instance, the secret's name, the step")
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
def secret_server(directory: Path, vault: Vault, only: UUID) -> Iterator[Path]:
    """Answer `<instance> <name> <step>` on a socket in a directory that only we can enter.

    For one instance only: who asks is a play, and a host of it that lies about itself may have changed the question.
    """
    path = directory / "secrets.sock"
    lock = threading.Lock()

    def fetch(instance_id: UUID, name: str, step: str) -> str:
        if instance_id != only:
            raise SecretsError("secret_foreign", "that instance is not the one this play is about")
        with lock:  # hosts of one play ask at the same moment, and hvac's session is not for sharing
            return vault.runtime_secret(instance_id, name, step)

    with _Server(str(path), _Handler) as server:
        server.fetch = fetch
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield path
        finally:
            server.shutdown()


def ask_server(path: str, instance_id: str, name: str, step: str = "current") -> str:
    """The other end of `secret_server`, for the lookup plugin."""
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
        raise SecretsError("secret_unavailable", rest or "the runner closed the line")
    return rest


@contextlib.contextmanager
def ssh_agent(directory: Path, private_key: str) -> Iterator[Path]:
    """A private agent holding one key in memory; it ends with us, even when we are killed."""
    path = directory / "agent.sock"
    agent = subprocess.Popen(
        # ssh-agent is setgid, which would make the kernel forget to end it with us; without new privileges it is not.
        ["setpriv", "--no-new-privs", "--pdeathsig", "TERM", "ssh-agent", "-D", "-a", str(path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C is for us: the play that is to be finished still needs the key
    )
    try:
        added = _add_key(path, private_key, agent)
        if added.returncode != 0:
            raise SecretsError(
                "credential_invalid", f"ssh-add did not take the access credential: {added.stderr.strip()}"
            )
        yield path
    finally:
        agent.terminate()
        agent.wait()


def _add_key(path: Path, private_key: str, agent: "subprocess.Popen[bytes]") -> "subprocess.CompletedProcess[str]":
    waited = threading.Event()
    while not _answers(path):
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


def _answers(path: Path) -> bool:
    """Whether somebody listens there. A socket is seen a moment before that, and a busy machine makes it a long one."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True


@contextlib.contextmanager
def access(client: Client, settings: Settings, instance: AppInstance) -> Iterator[dict[str, str]]:
    """Everything a play needs to reach hosts and secrets, as environment that holds no secret itself."""
    if instance.access_credential_id is None:
        raise SecretsError("credential_missing", "the instance names no access_credential_id: deploy it with one")
    for command, package in (("ssh-agent", "openssh-client"), ("setpriv", "util-linux")):
        if not shutil.which(command):
            raise SecretsError("agent_failed", f"{command} is not installed: install {package}")
    vault = Vault(settings)
    try:
        delivery = client.deliver_credential(instance.access_credential_id, correlation_id=instance.correlation_id)
    except (Conflict, NotFound, Rejected) as refusal:
        problem = f"the access credential is not to be had: {refusal.message}. Give the instance one that is current"
        raise SecretsError("credential_unavailable", problem) from None
    key = vault.unwrap(delivery)
    # Sockets have short path limits and must not survive us: a fresh directory that only we can enter.
    with (
        scratch() as directory,
        ssh_agent(directory, key) as agent,
        secret_server(directory, vault, instance.id) as server,
    ):
        del key
        yield {"SSH_AUTH_SOCK": str(agent), SOCKET_VARIABLE: str(server)}
