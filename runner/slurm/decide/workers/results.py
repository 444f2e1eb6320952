"""The result of an operation on workers: what became of each, within the size that the platform takes."""

import json
from collections.abc import Sequence

from runner.model.plan import Detail
from runner.model.platform import Member, MemberStatus
from runner.model.records import NotedError
from runner.slurm import notes

RESULT_BYTES, MESSAGE_CHARS, HOMES_SHOWN = 12_000, 300, 3


def joined_results(members: Sequence[Member]) -> Detail:
    """The result of a join for each member, with the error if it failed."""
    return fitted({str(member.id): member_result(member, join_error(member)) for member in members})


def join_error(member: Member) -> NotedError | None:
    return member.notes.last_adapter_error if member.status != MemberStatus.READY else None


def leave_error(member: Member) -> NotedError | None:
    note = notes.of(member).leave
    return note.error if note else None


def member_result(member: Member, error: NotedError | None) -> Detail:
    """One member in the result of an operation. The names of its fields are documented."""
    stored = notes.of(member)
    left = {"did": stored.leave.at_deadline, "verdict": stored.leave.result} if stored.leave else {}
    return {
        "allocation_id": str(member.allocation_id),
        "status": member.status,
        "hostname": stored.hostname,
        "error": error.but(message=error.message[:MESSAGE_CHARS]).stored() if error else None,
        **{key: value for key, value in left.items() if value},
        **({"host_cleaned": stored.host_cleaned} if stored.host_cleaned is not None else {}),
        **({"homes_left": stored.homes_left[:HOMES_SHOWN]} if stored.homes_left else {}),
    }


def message_of(error: NotedError | None) -> str:
    return (error.message if error else "") or "no reason is recorded"


def failure(failed: Sequence[Member], members: Sequence[Member], first: NotedError | None, more: str = "") -> Detail:
    """The error of an operation of which some members failed: the code of the first, if all did."""
    why = f"{len(failed)} of {len(members)} workers failed{more}; the first: {message_of(first)}"
    code = first.code if first else "worker_failed"
    return {"code": code if len(failed) == len(members) else "partly_failed", "message": why}


def fitted(results: dict[str, Detail]) -> Detail:
    """The platform takes a bounded result: failures come first, and what does not fit is counted."""
    ordered = sorted(results.items(), key=lambda item: item[1]["error"] is None)
    kept: Detail = {}
    size = 0
    for member_id, result in ordered:
        size += len(json.dumps(result, default=str)) + len(member_id) + 8
        if size > RESULT_BYTES:
            break
        kept[member_id] = result
    left = len(results) - len(kept)
    return {"members": kept, **({"more_members": left} if left else {})}
