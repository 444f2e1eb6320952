"""One read for many readers: never older than each of them allows, and one at a time."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from runner.observe.shared_read import SharedRead


def test_a_read_serves_all_callers_that_accept_its_age() -> None:
    times = iter([10.0, 20.0])
    answers = iter(["first", "second"])
    shared = SharedRead[str](lambda: next(times))
    assert shared.get(lambda: next(answers), 5) == "first"
    assert shared.get(lambda: next(answers), 10) == "first"
    assert shared.get(lambda: next(answers), 10.1) == "second", "it began before the record was read"
    assert shared.get(lambda: next(answers), 15) == "second"


def test_simultaneous_callers_share_one_read() -> None:
    shared, reads = SharedRead[int](), []
    begun, go_on = threading.Event(), threading.Event()

    def read() -> int:
        reads.append(1)
        begun.set()
        assert go_on.wait(10)
        return len(reads)

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(shared.get, read, 0)
        assert begun.wait(10)
        others = [pool.submit(shared.get, read, 0) for _ in range(3)]
        go_on.set()
        assert [one.result(10) for one in (first, *others)] == [1] * 4


def test_a_later_caller_reads_again_after_a_failure() -> None:
    shared = SharedRead[str]()

    def fails() -> str:
        raise OSError("away")

    with pytest.raises(OSError, match="away"):
        shared.get(fails, 0)
    assert shared.get(lambda: "back", 0) == "back"
