"""A member whose note cannot be read gets an error that names the note, once, and it goes with its cause."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from runner.loop.manual import MemberHeld, _check_free
from runner.model.limits import RECORD_BYTES, size
from runner.model.names import host_name
from runner.model.plan import AdapterError, SetMember, Warn
from runner.model.platform import Member
from runner.slurm import detail
from runner.slurm.decide.claims import note_unreadable
from tests.unit.claimed_members import seen, wrk
from tests.unit.lifecycle import cluster, serving
from tests.unit.worlds import NOW, THEIR_CLAIM


def noted(member: Member, error: AdapterError | None) -> SetMember:
    why = error.message if error else "every note of it can be read again"
    detail = {"last_adapter_error": error.as_note(NOW).stored() if error else None}
    return SetMember(why, member, member.status, detail, consumes_outcome=False)


def unreadable_fence(member: Member) -> AdapterError:
    return AdapterError(
        "fence_unreadable",
        f"adapter_detail.fence of {host_name(member)} is not a whole number, so its host cannot be"
        " changed. Set it to a number that is not below the host's own in /run/gpuaas-slurm/fences.json",
    )


def unreadable_leave(member: Member) -> AdapterError:
    return AdapterError(
        "note_unreadable",
        f"adapter_detail.leave is not an object. {host_name(member)} is left alone until it can be read."
        " Correct the note in the member's record, or set it to null if nothing of it is under way",
    )


def newer_leave(member: Member) -> AdapterError:
    return AdapterError(
        "note_newer",
        "adapter_detail.leave has format 99, this runner reads up to 2: use the newer runner."
        f" {host_name(member)} is left alone until it can be read."
        " Run the newer version of gpuaas-slurm for this project, and stop this one",
    )


def with_error(member: Member, error: AdapterError) -> Member:
    detail = member.adapter_detail | {"last_adapter_error": error.as_note(NOW).stored()}
    return member.model_copy(update={"adapter_detail": detail})


def test_members_whose_notes_cannot_be_read_get_an_error() -> None:
    gone, good = wrk(2, status="deleted", fence="text"), wrk(3)
    fence, leave, newer = wrk(4, fence="text"), wrk(5, leave="text"), wrk(6, leave={"format": 99})
    assert note_unreadable(seen(gone, good, fence, leave, newer)) == [
        noted(fence, unreadable_fence(fence)),
        noted(leave, unreadable_leave(leave)),
        noted(newer, newer_leave(newer)),
    ]


def test_an_error_about_a_note_is_written_once_and_goes_with_its_cause() -> None:
    odd = wrk(2, leave="text")
    same = with_error(odd, unreadable_leave(odd))
    other_text = with_error(odd, replace(unreadable_leave(odd), message="text"))
    other_code = with_error(odd, replace(unreadable_leave(odd), code="odd"))
    mended = [with_error(wrk(3), unreadable_fence(odd)), with_error(wrk(4), unreadable_leave(odd))]
    failed = with_error(wrk(5), AdapterError("task_failed", "text"))
    assert note_unreadable(seen(same, other_text, other_code, *mended, failed)) == [
        noted(other_text, unreadable_leave(odd)),
        noted(other_code, unreadable_leave(odd)),
        *(noted(one, None) for one in mended),
    ]


@pytest.mark.parametrize("note", [{"claimed_by": 7}, {"lease_expires_at": "soon"}, {"fence": "seven"}])
def test_a_command_by_hand_does_not_take_a_member_whose_claim_cannot_be_read(note: dict[str, Any]) -> None:
    (name,) = note
    one = serving(2, adapter_detail=THEIR_CLAIM | note)
    with pytest.raises(MemberHeld, match=rf"adapter_detail\.{name}.* Correct it first"):
        _check_free(cluster(one).later(now=NOW + timedelta(minutes=2)), [one])
    _check_free(cluster(one), [serving(3, adapter_detail={"leave": "?"})])


def test_an_error_that_does_not_fit_beside_a_large_note_is_only_logged() -> None:
    """A write that is refused would end every tick of the instance before its operations."""
    one = wrk(leave="?")
    (step,) = note_unreadable(seen(one))
    assert isinstance(step, SetMember)
    room = RECORD_BYTES - size(detail.filled(one) | step.detail)
    (fits,) = note_unreadable(seen(wrk(leave="?" * (room + 1))))
    (logged,) = note_unreadable(seen(large := wrk(leave="?" * (room + 2))))
    assert isinstance(fits, SetMember) and isinstance(logged, Warn)
    (cut,) = note_unreadable(seen(wrk(leave="?" * (room - 1_000), slurmd_state="x" * 6_000)))
    assert isinstance(cut, SetMember), "what the host reported is cut to make room"
    assert logged.subject == host_name(large) and logged.why.startswith("adapter_detail.leave is not an object. ")
