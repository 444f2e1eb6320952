"""What a controller shows of its nodes and jobs, view by view, and the verdicts of slurm_nodes on them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from plugins.modules import slurm_nodes

OWNER = "gpuaas:0f0e0d0c-0000-4000-8000-000000000001"
REASON = f"{OWNER}: disk"
NOTHING: dict[str, Any] = {  # the arguments of a call that asks for nothing
    **{kind: [] for kind in ("drain", "resume", "requeue", "unpin", "cancel", "verify_delete", "delete")},
    "hold_down": False,
}
NO_ANSWER = (
    "slurmctld does not answer on the controller{when}, so its nodes and jobs"
    " are unknown. The adapter retries; if the error stays, read `journalctl -u slurmctld` there."
)


def node(state: str = "IDLE", *flags: str, reason: str | None = None, by: str = "root", **more: Any) -> dict[str, Any]:
    return {"state": state, "flags": list(flags), "reason": reason, "reason_by": by, "jobs": [], **more}


def drained(reason: str | None = REASON) -> dict[str, Any]:
    return node("IDLE", "DRAIN", reason=reason)


def verdict(did: str, reason: str | None = None, code: str | None = None) -> dict[str, Any]:
    return {"did": did, "code": code, "reason": reason}


def job(address: str, number: int, state: str = "RUNNING", het: int | None = None, **more: Any) -> Any:
    offset = int(address.partition("+")[2]) if het else None
    made = {"id": number, "address": address, "state": state, "het_job_id": het, "het_job_offset": offset}
    return {**made, "nodes": [], "required_nodes": [], "end_time": None, **more}


def connect(monkeypatch: pytest.MonkeyPatch, look: Callable[[object], Any], run: Callable[..., Any]) -> None:
    """slurm_nodes looks at this cluster and gives its commands to it."""
    monkeypatch.setattr(slurm_nodes, "nodes_command", lambda: ("sinfo",))
    monkeypatch.setattr(slurm_nodes, "look_at_nodes", look)
    monkeypatch.setattr(slurm_nodes, "look", look)
    monkeypatch.setattr(slurm_nodes, "run", run)


class Cluster:
    """What the controller shows, look by look: the last view stays. Commands are noted and answered as given."""

    def __init__(self, *views: Mapping[str, Any] | None, jobs: Any = (), answers: Sequence[Any] = ()) -> None:
        self.views = list(views)
        self.jobs = list(jobs)
        self.answers = list(answers)
        self.commands: list[tuple[str, ...]] = []
        self.looks: list[str] = []

    def seen(self, command: object) -> dict[str, Any]:
        assert command == ("sinfo",)
        nodes = self.views.pop(0) if len(self.views) > 1 else self.views[0]
        return {"nodes": nodes, "jobs": self.jobs, "reservations": []}

    def run(self, *command: str) -> tuple[int, str, str]:
        self.commands.append(command)
        output, errors = self.answers.pop(0) if self.answers else ("", "")
        return 0, output, errors


DOWN = {"b": node("DOWN", reason="fan"), "a": node("DOWN", reason=None), "c": node(), "d": drained()}
