"""Plays that no operation asked for, in the instance's status_detail: beside all else there, and on the newest copy."""

from datetime import timedelta
from typing import Any

import pytest

from runner import context
from runner.model import play_history
from runner.model.cause import Cause
from runner.model.limits import RECORD_BYTES, RecordTooLarge, size
from runner.model.plan import SetInstance
from runner.model.trace import TraceContext
from runner.model.work_notes import HostRun, PlayHistory, PlayRun
from runner.report.keys import update_key
from runner.report.leases import Outdated
from runner.report.writes import WRITE_TRIES, marked
from tests.unit.record_writer import Platform, writer
from tests.unit.worlds import NOW, instance

STEP = SetInstance("why", "running", "healthy", {"reasons": []})


def plays(count: int = 1) -> PlayHistory:
    hosts = {"worker-1": HostRun(outcome="ok", first_at=NOW)}
    runs = [
        PlayRun(playbook=f"observe_{number}", started_at=NOW + timedelta(minutes=number), why="w", hosts=hosts)
        for number in range(count)
    ]
    return PlayHistory(plays=runs)


def stored(history: PlayHistory) -> Any:
    return {"own_plays": history.stored()}


def recorded(etag: str | None = "1", **detail: Any) -> Any:
    return instance(status="running", etag=etag, status_detail=detail)


def test_a_new_writer_has_no_plays_to_write() -> None:
    assert writer(Platform(), instance=recorded()).own_plays is None


def test_plays_are_written_with_the_next_report_and_only_once() -> None:
    platform = Platform(instance_record=recorded())
    writes = writer(platform, instance=recorded())
    writes.own_plays = plays()
    writes.set_instance(STEP)
    writes.set_instance(STEP)
    details = [body["status_detail"] for _, body, _ in platform.sent]
    assert details == [{"reasons": []} | stored(plays()), {"reasons": []}]
    assert writes.own_plays is None


def test_plays_are_cut_to_what_the_report_leaves_of_the_record() -> None:
    beside = {"text": "x" * (RECORD_BYTES - 1_200)}
    platform = Platform(instance_record=recorded())
    writes = writer(platform, instance=recorded())
    writes.own_plays = plays(40)
    writes.set_instance(SetInstance("why", "running", "healthy", beside))
    ((_, body, _),) = platform.sent
    detail = body["status_detail"]
    left = RECORD_BYTES - size({**beside, "own_plays": None})
    assert detail == beside | stored(play_history.fitted(plays(40), left))
    assert 0 < len(detail["own_plays"]["plays"]) < 40 and size(detail) <= RECORD_BYTES


def test_without_etags_a_report_is_based_on_the_newest_copy() -> None:
    before = recorded(None, gone=1, same=1)
    newest = recorded(None, gone=1, same=1, by_hand={"theirs": 1})
    platform = Platform(instance_record=newest)
    writer(platform, instance=before).set_instance(SetInstance("why", "running", "healthy", {"same": 2}))
    ((etag, body, _),) = platform.sent
    assert etag is None and body["status_detail"] == {"same": 2, "by_hand": {"theirs": 1}}


def test_plays_alone_change_nothing_else_of_the_instance() -> None:
    before = recorded(reasons=[1])
    platform = Platform(instance_record=before)
    writes = writer(platform, instance=before)
    writes.own_plays = plays()
    writes.write_own_plays()
    body = {"status_detail": {"reasons": [1]} | stored(plays())}
    assert platform.sent == [("1", body, update_key("instance", before, body))]
    assert writes.instance.status_detail == body["status_detail"] and writes.own_plays is None


def test_plays_alone_are_written_where_the_instance_has_no_detail() -> None:
    before = instance(status="running", etag="1", status_detail=None)
    platform = Platform(instance_record=before)
    writes = writer(platform, instance=before)
    writes.own_plays = plays()
    writes.write_own_plays()
    assert platform.sent[0][1] == {"status_detail": stored(plays())}


def test_without_etags_plays_alone_are_based_on_the_newest_copy() -> None:
    platform = Platform(instance_record=recorded(None, by_hand={"theirs": 1}))
    before = recorded(None)
    writes = writer(platform, instance=before)
    writes.own_plays = plays()
    writes.write_own_plays()
    assert platform.sent[0][1] == {"status_detail": {"by_hand": {"theirs": 1}} | stored(plays())}
    assert writes.instance is before, "the next report has to notice what others changed"


def test_with_etags_plays_alone_are_written_without_another_read() -> None:
    platform = Platform(instance_record=recorded(newer=1))
    writes = writer(platform, instance=recorded())
    writes.own_plays = plays()
    writes.write_own_plays()
    assert platform.sent[0][1] == {"status_detail": stored(plays())}


def test_after_a_conflict_plays_alone_are_written_into_the_newest_copy() -> None:
    platform = Platform(instance_record=recorded("2", theirs=1))
    before = recorded()
    writes = writer(platform, instance=before)
    writes.own_plays = plays()
    writes.write_own_plays()
    assert [(etag, body["status_detail"]) for etag, body, _ in platform.sent] == [
        ("1", stored(plays())),
        ("2", {"theirs": 1} | stored(plays())),
    ]
    assert writes.instance is before and writes.own_plays is None


def test_plays_alone_are_tried_a_bounded_number_of_times_and_kept() -> None:
    class Busy(Platform):
        def instance(self, *_: Any) -> Any:
            assert self.instance_record
            self.instance_record = self.instance_record.model_copy(update={"etag": f"{self.instance_record.etag}+"})
            return self.instance_record.model_copy(update={"etag": "late"})

    platform = Busy(instance_record=recorded("2"))
    writes = writer(platform, instance=recorded())
    writes.own_plays = plays()
    text = f"instance {writes.instance.id} could not be written: other clients keep changing it"
    with pytest.raises(Outdated, match=f"^{text}$"):
        writes.write_own_plays()
    assert len(platform.sent) == WRITE_TRIES and writes.own_plays == plays()


def test_plays_alone_are_not_sent_into_a_record_that_is_too_large() -> None:
    platform = Platform(instance_record=recorded(text="x" * (RECORD_BYTES + 1)))
    writes = writer(platform, instance=platform.instance_record)
    writes.own_plays = plays()
    with pytest.raises(RecordTooLarge, match=f"status_detail of instance {writes.instance.id} is"):
        writes.write_own_plays()
    assert platform.sent == []


@pytest.mark.parametrize("given", [TraceContext("a" * 32), None])
def test_a_claimed_member_has_the_trace_of_its_work(given: TraceContext | None) -> None:
    with context.bound(Cause("c-1", given=given)):
        assert marked() == {"correlation_id": "c-1", "trace_id": given.trace_id if given else None}
    assert marked() == {}
