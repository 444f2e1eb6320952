"""Puts on record what a person does by hand, before a host is touched: in the instance's `status_detail`.

The person's own token writes it, so the platform's audit names the person. If it cannot be written, nothing is run. A
command that was killed has no end on record.
"""

import contextlib
import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from runner import context, log
from runner.model import limits
from runner.model.cause import Cause
from runner.model.errors import Conflict, Forbidden, PlatformError, RequestError, Unauthenticated
from runner.model.instance_notes import StatusDetail
from runner.model.platform import AppInstance
from runner.model.shown_command import shown_text
from runner.model.work_notes import BY_HAND, WHY_CHARS, HandNote, HandNotes
from runner.platform.client import Client

# Of status_detail, and of it what cannot be read. The oldest is dropped.
NOTES_BYTES, MOST_NOTES = 2560, 10
ODD_BYTES = 2560
WRITE_TRIES = 6
NO_REASON = "--reason is empty: say why in a few words; the record of this command keeps it"


@dataclass
class Ending:
    """How the command ended: with an exit code, or why it did not run or was ended."""

    exit_code: int | None = None
    problem: str | None = None


def reason(text: str) -> str:
    found = shown_text(text, WHY_CHARS)
    if not found.strip():
        raise RequestError(NO_REASON)
    return found


def caller(client: Client) -> str:
    """Who calls, as the platform knows the token; "unknown" on a platform that does not answer that as we expect."""
    try:
        found = client.me()
    except Unauthenticated:
        raise
    except PlatformError as error:
        log.get().warning("the platform does not say whose token this is", problem=str(error), **log.error_code(error))
        return "unknown"
    return f"{found.actor_type}/{found.subject}"


@contextlib.contextmanager
def recorded(client: Client, instance: AppInstance, note: HandNote) -> Iterator[Ending]:
    """Write the note, let the block work under the note's correlation id, and write how it ended."""
    with context.bound(Cause(note.correlation_id)):
        _write(client, instance, note, "nothing was run")
        ending = Ending()
        try:
            yield ending
        except BaseException as error:
            ending.problem = ending.problem or str(error) or type(error).__name__
            raise
        finally:
            problem = shown_text(ending.problem, WHY_CHARS) if ending.problem else None
            _write_end(client, instance, note.but(ended_at=client.now(), exit_code=ending.exit_code, problem=problem))


def _write_end(client: Client, instance: AppInstance, note: HandNote) -> None:
    """What was done is done: that its end is not on record changes nothing about it."""
    try:
        _write(client, instance, note, "the command did run")
    except (PlatformError, RequestError) as error:
        log.get().warning("the end of this command is not on record", problem=str(error))


def _write(client: Client, instance: AppInstance, note: HandNote, done: str) -> None:
    """Put the note into the newest status_detail, and change nothing else there. `done`: what a failure means."""
    for _ in range(WRITE_TRIES):
        newest = client.instance(instance.id)
        stored = newest.notes.by_hand
        noted, problems = HandNotes.of({} if stored is None else stored)
        for problem in problems:
            log.get().warning("a record of work by hand cannot be read; it is kept as it is", problem=problem)
        made = StatusDetail(by_hand=with_note(noted, note)).changes
        body = {"status_detail": {**(newest.status_detail or {}), **made}}
        limits.check(f"instance {instance.id}", body)
        try:
            client.patch_instance(newest, body, key=uuid.uuid4().hex)
        except Conflict:
            continue
        except Forbidden as error:
            raise RequestError(
                f"{error.message}. Work by hand is put on record with your own token before a host is touched:"
                f" {done}. You need the right to update the instance ({BY_HAND} in its status_detail). In an emergency:"
                " --as-service-account"
            ) from None
        # A platform without ETags does not notice that another write came in between.
        if newest.etag or _holds(client.instance(instance.id), note):
            return
    raise RequestError(
        f"the record of this command could not be written, since other clients keep changing instance {instance.id}:"
        f" {done}"
    )


def _holds(instance: AppInstance, note: HandNote) -> bool:
    return note.stored() in [one.stored() for one in instance.notes.hand_notes.notes]


def with_note(noted: HandNotes, note: HandNote) -> HandNotes:
    """The notes with this one in the place of its start, or as the last.

    If they do not fit, the oldest that have ended are dropped first, and this one never.
    """
    kept = [one for one in noted.notes if one.correlation_id != note.correlation_id]
    at = next((n for n, one in enumerate(noted.notes) if one.correlation_id == note.correlation_id), len(kept))
    made = [*kept[:at], note, *kept[at:]]
    while len(made) > 1 and (len(made) > MOST_NOTES or _size(made) > NOTES_BYTES):
        others = [one for one in made if one.correlation_id != note.correlation_id]
        made.remove(next((one for one in others if one.ended_at), others[0]))
    odd, dropped = _fitted(noted.unreadable or [])
    more = noted.more + len(kept) + 1 - len(made) + dropped
    return HandNotes.model_validate({**noted.model_dump(), "notes": made, "more": more, "unreadable": odd or None})


def _size(notes: Sequence[HandNote]) -> int:
    return limits.size(HandNotes(notes=list(notes), more=2**40).stored())


def _fitted(unreadable: Sequence[object]) -> tuple[list[object], int]:
    """The last of what cannot be read, as much as fits, and how many of it do not. One that is too large is cut."""
    found = [one if limits.size([one]) <= ODD_BYTES else json.dumps(one)[: ODD_BYTES // 3] for one in unreadable]
    left = len(found)
    while left and limits.size(found[-left:]) > ODD_BYTES:
        left -= 1
    return found[len(found) - left :], len(found) - left
