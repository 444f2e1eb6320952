"""Jobs that are requeued, cancelled or freed of their required nodes: every command, and the verdict on each job."""

from collections.abc import Sequence
from typing import Any

import pytest
from ansible.module_utils.slurm.evict import Evictions

from tests.unit.controller_views import job, verdict


class Queue:
    """Lists of open jobs, look by look; the last one stays."""

    def __init__(self, *views: list[Any], answers: Sequence[str] = ()) -> None:
        self.views, self.answers = list(views), list(answers)
        self.ran: list[tuple[str, tuple[str, ...]]] = []
        self.looks = 0
        self.evictions = Evictions(self._look, self._run)

    def _look(self) -> list[Any]:
        self.looks += 1
        return self.views.pop(0) if len(self.views) > 1 else self.views[0]

    def _run(self, change: str, command: tuple[str, ...]) -> str:
        self.ran.append((change, command))
        return self.answers.pop(0) if self.answers else ""


def test_nothing_is_looked_at_without_a_request() -> None:
    queue = Queue([])
    for kind in ("requeue", "cancel", "unpin"):
        getattr(queue.evictions, kind)([])
    assert (queue.looks, queue.ran, queue.evictions.verdicts) == (0, [], {})


def test_jobs_are_cancelled_by_one_command_and_judged_by_the_next_look() -> None:
    before = [job(str(number), number) for number in (3, 4, 5, 6)] + [job("100_1", 101), job("100_2", 100)]
    queue = Queue(before, [job("4", 4, "COMPLETING"), job("5", 5), job("6", 6, "PENDING"), *before[4:]])
    queue.evictions.cancel(["5", "3", "4", "6", "2", "100"])
    assert queue.ran == [("jobs 3,4,5,6 cancelled", ("scancel", "3", "4", "5", "6"))]
    assert queue.evictions.verdicts == {
        "100": verdict("kept", "100 does not name exactly one job; there are 100_1, 100_2."),
        "2": verdict("gone"),
        "3": verdict("cancelled"),
        "4": verdict("cancelled"),
        "5": verdict("kept", "Job 5 is RUNNING."),
        "6": verdict("kept", "Job 6 is PENDING."),
    }


def test_jobs_that_are_requeued_already_are_left_out_of_the_command() -> None:
    before = [job("3", 3), job("4", 4, "COMPLETING"), job("5", 5, "PENDING"), job("6", 6)]
    queue = Queue(before, [job("3", 3, "PENDING"), *before[1:]], answers=["refused"])
    queue.evictions.requeue(["3", "4", "5", "6"])
    assert queue.ran == [("jobs 3,6 requeued", ("scontrol", "requeue", "3,6"))]
    done = {name: verdict("requeued") for name in "345"}
    assert queue.evictions.verdicts == done | {"6": verdict("kept", "refused")}
    only = Queue([job("4", 4, "COMPLETING")])
    only.evictions.requeue(["4"])
    assert only.ran == [] and only.evictions.verdicts == {"4": verdict("requeued")}
    again = Queue([job("4", 4, "COMPLETING")], [])
    again.evictions.cancel(["4"])
    assert again.ran == [("jobs 4 cancelled", ("scancel", "4"))]


def test_a_requeued_job_that_runs_again_is_kept_without_a_command() -> None:
    queue = Queue([job("4", 4, "COMPLETING")], [job("4", 4)])
    queue.evictions.requeue(["4"])
    assert queue.ran == [] and queue.evictions.verdicts == {"4": verdict("kept", "Job 4 is RUNNING.")}


@pytest.mark.parametrize(("count", "more"), [(20, ""), (22, " and 2 more")])
def test_a_long_list_of_jobs_is_cut_in_the_change_and_not_in_the_command(count: int, more: str) -> None:
    numbers = [str(number) for number in range(10, 10 + count)]
    queue = Queue([job(one, int(one)) for one in numbers], [])
    queue.evictions.cancel(numbers)
    assert queue.ran == [(f"jobs {','.join(numbers[:20])}{more} cancelled", ("scancel", *numbers))]


