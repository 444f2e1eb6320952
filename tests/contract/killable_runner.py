"""The real command in a process of its own that can be killed. Its hosts are simulated, in a file that outlives it.

A fork server that has loaded everything starts it, so hundreds of runs are affordable. The process, its death, its
ssh-agent, its files and every call over the wire are real; only the play itself is not.
"""

import contextlib
import fcntl
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from runner.act.play_secrets import SOCKET_VARIABLE, Access, fetch_secret
from runner.act.scratch import scratch
from runner.cli import main
from runner.loop import tick
from runner.model.plan import Play
from runner.model.platform import Member
from runner.model.world import Outcome, World
from runner.slurm.components import CONTROLLER
from runner.slurm.snapshot import Sample
from runner.translate import MemberEvent, RunResult
from tests import fork_server
from tests.contract.simulated_hosts import Numbers, changed_by
from tests.fork_server import Start, apply_start, current_umask, exit_code
from tests.unit.fake_keys import FakeKeys, _name
from tests.unit.fake_slurm import FakeSlurm

__all__ = ["NEVER", "FileHosts", "VaultKeys", "exit_code", "start"]

NEVER = 0
# What the access bundle shows of a cluster.
SAMPLES = [Sample(kind=kind, about="a test", command="sinfo", output="main") for kind in ("use", "health")]
_FIRST_PHASE = {"remove_worker": "stopping", "decommission": "stopping"}


@dataclass
class VaultKeys(FakeKeys):
    """munge keys of simulated hosts; the right one is in the real Vault."""

    ask: Callable[[str], str] = str

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "ask": str}

    def _stage(self, up: dict[UUID, str], *rest: Any) -> dict[UUID, Outcome]:
        self.coming = self.ask("stage")
        return super()._stage(up, *rest)

    def _switch(self, up: dict[UUID, str], *rest: Any) -> dict[UUID, Outcome]:
        self.current, self.coming = self.ask("promote"), None
        return super()._switch(up, *rest)

    def _drop(self) -> None:
        self.ask("drop")
        super()._drop()


@dataclass
class FileHosts(FakeSlurm):
    keys: FakeKeys = field(default_factory=VaultKeys)
    moments: int = 0  # so far, over all runners
    busy: dict[UUID, int] = field(default_factory=dict)  # the process whose play is changing that member's host
    overlaps: list[UUID] = field(default_factory=list)  # members that two living runners changed at once
    numbers: Numbers = field(default_factory=dict)
    ends: list[int] = field(default_factory=list)  # the last moment of each play that ended

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("moment", "clock")}

    def save(self, path: Path) -> None:
        """Replace the file as a whole; a kill leaves the old one or the new one."""
        new = path.with_suffix(".new")
        new.write_bytes(pickle.dumps(self))
        new.rename(path)

    @staticmethod
    def load(path: Path) -> "FileHosts":
        found: FileHosts = pickle.loads(path.read_bytes())
        found.clock = lambda: datetime.now(UTC) + timedelta(seconds=2)  # a daemon takes its time to start
        return found

    def begin(self, play: Play) -> None:
        """Members of a dead runner are free: its play ended with it."""
        self.busy = {member: process for member, process in self.busy.items() if Path(f"/proc/{process}").exists()}
        for member in changed_by(play):
            self.overlaps += [member] if member in self.busy else []
            self.busy[member] = os.getpid()
            if member in play.fences:
                self.numbers.setdefault(member, []).append((str(os.getpid()), play.fences[member]))

    def end(self, play: Play) -> None:
        for member in changed_by(play):
            self.busy.pop(member, None)

    def _clean(self, play: Play, member: Member) -> Outcome:
        result = super()._clean(play, member)
        self.keys.live.pop(_name(member), None)
        return result


def start(
    variables: Mapping[str, str],
    hosts: Path,
    log: Path,
    dies_at: int = NEVER,
    lasts: float = 0,
    *,
    command: Sequence[str] = ("run",),
    output: Path | None = None,
) -> Any:
    """Start a runner for one tick, or another command. It kills itself at that moment of a play, if one is given.

    Plays last that many seconds, during which another runner may begin one. `output` is for stdout alone.
    """
    given = Start(["gpuaas-slurm", *command], dict(variables), output or log, log, Path.cwd(), current_umask())
    return fork_server.start(_run, given, hosts, dies_at, lasts)


def _run(given: Start, hosts: Path, dies_at: int, lasts: float) -> None:
    apply_start(given)
    tick.play = _plays_on(hosts, dies_at, lasts)  # type: ignore[attr-defined]
    main.main()


def _plays_on(path: Path, dies_at: int, lasts: float) -> Callable[..., RunResult]:
    def play(
        step: Play, world: World, _app: Any, access: Access, *_: Any, on_member_event: Any, **__: Any
    ) -> RunResult:
        with scratch() as directory:
            (directory / "artifacts").mkdir()
            with _locked(path) as hosts:
                hosts.begin(step)
            time.sleep(lasts)
            with _locked(path) as hosts:
                result = carry_out(hosts, step, world, access, on_member_event)
                hosts.end(step)
                hosts.ends.append(hosts.moments)
            for member_id, outcome in result.outcomes.items():
                on_member_event(MemberEvent(member_id, outcome.phase, outcome.detail, error=outcome.error))
        fresh = {"observed_at": datetime.now(UTC), "samples": SAMPLES}
        seen = result.snapshot and result.snapshot.model_copy(update=fresh)
        return RunResult(result.outcomes, seen)

    def carry_out(hosts: FileHosts, step: Play, world: World, access: Access, on_member_event: Any) -> World:
        def moment() -> None:
            hosts.moments += 1
            hosts.save(path)
            if hosts.moments == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)

        def ask(what: str, name: str = "munge_key") -> str:
            return fetch_secret(access.environment[SOCKET_VARIABLE], str(world.instance.id), name, what)

        hosts.moment = moment
        moment()
        for member in step.members:
            on_member_event(MemberEvent(member.id, _FIRST_PHASE.get(step.playbook, "preflight")))
        assert isinstance(hosts.keys, VaultKeys)
        hosts.keys.ask = ask
        if step.playbook in ("deploy", "add_worker"):
            hosts.keys.current = ask("current")
        if step.playbook == "deploy":
            ask("current", "slurmdbd_password")
            hosts.keys.live[CONTROLLER] = hosts.keys.current
        return hosts.run(world, step)

    return play


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[FileHosts]:
    """Lock the hosts, so that no other runner changes them, and save them afterwards."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        hosts = FileHosts.load(path)
        yield hosts
        hosts.save(path)
