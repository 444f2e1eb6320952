"""Cancel, requeue and unpin jobs by address. The result of each is what the controller shows afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .jobs import PENDING, UNREAD, Job, check_addresses, elements, find_targets, same_number
from .leave import Verdict, verdict

NAMED = 20
# Elements of one array that are changed in one call; the next call changes the rest.
UPDATES = 200
COMPLETING = "COMPLETING"
# The open jobs as the controller shows them now.
Look = Callable[[], list[Job]]
# A description of the change and the command. Returns the error text of Slurm, or an empty text.
Run = Callable[[str, tuple[str, ...]], str]


class Evictions:
    """Changes to jobs in one call, with a verdict for each address."""

    def __init__(self, look: Look, run: Run) -> None:
        self._look = look
        self._run = run
        self.verdicts: dict[str, Verdict] = {}

    def requeue(self, addresses: Sequence[str]) -> None:
        """A heterogeneous job is requeued as a whole: Slurm refuses to requeue one component."""
        self._end(addresses, "requeued", (COMPLETING, PENDING))

    def cancel(self, addresses: Sequence[str]) -> None:
        self._end(addresses, "cancelled", (COMPLETING,))

    def unpin(self, addresses: Sequence[str]) -> None:
        """Clear the required nodes of pending jobs. scontrol changes one job or array element at a time."""
        listed = check_addresses(addresses)
        if not listed:
            return
        jobs = self._look()
        pinned = {job["address"]: job for job in jobs if _is_pinned(job) and not job["address"].endswith(UNREAD)}
        complaints: dict[str, str] = {}
        for address in listed:
            if address in pinned:
                job = pinned[address]
                given = [str(job["id"])] if job["het_job_id"] else elements(address)[:UPDATES]
                replies = [
                    self._run(f"job {one} unpinned", ("scontrol", "update", f"JobId={one}", "NodeList="))
                    for one in given
                ]
                complaints[address] = next(filter(None, replies), f"Job {address} still names its nodes.")
        still = [job for job in self._look() if _is_pinned(job)]
        for address in listed:
            if address not in complaints:
                self.verdicts[address] = _not_found(address, jobs)
            elif _still_pinned(pinned[address], still):
                self.verdicts[address] = verdict("kept", complaints[address])
            else:
                self.verdicts[address] = verdict("unpinned")

    def _end(self, addresses: Sequence[str], done: str, ending: tuple[str, ...]) -> None:
        """One command for all jobs. It continues after a job that it cannot end, which the next look shows."""
        listed = check_addresses(addresses)
        if not listed:
            return
        jobs = self._look()
        before = {job["id"]: job for job in jobs}
        requeues = done == "requeued"
        targets = find_targets(listed, jobs, whole=requeues)
        to_do = [
            target
            for target in targets.values()
            if target and not (requeues and all(before[one]["state"] in ending for one in target["ids"]))
        ]
        given = list(dict.fromkeys(one for target in to_do for one in target["given"]))
        command = ("scontrol", "requeue", ",".join(given)) if requeues else ("scancel", *given)
        more = f" and {len(given) - NAMED} more" if len(given) > NAMED else ""
        complaint = self._run(f"jobs {','.join(given[:NAMED])}{more} {done}", command) if given else ""
        after = {job["id"]: job["state"] for job in self._look()}
        for address, target in targets.items():
            if target is None:
                self.verdicts[address] = _not_found(address, jobs)
                continue
            left = [one for one in target["ids"] if after.get(one) not in (None, *ending)]
            others = [before[one]["address"] for one in target["ids"] if before[one]["address"] != address]
            if left:
                state = f"Job {before[left[0]]['address']} is {after[left[0]]}."
                self.verdicts[address] = verdict("kept", complaint or state)
            else:
                whole = f"The whole heterogeneous job ended: also {', '.join(others)}." if others else None
                self.verdicts[address] = verdict(done, whole)


def _is_pinned(job: Job) -> bool:
    return job["state"] == PENDING and bool(job["required_nodes"])


def _still_pinned(job: Job, still: list[Job]) -> bool:
    """A change turns pending elements of an array into separate records, so every element is checked."""
    if job["het_job_id"]:
        return any(other["id"] == job["id"] for other in still)
    start = job["address"].partition("_")[0]
    return any(other["address"].partition("_")[0] == start for other in still)


def _not_found(address: str, jobs: Sequence[Job]) -> Verdict:
    """No open job has this address. If open jobs share its number, the address was not exact and they are kept."""
    others = same_number(address, jobs)
    if not others:
        return verdict("gone")
    return verdict("kept", f"{address} does not name exactly one job; there are {', '.join(others[:NAMED])}.")
