"""What people read of jobs that are in the way and of how they are ended; each text as a whole."""

import pytest

from runner.slurm.decide.workers import evict
from runner.slurm.snapshot import Job


def job(number: int, state: str = "RUNNING", address: str | None = None) -> Job:
    return Job(id=number, address=address or str(number), state=state)


LONG = "100_[" + "1," * 30 + "2]"
CUT = LONG[:36] + "...]"


def test_jobs_are_named_oldest_first_and_long_lists_are_cut() -> None:
    many = [job(number) for number in range(22, 0, -1)]
    twenty = [str(number) for number in range(1, 21)]
    assert evict.addresses(many) == twenty
    assert evict.named(many) == f"job {', '.join(twenty)} and 2 more"
    assert evict.named(many[2:]) == f"job {', '.join(twenty)}"
    assert evict.named([job(7), job(100, address=LONG), job(3)]) == f"job 3, 7, {CUT}"
    fits, over = "1_[" + "5" * 36 + "]", "1_[" + "5" * 37 + "]"
    assert evict.addresses([job(1, address=fits), job(2, address=over)]) == [fits, "1_[" + "5" * 33 + "...]"]


def test_a_job_that_is_being_ended_is_not_ended_again() -> None:
    assert [evict.is_open(job(1, state)) for state in ("RUNNING", "PENDING", "COMPLETING")] == [True, True, False]


RUNS, WAITS = [job(9), job(7)], [job(8, "PENDING")]


@pytest.mark.parametrize(
    ("how", "jobs", "text"),
    [
        ("requeue", RUNS, "requeue of job 7, 9"),
        ("cancel", RUNS, "cancel of job 7, 9"),
        ("requeue", WAITS, "required nodes cleared of job 8"),
        ("cancel", WAITS, "cancel of job 8, waiting for the node by name"),
        ("requeue", RUNS + WAITS, "requeue of job 7, 9 and required nodes cleared of job 8"),
        ("cancel", RUNS + WAITS, "cancel of job 7, 9 and cancel of job 8, waiting for the node by name"),
        ("requeue", [job(3, "PENDING", "3+1")], "required nodes cleared of job 3+1"),
        (
            "cancel",
            [job(3, "PENDING", "3+1")],
            "cancel of job 3+1 (the whole heterogeneous job 3), waiting for the node by name",
        ),
        ("cancel", [job(3, "RUNNING", "3+1")], "cancel of job 3+1"),
        ("requeue", [job(3, "RUNNING", "3+1")], "requeue of job 3+1 (the whole heterogeneous job 3)"),
        (
            "cancel",
            [job(number) for number in range(21, 0, -1)],
            f"cancel of job {', '.join(map(str, range(1, 21)))} and 1 more",
        ),
    ],
)
def test_an_eviction_is_announced_with_its_reach(how: str, jobs: list[Job], text: str) -> None:
    assert evict.announcement(how, jobs) == text


@pytest.mark.parametrize(
    ("how", "address", "waits", "text"),
    [
        ("requeue", "3+1", False, "3+1 (the whole heterogeneous job 3)"),
        ("cancel", "3+0", False, "3+0 (the whole heterogeneous job 3)"),
        ("cancel", "3+1", True, "3+1 (the whole heterogeneous job 3)"),
        ("cancel", "3+1", False, "3+1"),
        ("", "3+0", True, "3+0"),
        ("requeue", "3", True, "3"),
        ("cancel", LONG, False, CUT),
    ],
)
def test_a_heterogeneous_job_is_ended_as_a_whole(how: str, address: str, waits: bool, text: str) -> None:
    assert evict.affected_job(how, address, waits=waits) == text


def test_only_a_component_that_waits_takes_the_whole_job_with_it() -> None:
    assert evict.affected_job("cancel", "3+1") == "3+1"


def test_what_was_announced_is_kept_as_far_as_it_fits() -> None:
    assert evict.add_announcement(None, "a") == "a" and evict.add_announcement("a; b", "c") == "a; b; c"
    assert evict.is_announced("a; b", "b") and not evict.is_announced("a; b", "a; b")
    assert not evict.is_announced(None, "a") and not evict.is_announced(None, "XXXX")
    full = "x" * 994 + "; " + "y" * 1000
    assert evict.add_announcement(full, "zz") == f"{full}; zz" and len(f"{full}; zz") == 2000
    assert evict.add_announcement(full, "zzz") == "y" * 1000 + "; zzz"
    assert evict.add_announcement("a; b", "z" * 3000) == "z" * 3000
