"""What a fleet shows after a failure: its hosts, its platform, and the records of its app instances.

Every look has a time limit of its own: a host that is paused, gone or hanging is named and left alone.
"""

import contextlib
import functools
import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import hvac
import requests

from sandbox.fleet.errors import FleetError
from sandbox.fleet.fleet import Fleet
from sandbox.fleet.runtime import FLEET_LABEL, Podman
from tests.commands import hide
from tests.post_mortem import PLATFORM_LOG, write

SECONDS = 30  # for one look at one host
API_SECONDS = 5
LOGS = "/var/log/slurm*/*.log /var/log/slurm*.log /var/log/munge/*.log /var/log/mysql/*"
STATE = """
show() { echo; echo "\\$ $*"; timeout 5 "$@" 2>&1 || echo "(exit code $?; 124: no answer within 5 s)"; }
show systemctl --failed --no-legend --plain
show systemctl list-units --state=failed,activating --no-legend --plain
show systemctl --no-pager --full --lines=15 status munge slurmd slurmctld slurmdbd mariadb ssh
show ps -eo pid,ppid,user,lstart,stat,args --width 250
show df -h /
if pgrep -x slurmctld >/dev/null || systemctl is-enabled --quiet slurmctld 2>/dev/null; then
  show sinfo --Node --long
  show sinfo --list-reasons
  show squeue --all --long
  show scontrol show node
  show sacct --allusers --format=JobID,JobName,State,ExitCode,NodeList,Start,End
fi
true
"""
PARTS = {
    "journal.txt": ["journalctl", "--no-pager", "--all", "--output=short-iso"],
    "state.txt": ["sh", "-c", STATE],
    "logs.txt": ["sh", "-c", f"tail --verbose --bytes=2000000 $(ls -d {LOGS} 2>/dev/null) </dev/null"],
}
RECORDS = ("members", "member-operations", "operations", "events")


@dataclass
class FleetEvidence:
    """A fleet, for a post-mortem."""

    fleet: Fleet
    rented: set[str] = field(default_factory=set)  # hosts that the platform takes to be there

    @property
    def name(self) -> str:
        return self.fleet.name

    def keep(self, folder: Path) -> list[str]:
        if not self.fleet.enrolled:  # hosts without a platform, for role tests
            return self._hosts(folder / "hosts")
        with contextlib.suppress(FleetError):
            hide(self.fleet.env())
        summary = [*self._records(folder / "records"), *self._hosts(folder / "hosts")]
        try:
            write(folder / PLATFORM_LOG, "\n".join(self.fleet.platform_log(10**9)))
        except (FleetError, OSError) as error:
            write(folder / PLATFORM_LOG, f"no log: {error}")
        return summary

    def remove(self) -> None:
        self.fleet.down()

    def access_commands(self) -> list[str]:
        option = f"--name {self.name}"
        hosts = [name for name, _, _ in self._containers()]
        return [
            f"gpuaas-slurm sandbox exec {option} {hosts[0] if hosts else 'HOST'} -- bash   # hosts: {' '.join(hosts)}",
            f"gpuaas-slurm sandbox logs {option} platform",
            f'eval "$(gpuaas-slurm sandbox env {option})" && gpuaas-slurm status',
            f"gpuaas-slurm sandbox down {option}   # removes it",
        ]

    # -- the platform -----------------------------------------------------------------------------------------

    def _records(self, folder: Path) -> list[str]:
        try:
            return list(self._read_records(folder))
        except Exception as error:  # a fault that a test planted may be met here, whatever it is
            write(folder / "no-answer.txt", f"the platform did not answer: {error!r}")
            return [f"the platform did not answer: {error!r}"]

    def _read_records(self, folder: Path) -> Iterator[str]:
        env = self.fleet.env()
        project = f"/api/v1/projects/{env['GPUAAS_PROJECT_ID']}"
        headers = {"Authorization": f"Bearer {env['GPUAAS_OPERATOR_TOKEN']}"}
        with httpx.Client(
            base_url=env["GPUAAS_BASE_URL"], headers=headers, timeout=API_SECONDS, trust_env=False
        ) as api:
            write(folder / "requests.txt", "\n".join(self._requests()))
            allocations = _items(api, f"{project}/allocations")
            _save(folder / "allocations.json", allocations)
            hosts = {one["id"]: str(one["name"]) for one in allocations}
            self.rented = {hosts[one["id"]] for one in allocations if one["status"] == "active"}
            for instance in _items(api, f"{project}/app-instances"):
                path, kept = f"{project}/app-instances/{instance['id']}", folder / instance["id"]
                _hide_secrets_of(env, instance["id"])
                _save(kept / "instance.json", instance)
                records = {what: _items(api, f"{path}/{what}") for what in RECORDS}
                for what, found in records.items():
                    _save(kept / f"{what}.json", found)
                yield from _summary(instance, records, hosts)

    def _requests(self) -> Iterator[str]:
        """The calls that the platform answered, the latest last; their bodies may hold secrets."""
        for one in self.fleet.control().requests()["requests"]:
            fault = f" (fault: {one['fault']})" if one["fault"] else ""
            yield f"{one['at']} {one['status']} {one['method']} {one['path']}{fault}"

    # -- the hosts --------------------------------------------------------------------------------------------

    def _containers(self) -> list[tuple[str, str, str]]:
        """Host, container and state of each; podman alone is asked, in bounded time."""
        listed = self._podman("ps", "--all", "--filter", f"label={FLEET_LABEL}={self.name}", "--format", "json")
        rows = [(one["Names"][0], one["State"]) for one in json.loads(listed)]
        return sorted((name.removeprefix(f"gpuaas-slurm-{self.name}-"), name, state) for name, state in rows)

    @functools.cached_property
    def _detected(self) -> Podman:
        return Podman.detect()

    def _podman(self, *arguments: str) -> str:
        argv = self._detected.argv(*arguments)
        try:
            done = subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            output = (error.stdout or b"").decode(errors="replace")
            return f"{output}\n(no more within {SECONDS} s: {' '.join(arguments[:4])})\n"
        output = done.stdout.decode(errors="replace")
        return output if done.returncode == 0 else f"{output}\n(exit code {done.returncode}) {done.stderr.decode()}\n"

    def _hosts(self, folder: Path) -> list[str]:
        there = self._containers()
        gone = sorted(self.rented - {host for host, _, _ in there})
        with ThreadPoolExecutor(max_workers=4) as pool:
            return list(
                pool.map(lambda host: self._host(folder, *host), [*there, *((one, "", "gone") for one in gone)])
            )

    def _host(self, folder: Path, host: str, container: str, state: str) -> str:
        if state != "running":
            write(folder / host / "state.txt", f"nothing could be read: the host is {state}")
            return f"{host}: the host is {state}"
        outputs = {part: self._podman("exec", container, *argv) for part, argv in PARTS.items()}
        for part, text in outputs.items():
            write(folder / host / part, text)
        listed = outputs["state.txt"].partition("activating --no-legend --plain\n")[2].partition("\n$ ")[0]
        rows = [line.split() for line in listed.splitlines() if ".service" in line]
        units = [f"{row[0]} is {row[2]} ({row[3]})" for row in rows if len(row) > 3]
        return f"{host}: the host runs; {'; '.join(units) or 'no unit has failed'}"


