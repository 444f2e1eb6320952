"""Container hosts that behave like cloud machines: own address, own host key, a login user, nothing else."""

import io
import re
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sandbox.fleet import cgroups, commands, gpus, usage
from sandbox.fleet.errors import CannotRunError, FleetError
from sandbox.fleet.gpus import Gpus
from sandbox.fleet.images import ensure_images, recipe
from sandbox.fleet.keys import KeyPair
from sandbox.fleet.runtime import FLEET_LABEL, Podman, make_room_for_systemd

LOGIN_USER = "ops"
SSH_PORT = 22

_HOST_LABEL = "gpuaas-slurm.host"
_SUITE_LABEL = "gpuaas-slurm.suite"
_WARM_LABEL = "gpuaas-slurm.warm"
_GPUS_LABEL = "gpuaas-slurm.gpus"
_HOST_KEY_LABEL = "gpuaas-slurm.host-key"
_HOST_KEY_FILE = "etc/ssh/ssh_host_ed25519_key"
_AUTHORIZED_KEYS = f"home/{LOGIN_USER}/.ssh/authorized_keys"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_BOOT_SECONDS = 60.0
_AT_ONCE = 8

T = TypeVar("T")

FREEZE_ATTEMPTS = 5


@dataclass(frozen=True)
class HostSpec:
    """The name and kind of a host to create."""

    name: str
    suite: str
    warm: bool = False
    gpus: Gpus = gpus.NONE

    def __str__(self) -> str:
        return ":".join([f"{self.name}={self.suite}", *["warm"] * self.warm, *[str(self.gpus)] * bool(self.gpus.count)])

    @classmethod
    def parse(cls, text: str) -> "HostSpec":
        """Read NAME=SUITE with options after colons: warm, gpus=4xa100."""
        name, equals, kind = text.partition("=")
        suite, *special = kind.split(":")
        has = [one for one in special if one.startswith("gpus=")]
        if not equals or not suite or sorted(special) != sorted([*["warm"] * ("warm" in special), *has[:1]]):
            raise CannotRunError(f"{text!r} is not NAME=SUITE[:warm][:gpus=COUNTxMODEL]")
        return cls(checked_name(name), suite, warm="warm" in special, gpus=Gpus.parse("".join(has)))


@dataclass(frozen=True)
class Host:
    """A host as podman shows it. `machine` changes when a host is created again; a stopped host has no address."""

    spec: HostSpec
    machine: str
    container: str
    status: str
    address: str
    host_key: str
    pid: int = field(default=0, compare=False)  # of the host's first process; 0 if it is stopped

    @property
    def name(self) -> str:
        return self.spec.name


def checked_name(name: str) -> str:
    """A fleet's or host's name, safe as hostname, file name and label."""
    if not _NAME.fullmatch(name) or len(name) > 40:
        raise CannotRunError(f"{name!r} is not a usable name: lower case letters, digits and single dashes, at most 40")
    return name


