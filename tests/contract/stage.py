"""Runs one scenario over and over from a saved state: a platform, simulated hosts, runners that can be killed.

Over 300 lines, because a saved state, the run from it and the outcome that is compared belong to one object.
"""

import contextlib
import re
import shutil
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from uuid import UUID, uuid4

import httpx
import hvac
from hvac import exceptions

from runner.model import play_history
from runner.model.plan import AdapterError
from sandbox.fleet.keys import KeyPair
from sandbox.platform.app import DATABASE_FILE
from tests.contract import killable_runner
from tests.contract.killable_runner import NEVER, FileHosts
from tests.contract.simulated_hosts import misnumbered
from tests.leases import end_leases, holder
from tests.platform_process import Doc, start_platform, stop_platform
from tests.runner_process import environment

# Every call that changes something, except logins.
WRITES = {"method": "POST|PUT|PATCH|DELETE", "path_regex": "^(?!.*/auth/)"}
TICKS = 12
SETTLED = ("running", "stopped", "deleted", "failed")
HOST_KEY = "ssh-ed25519 " + "A" * 68
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|(?<=worker-)[0-9a-f]{8}|(?<=controller-)[0-9a-f]{8}")


@dataclass(frozen=True)
class Point:
    """Where a runner dies: before its n-th write, after it but before the answer, or at that moment of its plays."""

    where: Literal["before write", "after write", "in play"]
    number: int


@dataclass(frozen=True)
class Scenario:
    """A request, and the saved state in which it is made."""

    name: str
    begins: str
    ask: Callable[["Stage"], object]
    ends: str  # status of the last operation, or of the instance if there is none


@dataclass
class ScenarioRun:
    outcome: Doc
    writes: list[str] = field(default_factory=list)
    moments: int = 0
    plays: list[int] = field(default_factory=list)  # the last moment of each
    deaths: int = 0
    left: int = 0  # scratch directories that the killed runner left
    conflicts: int = 0  # writes that the platform refused because another runner's write came first
    wrong: list[Any] = field(default_factory=list)  # members that two runners changed at once, or under one number


