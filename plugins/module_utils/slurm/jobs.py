"""Jobs as Slurm shows them, each with an address that names exactly this job.

An array that has fully started keeps one element under the array's own id, so `scancel 100` ends every element,
wherever it runs. A job is therefore named by its address:

    100       a plain job
    100_7     one element of an array
    100_[5-9] the elements of an array that have not started
    200+1     a component of a heterogeneous job, as squeue shows it

Slurm's commands do not take `200+1`: a component is ended by its own job id, and component zero, like every requeue,
acts on the whole job. `find_targets` turns addresses into what a command takes, from Slurm's own list of jobs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from ..host.errors import INTERVENTION, AdapterError
from .parse import Node, as_list, expand_hostlist, number, read_list, read_time

# Jobs in these states have ended. A job in any other state counts as open: waiting for a job that has ended does less
# harm than taking a node from one that runs.
ENDED_JOB_STATES = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    }
)
# A pending job holds no node yet; every other open job does.
PENDING = "PENDING"
TASKS = r"[0-9][0-9,:-]{0,100000}"
# Elements that Slurm does not list, as of an array that was cancelled before it started. They are not changed.
UNREAD = "[?]"
ADDRESS = re.compile(rf"(?P<number>[1-9][0-9]{{0,9}})(_[0-9]{{1,9}}|_\[({TASKS}|\?)\]|\+[0-9]{{1,4}})?")


class Job(TypedDict):
    id: int
    address: str
    # Of a heterogeneous job: the id of the whole, and the position of the component.
    het_job_id: int | None
    het_job_offset: int | None
    state: str
    nodes: list[str]
    required_nodes: list[str]
    end_time: str | None


class Target(TypedDict):
    """The arguments of a command for one address, and the ids of all jobs that it affects."""

    given: list[str]
    ids: list[int]


def parse_jobs(answer: str | None) -> list[Job] | None:
    """Jobs that hold or wait for nodes, oldest first; None if the answer is not valid."""
    found = read_list(answer, "jobs")
    if found is None:
        return None
    try:
        jobs = [_job(raw) for raw in found]
    except (KeyError, TypeError, ValueError):
        return None
    return sorted((job for job in jobs if job["state"] not in ENDED_JOB_STATES), key=lambda job: job["id"])


def with_jobs(nodes: dict[str, Node], jobs: list[Job]) -> dict[str, Node]:
    """Each node with the addresses of its jobs."""
    held: dict[str, list[str]] = {name: [] for name in nodes}
    for job in jobs:
        if job["state"] == PENDING:
            continue
        for name in job["nodes"]:
            held.setdefault(name, []).append(job["address"])
    return {name: {**node, "jobs": held[name]} for name, node in nodes.items()}


def naming(name: str, jobs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Addresses of the jobs that hold this node or ask for it by name."""
    return [job["address"] for job in jobs if name in job["required_nodes"] or name in job["nodes"]]


def check_addresses(addresses: Iterable[str]) -> list[str]:
    """Sorted and without duplicates. An address that Slurm could read as other jobs is refused."""
    unique = sorted(set(addresses))
    for address in unique:
        if not ADDRESS.fullmatch(address):
            raise AdapterError(
                "job_address_refused",
                f"{address[:60]!r} is not the address of one job, such as 100, 100_7 or 100+1. Correct it, then retry.",
                INTERVENTION,
            )
    return unique


def elements(address: str) -> list[str]:
    """100_3, 100_5 and 100_6 of 100_[3,5-6]; any other address by itself."""
    array, bracket, tasks = address.partition("_[")
    if not bracket:
        return [address]
    found = []
    for piece in tasks.rstrip("]").split(","):
        span, _, step = piece.partition(":")
        first, _, last = span.partition("-")
        found += [f"{array}_{task}" for task in range(int(first), int(last or first) + 1, int(step or 1))]
    return found


def find_targets(addresses: Iterable[str], jobs: Sequence[Job], *, whole: bool) -> dict[str, Target | None]:
    """By address what a command is to be given; None where no such job is open.

    `whole`: the command acts on whole heterogeneous jobs, as requeue does. Else that is so for component zero, and for
    each component that waits.
    """
    by_address = {job["address"]: job for job in jobs if not job["address"].endswith(UNREAD)}
    return {
        address: _target(by_address[address], jobs, whole) if address in by_address else None
        for address in check_addresses(addresses)
    }


def same_number(address: str, jobs: Iterable[Job]) -> list[str]:
    """Addresses of open jobs with the job number of this address: the address itself is not exact."""
    match = ADDRESS.fullmatch(address)
    start = match["number"] if match else ""
    return [job["address"] for job in jobs if re.split(r"[_+]", job["address"])[0] == start]


def _target(job: Job, jobs: Sequence[Job], whole: bool) -> Target:
    if job["het_job_id"] is None:
        # scancel takes 100_[1-3,7], but not 100_[1-9:2].
        exact = elements(job["address"]) if ":" in job["address"] else [job["address"]]
        return {"given": exact, "ids": [job["id"]]}
    if whole or job["het_job_offset"] == 0 or job["state"] == PENDING:
        ids = [other["id"] for other in jobs if other["het_job_id"] == job["het_job_id"]]
        return {"given": [str(job["het_job_id"])], "ids": ids}
    return {"given": [str(job["id"])], "ids": [job["id"]]}


def _job(raw: dict[str, Any]) -> Job:
    states = [str(state).upper() for state in as_list(raw["job_state"])]
    # 23.02 and later list COMPLETING beside the end state: the job has not ended yet.
    state = "COMPLETING" if "COMPLETING" in states else states[0]
    job_id = int(raw["job_id"])
    het = number(raw.get("het_job_id")) or None
    offset = number(raw.get("het_job_offset")) if het else None
    return {
        "id": job_id,
        "address": f"{het}+{offset}" if het and offset is not None else _array_address(raw, job_id),
        "het_job_id": het,
        "het_job_offset": offset,
        "state": state,
        "nodes": expand_hostlist(str(raw.get("nodes") or "")),
        "required_nodes": expand_hostlist(str(raw.get("required_nodes") or "")),
        "end_time": None if state == PENDING else read_time(raw.get("end_time")),
    }


def _array_address(raw: dict[str, Any], job_id: int) -> str:
    array = number(raw.get("array_job_id"))
    if not array:
        return str(job_id)
    task = number(raw.get("array_task_id"))
    if task is not None:
        return f"{array}_{task}"
    # Pending elements share one record. The number after % is how many may run at once.
    tasks = str(raw.get("array_task_string") or "").partition("%")[0]
    return f"{array}_[{tasks}]" if re.fullmatch(TASKS, tasks) else f"{array}_{UNREAD}"