def _hide_secrets_of(env: dict[str, str], instance_id: str) -> None:
    """What the vault has for the cluster is written to no file, wherever a host or a traceback shows it."""
    vault = hvac.Client(url=env["VAULT_ADDR"], timeout=API_SECONDS)
    path = f"projects/{env['GPUAAS_PROJECT_ID']}/app-instances/{instance_id}"
    with contextlib.suppress(hvac.exceptions.VaultError, requests.RequestException):
        vault.auth.approle.login(role_id=env["VAULT_ROLE_ID"], secret_id=env["VAULT_SECRET_ID"])
        found = vault.secrets.kv.v2.read_secret_version(path=path, raise_on_deleted_version=True)["data"]["data"]
        hide({f"SECRET {name}": value for name, value in found.items()})


def _items(api: httpx.Client, path: str) -> list[dict[str, Any]]:
    """Every page of a list."""
    found: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        answer = api.get(path, params=cursor)
        answer.raise_for_status()
        page = answer.json()
        found += page["items"]
        if not page["next_cursor"]:
            return found
        cursor = {"cursor": page["next_cursor"]}


def _save(path: Path, found: object) -> None:
    write(path, json.dumps(found, indent=2, sort_keys=True))


def _summary(
    instance: dict[str, Any], records: dict[str, list[dict[str, Any]]], hosts: dict[str, str]
) -> Iterator[str]:
    """What a person would look for first in the records."""
    yield f"instance {instance['id']}: {instance['status']}, {instance['health']}"
    for reason in (instance["status_detail"] or {}).get("reasons", []):
        yield f"  reason {reason['code']}: {reason.get('message')}"
    for member in records["members"]:
        detail = member["adapter_detail"] or {}
        host = hosts.get(member["allocation_id"])
        yield f"  {member['component_key']} {member['id'][:8]} ({host}): {member['status']}, {detail.get('phase')}"
        if error := detail.get("last_adapter_error"):
            yield f"    {error['code']} in task {error.get('task')!r}: {error['message']}"
    for operation in (*records["member-operations"], *records["operations"]):
        if operation["status"] != "succeeded":
            error = (operation.get("error") or {}).get("message", "")
            yield f"  operation {operation['operation']} {operation['id'][:8]}: {operation['status']} {error}".rstrip()
