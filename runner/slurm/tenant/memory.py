"""Which Unix user a subject has, or had: in each attachment's record and in Slurm, each rebuilt from the other.

Slurm shows the text of a QoS, and its log of changes, to every user. So Slurm gets a digest of the subject, and name
and numbers only where they are not derived from it. The record of the attachment has the subjects themselves, for
attribution.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

from pydantic import AfterValidator, Field

from runner.model.limits import size
from runner.model.records import Deciding, Detail, Notes
from runner.slurm.tenant.accounting_state import REMEMBERED, as_memory
from runner.slurm.tenant.identities import HIGHEST_ID, Memory, Person, derived, digest_of

_NOTED = re.compile(r"([a-z][a-z0-9_-]{0,30}):([0-9]{1,10}):([0-9]{1,10})")
# The platform refuses a record above 16 KiB, which holds other fields too.
PEOPLE_BYTES = 12_000


def _check_entry(text: str) -> str:
    found = _NOTED.fullmatch(text)
    if not found or not _in_range(found[2], found[3]):
        raise ValueError("it is not name:uid:gid")
    return text


class TenantNotes(Notes):
    """What the runner keeps in `adapter_detail` of an attachment."""

    account: Deciding[str] = Field(None, pattern=r"^p_[0-9a-f]{12}$")
    # Subject to `name:uid:gid`, of all who are or were in the project.
    people: Deciding[dict[str, Annotated[str, AfterValidator(_check_entry)]]] = None


def as_text(people: Iterable[Person]) -> str:
    """For the text of a project's QoS."""
    return as_memory({one.digest: _entry(one) for one in people})


def _entry(one: Person) -> str:
    return one.digest if one.is_derived else f"{one.digest}={one.name}:{one.uid}:{one.gid}"


def from_notes(notes: TenantNotes) -> list[Person]:
    found = ((subject, text.split(":")) for subject, text in (notes.people or {}).items())
    return [Person(digest_of(subject), name, int(uid), int(gid)) for subject, (name, uid, gid) in found]


def from_slurm(entries: Mapping[str, Sequence[str]]) -> list[Person]:
    """Who is or was in a project, by what Slurm keeps for each account. An entry that cannot be read names no user."""
    found = (REMEMBERED.fullmatch(one) for name in sorted(entries) for one in entries[name])
    return [
        Person(one[1], one[2], int(one[3]), int(one[4])) if one[2] else derived(one[1])
        for one in found
        if one and (not one[2] or _in_range(one[3], one[4]))
    ]


def merged(*sources: Iterable[Person]) -> Memory:
    """The first source that knows a subject decides."""
    found: dict[str, Person] = {}
    for source in sources:
        for person in source:
            found.setdefault(person.digest, person)
    return found


def without_room(before: Mapping[str, str], people: Iterable[tuple[str, Person]]) -> list[str]:
    """Digests of those who came and cannot be noted: a record above the limit is refused, and with it every later one.

    Derived users need no room. Who is on record stays.
    """
    used, left = (
        size({subject: text for subject, text in before.items() if not _is_derived(subject, text)}),
        list[str](),
    )
    for subject, one in sorted(people, key=lambda each: each[0]):
        if subject in before or one.is_derived:
            continue
        needed = size({subject: _text(one)}) - 1  # without its braces, with a comma
        if used + needed > PEOPLE_BYTES:
            left.append(one.digest)
        else:
            used += needed
    return left


def noted(before: Mapping[str, str], people: Iterable[tuple[str, Person]]) -> Detail:
    """`people` of the notes: what was there, and who came. Who left stays, as long as there is room.

    Without room those go first whose user can be derived from the subject, since only attribution needs them.
    """
    made = {**before, **{subject: _text(one) for subject, one in people}}
    for subject in sorted(made, reverse=True):
        if size(made) <= PEOPLE_BYTES:
            break
        if _is_derived(subject, made[subject]):
            del made[subject]
    return dict(sorted(made.items()))


def _text(one: Person) -> str:
    return f"{one.name}:{one.uid}:{one.gid}"


def _is_derived(subject: str, text: str) -> bool:
    return text == _text(derived(digest_of(subject)))


def _in_range(*numbers: str) -> bool:
    return all(int(one) <= HIGHEST_ID for one in numbers)
