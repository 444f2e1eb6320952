"""Notes of what was done on hosts, for people: plays with their hosts and times, and work by hand. Pure.

The plays of an operation are in its `result`, from the first one on; see runner/model/play_history.py. Plays that no
operation asked for, and work by hand, are in the instance's `status_detail`. Nothing is decided by these notes.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, StrictBool

from runner.model.records import MAX_DEPTH, CorrelationId, Count, Record, RecordError, is_plain
from runner.model.times import Time

# Of a sentence, a command and a list of names; what is longer is cut, and never makes a record unwritable.
WHY_CHARS, COMMAND_CHARS, NAME_CHARS = 160, 240, 80
HAND_NAMES = 8
BY_HAND = "by_hand"
UNDER_WAY = "under way, or its runner was killed"

Sentence = Annotated[str, AfterValidator(lambda text: text[:WHY_CHARS])]
Command = Annotated[str, AfterValidator(lambda text: text[:COMMAND_CHARS])]
Name = Annotated[str, AfterValidator(lambda text: text[:NAME_CHARS])]
PlayResult = Literal["ok", "partly_failed", "failed", "stopped"]


class HostRun(Record):
    """One host in a play: `ok`, the code of its error, or `no_report`; and when its first and last events came."""

    outcome: Name
    first_at: Time | None = None
    last_at: Time | None = None

    @property
    def failed(self) -> bool:
        return self.outcome not in ("ok", "no_report")


class PlayRun(Record):
    """One play. Without an end it is under way, or its runner was killed."""

    playbook: Name
    started_at: Time
    ended_at: Time | None = None
    result: PlayResult | None = None
    # The claim of the operation under which it ran: 1 is the first.
    attempt: Count = 0
    # How many plays in a row came out like this; the times are those of the first start and the last end.
    runs: Count = 1
    rule: Name | None = None
    why: Sentence | None = None
    correlation_id: CorrelationId | None = None  # of work that no operation asked for
    hosts: dict[Name, HostRun] = Field(default_factory=dict)  # by inventory name; failures are kept first
    hosts_count: Count = 0


class PlayHistory(Record):
    """The plays of one piece of work, oldest first. `more_plays` counts those that were left out."""

    plays: list[PlayRun] = Field(default_factory=list)
    more_plays: Count = 0


class HandNote(Record):
    """One command of a person on the instance's hosts. Without an end it is under way, or was killed."""

    correlation_id: CorrelationId
    verb: Literal["exec", "trust"]
    who: Name  # actor_type/id, as the platform answers, or "unknown"
    why: Sentence
    command: Command  # without its secrets
    hosts: list[Name] = Field(default_factory=list)
    hosts_count: Count = 0
    read_only: StrictBool = False
    started_at: Time
    ended_at: Time | None = None
    exit_code: int | None = None
    problem: Sentence | None = None  # why it did not run, or was ended


class HandNotes(Record):
    """`by_hand` of the instance: the last commands of people, oldest first. `more` counts those that were dropped.

    What cannot be read is kept in `unreadable`, as it was found: nothing is decided by it.
    """

    notes: list[HandNote] = Field(default_factory=list)
    more: Count = 0
    unreadable: list[Any] | None = None

    @classmethod
    def of(cls, stored: object) -> tuple[Self, list[str]]:
        """The notes that can be read, and what is wrong with each of the others."""
        found = stored if isinstance(stored, Mapping) else None
        items = found.get("notes", []) if found else []
        try:
            whole = cls.read(
                BY_HAND, stored if found is None or not isinstance(items, list) else {**found, "notes": []}
            )
        except RecordError as error:
            return cls(unreadable=[_writable(stored)]), [error.problem.message]
        notes, odd, problems = list[HandNote](), list[object](), list[str]()
        for number, item in enumerate(items):
            try:
                notes.append(HandNote.read(f"{BY_HAND}.notes.{number}", item))
            except RecordError as error:
                odd.append(_writable(item))
                problems.append(error.problem.message)
        kept = [*(whole.unreadable or []), *odd]
        return whole.but(notes=notes, unreadable=kept or None), problems


def _writable(found: object) -> object:
    """What was found, in a form that can be written again: as text, if a reader of JSON may refuse it."""
    # It will be deeper in the record than here.
    return found if is_plain(found, MAX_DEPTH - 4) else json.dumps(found)
