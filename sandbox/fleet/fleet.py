"""A fleet: hosts, a platform that knows them, and the credentials to use both."""

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from runner.act.bundle import bundle_dir
from sandbox.fleet import other_vault, places
from sandbox.fleet.enrolment import (
    Enrolment,
    administrator_env,
    enrol,
    register_hosts,
    runtime_env,
    store_login_key,
)
from sandbox.fleet.errors import CannotRunError, FleetError
from sandbox.fleet.gpus import NONE as NO_GPUS
from sandbox.fleet.gpus import Gpus
from sandbox.fleet.hosts import Host, Hosts, HostSpec, checked_name
from sandbox.fleet.images import remove_images
from sandbox.fleet.keys import KeyPair
from sandbox.fleet.other_vault import OtherVault
from sandbox.fleet.projects import Projects
from sandbox.fleet.runtime import Podman
from sandbox.platform import process
from sandbox.platform.control_client import ControlClient

# Called when a stage begins (seconds is None) and when it is done.
Progress = Callable[[str, float | None], None]


class Fleet:
    """One named sandbox on this machine. Every method reads the present state first and changes only what differs."""

    def __init__(self, name: str = "demo", progress: Progress = lambda _stage, _seconds: None) -> None:
        self.name = checked_name(name)
        self._progress = progress
        self._directory = places.state_dir(name)
        self._podman: Podman | None = None

    def up(
        self,
        hosts: int = 3,
        suite: str = "bookworm",
        *,
        warm: bool = False,
        gpus: Gpus = NO_GPUS,
        port: int | None = None,
        vault: OtherVault | None = None,
    ) -> None:
        """Have at least so many hosts of this kind, and a platform that offers them as active allocations.

        Existing hosts stay as they are; only new ones get the requested GPUs.
        """
        there = {host.name: host.spec for host in self.hosts()}
        wanted = [HostSpec(f"gs-{n}", suite, warm, gpus) for n in range(1, hosts + 1)]
        kept = [replace(spec, gpus=there[spec.name].gpus) if spec.name in there else spec for spec in wanted]
        self.ensure(kept, port=port, vault=vault)

    def ensure(self, specs: Sequence[HostSpec], port: int | None = None, vault: OtherVault | None = None) -> None:
        """The same for hosts of any names and kinds."""
        hosts = self._hosts()
        with places.locked(self.name):
            if self.bare_key.exists():
                raise CannotRunError(
                    f"fleet {self.name!r} was made without a platform; use another name, "
                    f"or first run: python -m sandbox.fleet destroy --name {self.name}"
                )
            missing = hosts.missing(specs)
            with self._stage("host images"):
                hosts.images(missing)
            with self._stage("platform"):
                control = self._start_platform(port)
                if vault:
                    other_vault.use(control, vault, self.name, is_new=not self.enrolled)
                enrolment = enrol(control, bundle_dir() / "app", Enrolment.load(self._record))
                enrolment.save(self._record)
            key = None if enrolment.login_key else KeyPair.generate()
            with self._stage(f"hosts ({len(missing)} new)"):
                running = hosts.ensure(specs, key.public if key else enrolment.login_key)
            with self._stage("allocations"):
                if key:
                    hosts.authorize(key.public, running)
                    enrolment = store_login_key(control, enrolment, key)
                    enrolment.save(self._record)
                register_hosts(control, enrolment, self.projects.of_the_first(running)).save(self._record)
                for name, one in self.projects.all().items():
                    own = [host for host in running if host.name in one.hosts]
                    hosts.authorize(one.login_key, own)
                    self.projects.save(name, register_hosts(control, one, own))

    def env(self, project: str | None = None) -> dict[str, str]:
        """Environment variables for a runner and an operator of a project; the values include secrets."""
        enrolment = self._enrolment() if project is None else self.projects.get(project)
        return {**self._addresses(), **enrolment.env()}

    def _addresses(self) -> dict[str, str]:
        return {"GPUAAS_BASE_URL": self.url, "VAULT_ADDR": self.url, **other_vault.variables(self.control())}

    @property
    def projects(self) -> Projects:
        """The further projects of the fleet's tenant."""
        return Projects(self._directory / "projects")

    def add_project(self, name: str, host_names: Sequence[str] = ()) -> Enrolment:
        """Create a further project in the tenant and give it hosts of the first; only its own key opens them then."""
        first, control = self._enrolment(), self.control()
        with places.locked(self.name):
            self.projects.check_new(name, tuple(host_names))
            hosts = self._hosts()
            own = [hosts.get(one) for one in host_names]
            made = replace(
                enrol(control, bundle_dir() / "app", None, name=name, org_id=first.org_id), hosts=tuple(host_names)
            )
            key = KeyPair.generate()
            made = store_login_key(control, made, key)
            # Saved first: if this ends early, the next `up` does the rest.
            self.projects.save(name, made)
            hosts.authorize(key.public, own)
            made = register_hosts(control, made, own)
            self.projects.save(name, made)
            register_hosts(control, first, self.projects.of_the_first(hosts.current())).save(self._record)
        return made

    def set_people(self, people: Sequence[dict[str, Any]], project: str | None = None) -> None:
        """Say who belongs to a project; it replaces the former list."""
        enrolment = self._enrolment() if project is None else self.projects.get(project)
        self.control().set_identities(enrolment.project_id, list(people))

    def administrator_env(self) -> dict[str, str]:
        """Environment variables for an administrator of the tenant, with a new token."""
        made = administrator_env(self.control(), bundle_dir() / "app", self._enrolment().org_id)
        return {**self._addresses(), **made}

    def runtime_env(self, runtime_id: str) -> dict[str, str]:
        """Environment variables for the operator identity of a shared runtime, with a new key."""
        made = runtime_env(self.control(), bundle_dir() / "app", runtime_id)
        return {**self._addresses(), "GPUAAS_ORG_ID": self._enrolment().org_id, **made}

    @property
    def url(self) -> str:
        """The platform's address."""
        return self._platform().base_url

    def control(self) -> ControlClient:
        """A client of the platform's control API, for tests that do what no API user may do."""
        platform = self._platform()
        return ControlClient(platform.base_url, platform.admin_token)

    def platform_log(self, lines: int) -> list[str]:
        """The end of the platform's log, also after the platform has stopped."""
        path = self._platform_state / process.LOG_FILE
        if not path.exists():
            raise self._not_up()
        return path.read_text(errors="replace").splitlines()[-lines:]

    @property
    def enrolled(self) -> bool:
        """Whether a platform knows this fleet."""
        return self._record.exists()

    def hosts(self) -> list[Host]:
        return self._hosts().current()

    def allocation_id(self, host: str) -> str:
        """The allocation under which the platform offers a host."""
        return self._enrolment().allocation_id(self._hosts().get(host))

    def status(self) -> dict[str, Any]:
        """The present state, as data."""
        enrolment, platform = Enrolment.load(self._record), process.running(self._platform_state)
        return {
            "name": self.name,
            "platform": {"running": platform is not None, "url": platform.base_url if platform else None},
            "project_id": enrolment.project_id if enrolment else None,
            "hosts": [
                {
                    "name": host.name,
                    "suite": host.spec.suite,
                    "warm": host.spec.warm,
                    "gpus": host.spec.gpus.count,
                    "status": host.status,
                    "address": host.address or None,
                    "allocation_id": enrolment.allocation_id(host) if enrolment else None,
                }
                for host in self.hosts()
            ],
        }

    def exec(self, host: str, argv: Sequence[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command as root on a host."""
        return self._hosts().exec(host, argv, stdin)

    def attach(self, host: str, argv: Sequence[str]) -> int:
        """Run a command as root on a host, with the caller's terminal."""
        return self._hosts().attach(host, argv)

    def pause(self, host: str) -> None:
        """Freeze a host: it keeps its address and answers nothing."""
        self._hosts().pause(host)

    def unpause(self, host: str) -> None:
        self._hosts().unpause(host)

    def kill(self, host: str) -> None:
        """Destroy a host. Its allocation stays unchanged on the platform until the next `up`."""
        self._hosts().kill(host)

    def down(self, *, images: bool = False) -> list[str]:
        """Remove everything of this fleet. Returns the images that were kept because another fleet uses them."""
        hosts = self._hosts()
        with places.locked(self.name):
            with self._stage("platform"):
                left = other_vault.release(process.running(self._platform_state))
                process.stop(self._platform_state)
            with self._stage("hosts"):
                hosts.remove_all()
            places.forget(self.name)
            if left:
                raise FleetError(f"sandbox {self.name}: removed, but its mounts and policies are left: {left}")
            return remove_images(hosts.podman) if images else []

    @property
    def bare_key(self) -> Path:
        """The file with the login key of a fleet without a platform; other fleets have no key on disk."""
        return self._directory / "login_key"

    @property
    def _record(self) -> Path:
        return self._directory / "enrolment.json"

    @property
    def _platform_state(self) -> Path:
        return self._directory / "platform"

    def _start_platform(self, port: int | None) -> ControlClient:
        contract = bundle_dir() / "contract" / "openapi.yaml"
        found = process.start(self._platform_state, port=port, contract=contract)
        if port is not None and not found.base_url.endswith(f":{port}"):
            raise CannotRunError(
                f"the platform of fleet {self.name!r} already listens at {found.base_url}; leave --port out, "
                f"or first run: gpuaas-slurm sandbox down --name {self.name}"
            )
        return ControlClient(found.base_url, found.admin_token)

    def _platform(self) -> process.Running:
        found = process.running(self._platform_state)
        if found is None:
            raise self._not_up()
        return found

    def _enrolment(self) -> Enrolment:
        enrolment = Enrolment.load(self._record)
        if enrolment is None:
            raise self._not_up()
        return enrolment

    def _not_up(self) -> FleetError:
        return FleetError(f"fleet {self.name!r} is not up; run: gpuaas-slurm sandbox up --name {self.name}")

    def _hosts(self) -> Hosts:
        # Detected once, since it takes a fifth of a second and the machine does not change meanwhile.
        self._podman = self._podman or Podman.detect()
        return Hosts(self.name, self._podman)

    @contextmanager
    def _stage(self, what: str) -> Iterator[None]:
        self._progress(what, None)
        started = time.monotonic()
        try:
            yield
        except (RuntimeError, httpx.HTTPError) as error:
            raise FleetError(f"{what}: {error}") from error
        self._progress(what, time.monotonic() - started)