class Stage:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._temporary = directory / "t"
        self._temporary.mkdir(parents=True)
        self._hosts = directory / "hosts"
        self._log = directory / "runner.log"
        self.platform = start_platform(directory / "platform")
        self.project = self.platform.project(allocations=0)
        control, project_id = self.platform.control, self.project.project_id
        control.put_credential(
            project_id, self.project.credential_id, username="ops", private_key=KeyPair.generate().private
        )
        for number in range(1, 9):
            connection = {"host": f"192.0.2.{number}", "port": 22, "username": "ops", "host_keys": [HOST_KEY]}
            control.put_allocation(project_id, allocation(number), connection=connection, region="eu-1", gpus=0)
        self.project.allocation_ids = [allocation(number) for number in range(1, 9)]
        self.variables = {
            **environment(self.project, GPUAAS_RETRY_SECONDS="0", GPUAAS_MAX_ATTEMPTS="9"),
            "GPUAAS_ASSUMED_EVENTS": "all",
            "GPUAAS_LOG_FORMAT": "json",
            "GPUAAS_OBSERVE_SECONDS": "3600",  # no routine look, however old the beginning is
            "TMPDIR": str(self._temporary),
            "HOME": str(directory),
            "PATH": "/usr/bin:/bin",
        }
        self._adapter, self._operator = self.project.adapter, self.project.operator
        FileHosts().save(self._hosts)
        self.arrange()
        self.made = self.project.deploy(workers=2)
        self.save("asked for")

    def arrange(self) -> None:
        """What another kind of stage changes before the deploy."""

    def close(self) -> None:
        stop_platform(self.platform)

    # -- requests ----------------------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        return f"{self.project.path}/app-instances/{self.made['id']}"

    def read(self, what: str = "") -> Any:
        found = self._operator.get(self.path + what).json()
        return found["items"] if what else found

    def member(self, number: int) -> str:
        """The worker on that machine."""
        return next(
            str(one["id"])
            for one in self.read("/members")
            if one["allocation_id"] == allocation(number) and one["status"] != "deleted"
        )

    def ask(self, verb: str, *members: int, allocations: tuple[int, ...] = (), **parameters: Any) -> Doc:
        body = {
            "operation": verb,
            "component_key": "worker",
            "member_ids": [self.member(number) for number in members],
            "allocation_ids": [allocation(number) for number in allocations],
            "parameters": parameters,
        }
        return self._made(self._operator.post(f"{self.path}/member-operations", body))

    def ask_whole(self, verb: str, **parameters: Any) -> Doc:
        return self._made(self._operator.post(f"{self.path}/operations", {"operation": verb, "parameters": parameters}))

    @staticmethod
    def _made(answer: httpx.Response) -> Doc:
        assert answer.status_code == 201, answer.text
        made: Doc = answer.json()
        return made

    def cancel(self) -> None:
        """Cancel the last member operation."""
        last = self.read("/member-operations")[-1]
        answer = self._operator.patch(f"{self.path}/member-operations/{last['id']}", {"status": "cancelled"})
        assert answer.status_code == 200, answer.text

    def break_controller(self) -> None:
        """The next plays fail with an error that needs an operator."""
        hosts = FileHosts.load(self._hosts)
        hosts.ctl_error = AdapterError("disk_full", "no space is left")
        hosts.save(self._hosts)

    def retry(self) -> None:
        hosts = FileHosts.load(self._hosts)
        hosts.ctl_error = None
        hosts.save(self._hosts)
        self.ask_whole("retry")

    def lose_host(self, number: int) -> None:
        """The machine with that number does not answer any more."""
        hosts = FileHosts.load(self._hosts)
        hosts.hosts_down.add(f"w{number}")
        hosts.save(self._hosts)

    def start_job(self, number: int) -> None:
        hosts = FileHosts.load(self._hosts)
        hosts.nodes[f"w{number}"].jobs.add(number)
        hosts.save(self._hosts)

    # -- runs --------------------------------------------------------------------------------------------------

    def play_out(
        self, scenario: Scenario, point: Point | None = None, *, runners: tuple[str, ...] = ("only",)
    ) -> ScenarioRun:
        """Run the scenario from start to end, with a runner that is killed at the point, or with several runners."""
        control = self.platform.control
        self.restore(scenario.begins)
        scenario.ask(self)
        mark = control.requests()["last"]
        dies_at = NEVER
        if point and point.where == "in play":
            dies_at = point.number
        elif point:
            action = "hold" if point.where == "before write" else "apply_then_hold"
            control.inject_fault(action, WRITES["path_regex"], method=WRITES["method"], skip=point.number - 1)
        if len(runners) > 1:  # the first write of each waits until all have read the same records
            control.inject_fault("hang", **WRITES, times=len(runners), seconds=1.5)
        result = ScenarioRun({})
        for _ in range(TICKS):
            self._tick(result, dies_at, runners)
            if result.deaths == (point is not None) and self._is_settled():
                break
        rows = control.requests(mark)["requests"]
        result.writes = [_kind(row) for row in rows if row["method"] != "GET" and "/auth/" not in row["path"]]
        hosts = FileHosts.load(self._hosts)
        result.moments, result.plays = hosts.moments, hosts.ends
        result.conflicts = sum(row["status"] in (409, 412) for row in rows)
        result.wrong = [*hosts.overlaps, *misnumbered(hosts.numbers)]
        # Observe once more: a health check that was pending is decided by then.
        self._tick(result, NEVER, runners[:1], GPUAAS_OBSERVE_SECONDS="0")
        result.outcome = self._outcome()
        return result

    def settle(self, **changes: str) -> str:
        """Ticks of one runner until nothing is left to do. Returns what it logged."""
        log = self._log.with_suffix(".only")
        lines = ""
        for _ in range(TICKS):
            log.unlink(missing_ok=True)
            self._tick(ScenarioRun({}), NEVER, ("only",), **changes)
            lines += log.read_text()
            if self._is_settled():
                return lines
        raise AssertionError("the instance does not settle")

    def _tick(self, result: ScenarioRun, dies_at: int, runners: tuple[str, ...], **changes: str) -> None:
        control = self.platform.control
        watched = bool(control.faults())
        started = []
        for name in runners:
            variables = {**self.variables, "GPUAAS_RUNNER_ID": f"{name}-{uuid4()}", **changes}
            log = self._log.with_suffix(f".{name}")
            lasts = 0.1 if len(runners) > 1 else 0
            started.append((killable_runner.start(variables, self._hosts, log, dies_at, lasts), log))
        for runner, log in started:
            while (code := killable_runner.exit_code(runner, 0.01 if watched else None)) is None:
                if control.held():
                    runner.kill()
            if code == -9:
                result.deaths += 1
                result.left += len(list(self._temporary.iterdir()))
                end_leases(self._adapter, self.path)
            else:
                assert code in (0, 1), f"{code}: {log.read_text()[-3000:]}"

    def _is_settled(self) -> bool:
        operations = [*self.read("/member-operations"), *self.read("/operations")]
        under_way = [one for one in operations if one["status"] in ("accepted", "running")]
        instance = self.read()
        unsettled = (instance["status_detail"] or {}).get("unsettled")
        return not under_way and not unsettled and instance["status"] in SETTLED

    # -- outcome -----------------------------------------------------------------------------------------------

    def _outcome(self) -> Doc:
        """Everything an operator could see afterwards, without the times and ids that differ between runs."""
        instance, hosts = self.read(), FileHosts.load(self._hosts)
        secrets, versions = self._secrets()
        detail = instance["status_detail"] or {}
        lifecycle = detail.get("lifecycle") or {}
        return {
            "instance": (instance["status"], instance["health"], [one["code"] for one in detail.get("reasons", [])]),
            "lifecycle": (lifecycle.get("verb"), lifecycle.get("phase"), lifecycle.get("result")),
            "access": sorted(instance["access"] or {}),
            "members": sorted(_shown(one) for one in self.read("/members")),
            "operations": [
                (
                    one["operation"],
                    one["status"],
                    (one["error"] or {}).get("code"),
                    _plain(_without_plays(one["result"])),
                )
                for one in [*self.read("/member-operations"), *self.read("/operations")]
            ],
            "events": [one["type"] for one in self.read("/events")],
            "nodes": {name: (_plain(one.reason), sorted(one.jobs)) for name, one in sorted(hosts.nodes.items())},
            "slurm": (hosts.up, hosts.partitions, hosts.restarts, sorted(hosts.waiting), sorted(set(hosts.cleaned))),
            "versions": (hosts.packages.installed, hosts.packages.running, hosts.packages.moving),
            "done to running jobs": (hosts.deleted_with_jobs, hosts.cleaned_with_jobs),
            "vault": (sorted(secrets), versions),
            "right keys": {name: key == secrets.get("munge_key") for name, key in sorted(hosts.keys.live.items())},
            "staged": (hosts.keys.coming, hosts.keys.staged),
            "left on disk": sorted(one.name for one in self._temporary.iterdir()),
            "left running": self._processes(),
        }

    def _secrets(self) -> tuple[Doc, int]:
        vault = hvac.Client(url=self.platform.base_url)
        login = {name: self.variables[f"VAULT_{name.upper()}"] for name in ("role_id", "secret_id")}
        vault.auth.approle.login(**login)
        path = f"projects/{self.project.project_id}/app-instances/{self.made['id']}"
        try:
            found = vault.secrets.kv.v2.read_secret_version(path=path, raise_on_deleted_version=True)["data"]
        except exceptions.InvalidPath:
            return {}, 0
        return found["data"], found["metadata"]["version"]

    def _processes(self) -> list[str]:
        """Processes with our temporary path in their command line; an agent takes a moment to end."""
        deadline = time.monotonic() + 5
        while True:
            found = []
            for one in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    if str(self._temporary).encode() in (command := one.read_bytes()):
                        found.append(command.decode(errors="replace").replace("\0", " "))
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.02)

    # -- saved states ------------------------------------------------------------------------------------------

    def save(self, name: str) -> None:
        self._copy(self._database, self._directory / f"{name}.sqlite")
        shutil.copy(self._hosts, self._directory / f"{name}.hosts")

    def restore(self, name: str) -> None:
        self._copy(self._directory / f"{name}.sqlite", self._database)
        shutil.copy(self._directory / f"{name}.hosts", self._hosts)
        hosts = FileHosts.load(self._hosts)
        hosts.moments, hosts.ends = 0, []
        hosts.busy, hosts.overlaps, hosts.numbers = {}, [], {}
        hosts.save(self._hosts)
        self.platform.control.clear_faults()

    @property
    def _database(self) -> Path:
        return self.platform.state / DATABASE_FILE

    @staticmethod
    def _copy(source: Path, target: Path) -> None:
        with contextlib.closing(sqlite3.connect(source)) as old, contextlib.closing(sqlite3.connect(target)) as new:
            old.backup(new)


def allocation(number: int) -> str:
    return str(UUID(int=100 + number))


def _kind(row: Doc) -> str:
    return f"{row['method']} {row['template'] or _ID.sub('{id}', row['path'])}"


def _without_plays(result: Doc | None) -> str:
    """How often a play ran differs after a kill: a play that was killed ran again."""
    others = {key: value for key, value in (result or {}).items() if key not in play_history.FIELDS}
    return _plain(others or None)


def _plain(value: Any) -> str:
    """Without ids, times, and the order that only ids give."""
    if isinstance(value, dict):
        return str(sorted((_plain(key), _plain(item)) for key, item in value.items()))
    return _TIME.sub("{time}", _ID.sub("{id}", str(value)))


def _shown(member: Doc) -> tuple[str, ...]:
    detail = member["adapter_detail"]
    names = ("phase", "registered_in_controller", "worker_hostname", "node_state", "host_cleaned")
    error = (detail.get("last_adapter_error") or {}).get("code")
    shown = [str(holder(member)), *(str(detail.get(name)) for name in names)]
    reason = _plain(detail.get("drain_reason"))
    return (member["component_key"], member["allocation_id"], member["status"], *shown, str(error), reason)