class Hosts:
    """All hosts of one fleet. They are read from podman's labels each time, so no state can become stale."""

    def __init__(self, fleet: str, podman: Podman) -> None:
        self.fleet = checked_name(fleet)
        self.podman = podman
        self.network = f"gpuaas-slurm-{fleet}"

    def _container(self, name: str) -> str:
        return f"{self.network}-{checked_name(name)}"

    def current(self) -> list[Host]:
        found = [_host_of(entry) for entry in self.podman.inspect_labelled(self.fleet)]
        for host in found:
            commands.remember(host.container, host.machine, host.pid)
        return sorted(found, key=lambda host: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", host.name)])

    def get(self, name: str) -> Host:
        hosts = self.current()
        for host in hosts:
            if host.name == name:
                return host
        names = ", ".join(host.name for host in hosts) or "none"
        raise FleetError(f"fleet {self.fleet!r} has no host {name!r}; its hosts: {names}")

    def images(self, specs: Iterable[HostSpec]) -> dict[HostSpec, str]:
        """The image of each host; missing images are built."""
        wanted = {spec: recipe(spec.suite, warm=spec.warm) for spec in specs}
        built = ensure_images(self.podman, wanted.values())
        return {spec: built[one] for spec, one in wanted.items()}

    def missing(self, specs: Sequence[HostSpec], hosts: Sequence[Host] | None = None) -> list[HostSpec]:
        """Hosts that do not exist yet. A host of the same name but another kind is an error, not replaced."""
        hosts = self.current() if hosts is None else hosts
        present = {host.name: host.spec for host in hosts if host.status != "created"}
        for spec in specs:
            if spec.name in present and present[spec.name] != spec:
                raise CannotRunError(
                    f"fleet {self.fleet!r} already has {present[spec.name]}, and {spec} was requested; "
                    "take the fleet down first, or use another name"
                )
        return [spec for spec in specs if spec.name not in present]

    def ensure(self, specs: Sequence[HostSpec], authorized_key: str) -> list[Host]:
        """Create missing hosts, start stopped ones, and wait until ssh answers on every host of the fleet."""
        before = self.current()
        missing = self.missing(specs, before)
        images = self.images(missing)
        self.podman.ensure_network(self.network, self.fleet)
        self._discard_unfinished(before)
        make_room_for_systemd()
        _each(lambda spec: self._create(spec, images[spec], authorized_key), missing)
        hosts = self.current() if missing else [host for host in before if host.status != "created"]
        stopped = [host for host in hosts if host.status != "running"]
        if stopped:
            _each(self._resume, stopped)
            hosts = self.current()
        _each(self._wait_until_up, hosts)
        return hosts

    def authorize(self, authorized_key: str, hosts: Sequence[Host] | None = None) -> None:
        """Make this key the only one that can log in, on every running host."""
        line = f"{authorized_key}\n".encode()
        running = [host for host in (self.current() if hosts is None else hosts) if host.status == "running"]
        _each(lambda host: self._replace_authorized_keys(host, line), running)

    def exec(self, name: str, argv: Sequence[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command as root on a host. A failed command is a result, not an exception."""
        done = commands.run(self.podman, self._container(name), name, argv, stdin.encode())
        if done.returncode == commands.PODMAN_FAILED:
            self.get(name)  # raises if there is no such host; not before, since listing costs more than the command
        out, err = (stream.decode(errors="replace") for stream in (done.stdout, done.stderr))
        return subprocess.CompletedProcess(list(argv), done.returncode, out, err)

    def attach(self, name: str, argv: Sequence[str]) -> int:
        """The same with the caller's terminal; returns the command's exit code."""
        terminal = ["--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else []
        return self.podman.attached("exec", "--interactive", *terminal, self.get(name).container, *argv)

    def pause(self, name: str) -> None:
        """Freeze a host: it keeps its address and answers nothing. runc can fail on a busy host, hence the retry."""
        container = self.get(name).container
        for _ in range(FREEZE_ATTEMPTS - 1):
            if self.podman.try_run("pause", container).returncode == 0:
                return
        self.podman.run("pause", container)

    def unpause(self, name: str) -> None:
        self.podman.run("unpause", self.get(name).container)

    def kill(self, name: str) -> None:
        """Destroy a host at once, as a machine that fails for good."""
        self._remove([self.get(name)])

    def remove_all(self) -> None:
        """Remove the hosts and networks with this fleet's label, and nothing else."""
        hosts = self.current()
        if hosts:
            self._remove(hosts)
        for network in self.podman.networks(self.fleet):
            self.podman.run("network", "rm", network)

    def _remove(self, hosts: Sequence[Host]) -> None:
        used = [cgroups.cpu_seconds(host.pid, host.machine) for host in hosts]
        self.podman.run("rm", "--force", "--time", "0", *(host.container for host in hosts))
        for seconds in used:
            if seconds is not None:
                usage.record(host_cpu=round(seconds, 3))

    def _discard_unfinished(self, hosts: Sequence[Host]) -> None:
        """Remove containers that never started: a killed command left them, and they may lack their keys."""
        unfinished = [host.container for host in hosts if host.status == "created"]
        if unfinished:
            self.podman.run("rm", "--force", *unfinished)

    def _create(self, spec: HostSpec, image: str, authorized_key: str) -> None:
        host_key = KeyPair.generate()
        container = self._container(spec.name)
        labels = {
            FLEET_LABEL: self.fleet,
            _HOST_LABEL: spec.name,
            _SUITE_LABEL: spec.suite,
            _WARM_LABEL: "yes" if spec.warm else "no",
            _GPUS_LABEL: str(spec.gpus),
            _HOST_KEY_LABEL: host_key.public,
        }
        self.podman.create_host(image, container, spec.name, self.network, labels, spec.gpus.devices)
        self.podman.run("cp", "-", f"{container}:/", stdin=_first_files(spec, host_key, authorized_key))
        self.podman.start_host(container)
        usage.record(host=1)

    def _resume(self, host: Host) -> None:
        if host.status == "paused":
            self.podman.run("unpause", host.container)
        else:
            self.podman.start_host(host.container)

    def _replace_authorized_keys(self, host: Host, line: bytes) -> None:
        done = commands.run(self.podman, host.container, host.name, ["tee", f"/{_AUTHORIZED_KEYS}"], line)
        if done.returncode != 0:
            raise FleetError(f"host {host.name}: its authorized keys cannot be written: {done.stderr.decode().strip()}")

    def _wait_until_up(self, host: Host) -> None:
        deadline = time.monotonic() + _BOOT_SECONDS
        while not _ssh_answers(host.address):
            if time.monotonic() > deadline:
                shown = commands.run(self.podman, host.container, host.name, ["journalctl", "-n", "20", "--no-pager"])
                raise FleetError(_boot_error(host.name, shown.stdout.decode(errors="replace")))
            time.sleep(0.1)
        # ssh may answer before the boot is complete, and an installation would then race with it.
        commands.run(self.podman, host.container, host.name, ["systemctl", "is-system-running", "--wait"])


def _boot_error(name: str, journal: str) -> str:
    """The message for a host that does not boot: what to do, or the end of its journal."""
    if "inotify" in journal:
        return (
            f"host {name} cannot boot because this machine's inotify instances are used up: stop other sandboxes,"
            " or raise the limit with: sysctl fs.inotify.max_user_instances=1024"
        )
    return f"host {name} does not answer on ssh after {_BOOT_SECONDS:.0f} s; its journal ends:\n{journal}"


def _host_of(entry: dict[str, Any]) -> Host:
    labels: dict[str, str] = entry["Config"]["Labels"]
    networks: dict[str, dict[str, Any]] = entry["NetworkSettings"]["Networks"] or {}
    return Host(
        spec=HostSpec(
            labels[_HOST_LABEL],
            labels[_SUITE_LABEL],
            labels[_WARM_LABEL] == "yes",
            Gpus.parse(labels.get(_GPUS_LABEL, "")),
        ),
        machine=entry["Id"],
        container=entry["Name"],
        status=entry["State"]["Status"],
        address=next((net["IPAddress"] for net in networks.values()), ""),
        host_key=labels[_HOST_KEY_LABEL],
        pid=entry["State"]["Pid"],
    )


def _first_files(spec: HostSpec, host_key: KeyPair, authorized_key: str) -> bytes:
    """The files that differ between hosts (keys, GPUs), as a tar stream."""
    files = {
        _HOST_KEY_FILE: (0o600, host_key.private),
        f"{_HOST_KEY_FILE}.pub": (0o644, f"{host_key.public}\n"),
        # Owned by root, which sshd accepts, so the login user cannot remove the fleet's key.
        _AUTHORIZED_KEYS: (0o644, f"{authorized_key}\n"),
        **spec.gpus.files(spec.name),
    }
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, (mode, text) in files.items():
            entry = tarfile.TarInfo(name)
            entry.mode, entry.size, entry.mtime = mode, len(text.encode()), int(time.time())
            tar.addfile(entry, io.BytesIO(text.encode()))
    return stream.getvalue()


def _ssh_answers(address: str) -> bool:
    try:
        with socket.create_connection((address, SSH_PORT), timeout=2) as connection:
            # Read the whole greeting: closing with unread bytes would log an error in the host's journal.
            return connection.recv(256).startswith(b"SSH-")
    except OSError:
        return False


def _each(act: Callable[[T], None], things: Iterable[T]) -> None:
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        list(pool.map(act, things))
