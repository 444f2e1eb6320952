"""The only code that calls podman, with the options that this machine needs."""

import contextlib
import json
import os
import resource
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.fleet.errors import CannotRunError, FleetError

FLEET_LABEL = "gpuaas-slurm.fleet"
IMAGE_LABEL = "gpuaas-slurm.image"

PACKAGES = "podman runc conmon mmdebstrap netavark aardvark-dns iptables nftables iproute2 uidmap"
INSTALL = f"apt-get install --no-install-recommends {PACKAGES}"

# Enough for systemd, sshd and a database on one host. Podman's own defaults are higher than a machine
# without CAP_SYS_RESOURCE may set, and then no container starts.
WANTED_LIMITS = {"nofile": 65536, "nproc": 32768}

# Every systemd needs several. About twenty hosts use up the default of 128, and the next host does not boot.
INOTIFY_INSTANCES = Path("/proc/sys/fs/inotify/max_user_instances")
WANTED_INOTIFY_INSTANCES = 1024


def make_room_for_systemd() -> None:
    """Raise the machine's inotify limit until its next boot, if permitted; otherwise the boot error names it."""
    with contextlib.suppress(OSError, ValueError):
        if int(INOTIFY_INSTANCES.read_text()) < WANTED_INOTIFY_INSTANCES:
            INOTIFY_INSTANCES.write_text(f"{WANTED_INOTIFY_INSTANCES}\n")


def ulimit_flags(hard: Mapping[str, int]) -> list[str]:
    """Flags for the limits that a host needs, capped at what this machine permits."""
    flags: list[str] = []
    for name, wanted in WANTED_LIMITS.items():
        limit = wanted if hard[name] == resource.RLIM_INFINITY else min(wanted, hard[name])
        flags += ["--ulimit", f"{name}={limit}:{limit}"]
    return flags


def choose_runtime(cgroup_version: str, default: str, available: Sequence[str]) -> str:
    """crun refuses hybrid cgroups, so v1 needs runc; on v2 podman's own choice is right."""
    if cgroup_version == "v2":
        return default
    if "runc" not in available:
        raise CannotRunError(f"this machine has cgroup {cgroup_version}, which needs runc; run: {INSTALL}")
    return "runc"


@dataclass(frozen=True)
class Podman:
    """A podman that was checked: it can run hosts with systemd."""

    runtime: str
    limits: tuple[str, ...]

    @classmethod
    def detect(cls) -> "Podman":
        """Check this machine; the error names what is missing and how to install it."""
        if os.geteuid() != 0:
            raise CannotRunError(
                "the fleet's hosts need addresses that this machine can reach, which podman gives only to root; "
                "run the same command with sudo"
            )
        if shutil.which("podman") is None:
            raise CannotRunError(f"podman is not installed; run: {INSTALL}")
        answer = subprocess.run(["podman", "info", "--format", "json"], capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            raise CannotRunError(f"podman does not work here: {_last_line(answer.stderr)}; run: {INSTALL}")
        host: dict[str, Any] = json.loads(answer.stdout)["host"]
        if host.get("networkBackend") != "netavark":
            raise CannotRunError(
                f"podman's network backend is {host.get('networkBackend')!r}, the fleet needs netavark; "
                f"run: {INSTALL}, then: podman system reset (this removes every container of this machine)"
            )
        if not any((Path(place) / "netavark").exists() for place in _HELPER_PLACES):
            raise CannotRunError(f"netavark is not installed; run: {INSTALL}")
        available = [name for name in ("runc", "crun") if shutil.which(name)]
        runtime = choose_runtime(host["cgroupVersion"], host["ociRuntime"]["name"], available)
        hard = {
            "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
            "nproc": resource.getrlimit(resource.RLIMIT_NPROC)[1],
        }
        return cls(runtime=runtime, limits=tuple(ulimit_flags(hard)))

    def argv(self, *args: str) -> list[str]:
        return ["podman", "--runtime", self.runtime, *args]

    def try_run(self, *args: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        """Run podman and return the result, also of a failure."""
        return subprocess.run(self.argv(*args), input=stdin or b"", capture_output=True, check=False)

    def run(self, *args: str, stdin: bytes | None = None) -> str:
        """Run podman and return its output; a failure raises with podman's last line."""
        done = self.try_run(*args, stdin=stdin)
        if done.returncode != 0:
            reason = _last_line(done.stderr.decode(errors="replace"))
            raise FleetError(f"podman {args[0]} failed (exit {done.returncode}): {reason}")
        return done.stdout.decode(errors="replace")

    def attached(self, *args: str) -> int:
        """Run podman with this process's own input and output; returns the exit code."""
        return subprocess.run(self.argv(*args), check=False).returncode

    def start_host(self, container: str) -> None:
        self.run("start", container)

    def create_host(
        self,
        image: str,
        name: str,
        hostname: str,
        network: str,
        labels: Mapping[str, str],
        devices: Sequence[str] = (),
    ) -> None:
        """Create a container that boots like a machine: systemd as PID 1, its own network address."""
        flags = [part for key, value in sorted(labels.items()) for part in ("--label", f"{key}={value}")]
        self.run(
            *("create", "--systemd=always", "--name", name, "--hostname", hostname, "--network", network),
            *self.limits,
            *flags,
            *devices,
            image,
        )

    def inspect_labelled(self, fleet: str) -> list[dict[str, Any]]:
        """podman's records of one fleet's containers."""
        ids = self.run("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={FLEET_LABEL}={fleet}").split()
        if not ids:
            return []
        found: list[dict[str, Any]] = json.loads(self.run("container", "inspect", *ids))
        return found

    def fleets(self) -> set[str]:
        """Names of all fleets that have a container or a network here."""
        label = f'{{{{index .Labels "{FLEET_LABEL}"}}}}'
        found = self.run("ps", "--all", "--filter", f"label={FLEET_LABEL}", "--format", label).split()
        networks = self.run("network", "ls", "--filter", f"label={FLEET_LABEL}", "--format", "json")
        return {*found, *(network["labels"][FLEET_LABEL] for network in json.loads(networks or "[]"))}

    def networks(self, fleet: str) -> list[str]:
        label = f"label={FLEET_LABEL}={fleet}"
        return self.run("network", "ls", "--filter", label, "--format", "{{.Name}}").split()

    def ensure_network(self, name: str, fleet: str) -> None:
        """Create the fleet's own network, without DNS: cloud machines cannot resolve each other's names."""
        if name in self.networks(fleet):
            return
        self.run("network", "create", "--disable-dns", "--label", f"{FLEET_LABEL}={fleet}", name)

    def image_exists(self, reference: str) -> bool:
        return self.try_run("image", "exists", reference).returncode == 0

    def import_image(self, tarball: Path, reference: str) -> None:
        self.run(
            *("import", "--change", 'CMD ["/sbin/init"]', "--change", f"LABEL {IMAGE_LABEL}=node"),
            *("--change", "STOPSIGNAL SIGRTMIN+3", str(tarball), reference),
        )

    def own_images(self) -> list[str]:
        listing = self.run("images", "--filter", f"label={IMAGE_LABEL}", "--format", "{{.Repository}}:{{.Tag}}")
        return sorted(set(listing.split()))


_HELPER_PLACES = ("/usr/lib/podman", "/usr/libexec/podman", "/usr/local/lib/podman", "/usr/local/libexec/podman")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"