def test_many_jobs_of_one_number_are_cut_in_the_verdict() -> None:
    queue = Queue([job(f"100_{number}", 100 + number) for number in range(22)])
    queue.evictions.cancel(["100"])
    named = ", ".join(f"100_{number}" for number in range(20))
    reason = f"100 does not name exactly one job; there are {named}."
    assert queue.evictions.verdicts == {"100": verdict("kept", reason)} and queue.ran == []


def test_a_heterogeneous_job_is_requeued_as_a_whole_and_named_so() -> None:
    parts = [job(f"200+{place}", 200 + place, het=200) for place in range(3)]
    ended = [{**part, "state": "PENDING"} for part in parts]
    queue = Queue(parts, ended)
    queue.evictions.requeue(["200+1", "200+2"])
    assert queue.ran == [("jobs 200 requeued", ("scontrol", "requeue", "200"))]
    assert queue.evictions.verdicts == {
        "200+1": verdict("requeued", "The whole heterogeneous job ended: also 200+0, 200+2."),
        "200+2": verdict("requeued", "The whole heterogeneous job ended: also 200+0, 200+1."),
    }
    partly = Queue([ended[0], *parts[1:]], [*ended[:2], parts[2]])
    partly.evictions.requeue(["200+1"])
    assert partly.ran == [("jobs 200 requeued", ("scontrol", "requeue", "200"))]
    assert partly.evictions.verdicts == {"200+1": verdict("kept", "Job 200+2 is RUNNING.")}


def pinned(address: str, number: int, **more: Any) -> Any:
    return job(address, number, "PENDING", required_nodes=["a"], **more)


def test_pending_jobs_lose_their_required_nodes_one_by_one() -> None:
    before = [pinned("8", 8), pinned("9", 9), pinned("100_[1-2]", 100), job("7", 7, required_nodes=["a"])]
    before += [pinned("10", 10), job("11", 11, "PENDING"), pinned("300_[?]", 300)]
    queue = Queue(before, [pinned("9", 9), pinned("10", 10)], answers=["", "", "refused"])
    queue.evictions.unpin(["8", "9", "10", "100_[1-2]", "7", "11", "12", "300_[?]"])
    assert queue.ran == [
        (f"job {one} unpinned", ("scontrol", "update", f"JobId={one}", "NodeList="))
        for one in ("10", "100_1", "100_2", "8", "9")
    ]
    assert queue.evictions.verdicts == {
        "10": verdict("kept", "Job 10 still names its nodes."),
        "100_[1-2]": verdict("unpinned"),
        "11": verdict("kept", "11 does not name exactly one job; there are 11."),
        "12": verdict("gone"),
        "300_[?]": verdict("kept", "300_[?] does not name exactly one job; there are 300_[?]."),
        "7": verdict("kept", "7 does not name exactly one job; there are 7."),
        "8": verdict("unpinned"),
        "9": verdict("kept", "Job 9 still names its nodes."),
    }


def test_the_first_answer_of_slurm_is_the_reason_of_a_job_that_stays() -> None:
    queue = Queue([pinned("100_[1-3]", 100)], [pinned("100_2", 102)], answers=["", "refused", "again"])
    queue.evictions.unpin(["100_[1-3]"])
    assert queue.evictions.verdicts == {"100_[1-3]": verdict("kept", "refused")}


def test_a_component_loses_its_required_nodes_by_its_own_id() -> None:
    parts = [pinned(f"200+{place}", 200 + place, het=200) for place in range(2)]
    queue = Queue(parts, parts[:1])
    queue.evictions.unpin(["200+1", "200+0"])
    assert [command[2] for _, command in queue.ran] == ["JobId=200", "JobId=201"]
    assert [one["did"] for one in queue.evictions.verdicts.values()] == ["kept", "unpinned"]


def test_a_large_array_loses_its_required_nodes_in_several_calls() -> None:
    queue = Queue([pinned("100_[1-300]", 100)])
    queue.evictions.unpin(["100_[1-300]"])
    assert [command[2] for _, command in queue.ran] == [f"JobId=100_{number}" for number in range(1, 201)]
