"""The real command in a process of its own that can be killed. Its hosts are on paper, in a file that outlives it.

A fork server that has loaded everything starts it, so hundreds of lives are affordable. The process, its death, its
ssh-agent, its files and every call over the wire are real; only the play itself is not.
"""

import os
import pickle
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from runner.act.play_secrets import SOCKET_VARIABLE, ask_server
from runner.act.scratch import scratch
from runner.cli import main
from runner.loop import tick
from runner.model.names import CONTROLLER
from runner.model.plan import Play
from runner.model.platform import Member
from runner.model.world import Outcome, World
from runner.translate import MemberEvent, RunResult
from tests import fork_server
from tests.fork_server import Start, apply_start, current_umask, exit_code
from tests.unit.fake_keys import FakeKeys, _name
from tests.unit.fake_slurm import FakeSlurm

__all__ = ["NEVER", "PaperHosts", "VaultKeys", "exit_code", "start"]

NEVER = 0
_TOLD_FIRST = {"remove_worker": "stopping", "decommission": "stopping"}


@dataclass
class VaultKeys(FakeKeys):
    """munge keys of hosts on paper; the right one is in the real Vault."""

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
class PaperHosts(FakeSlurm):
    keys: FakeKeys = field(default_factory=VaultKeys)
    moments: int = 0  # so far, over all runners
    ends: list[int] = field(default_factory=list)  # the last moment of each play that ended

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("moment", "clock")}

    def save(self, path: Path) -> None:
        """Whole or not at all, as a host's disk has it."""
        new = path.with_suffix(".new")
        new.write_bytes(pickle.dumps(self))
        new.rename(path)

    @staticmethod
    def load(path: Path) -> "PaperHosts":
        found: PaperHosts = pickle.loads(path.read_bytes())
        found.clock = lambda: datetime.now(UTC) + timedelta(seconds=2)  # a daemon takes its time to start
        return found

    def _clean(self, play: Play, member: Member) -> Outcome:
        told = super()._clean(play, member)
        self.keys.live.pop(_name(member), None)
        return told


def start(variables: Mapping[str, str], hosts: Path, log: Path, dies_at: int = NEVER) -> Any:
    """A runner's whole life: one tick. It dies by itself at that moment of a play, if one is given."""
    given = Start(["gpuaas-slurm", "run"], dict(variables), log, log, Path.cwd(), current_umask())
    return fork_server.start(_live, given, hosts, dies_at)


def _live(given: Start, hosts: Path, dies_at: int) -> None:
    apply_start(given)
    tick.play = _plays_on(hosts, dies_at)  # type: ignore[attr-defined]
    main.main()


def _plays_on(path: Path, dies_at: int) -> Callable[..., RunResult]:
    def play(
        step: Play, world: World, _app: Any, access: Mapping[str, str], *_: Any, listen: Any, **__: Any
    ) -> RunResult:
        hosts = PaperHosts.load(path)

        def moment() -> None:
            hosts.moments += 1
            hosts.save(path)
            if hosts.moments == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)

        def ask(what: str, name: str = "munge_key") -> str:
            return ask_server(access[SOCKET_VARIABLE], str(world.instance.id), name, what)

        hosts.moment = moment
        with scratch() as directory:
            (directory / "artifacts").mkdir()
            moment()
            for member in step.members:
                listen(MemberEvent(member.id, _TOLD_FIRST.get(step.playbook, "preflight")))
            assert isinstance(hosts.keys, VaultKeys)
            hosts.keys.ask = ask
            if step.playbook in ("deploy", "add_worker"):
                hosts.keys.current = ask("current")
            if step.playbook == "deploy":
                ask("current", "slurmdbd_password")
                hosts.keys.live[CONTROLLER] = hosts.keys.current
            told = hosts.run(world, step)
            hosts.ends.append(hosts.moments)
            hosts.save(path)
            for member_id, outcome in told.outcomes.items():
                listen(MemberEvent(member_id, outcome.phase, outcome.detail, error=outcome.error))
        seen = told.snapshot and told.snapshot.model_copy(update={"observed_at": datetime.now(UTC)})
        return RunResult(told.outcomes, seen)

    return play
