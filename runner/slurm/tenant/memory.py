"""Which Unix user a subject has, or had: in each attachment's record and in Slurm, each rebuilt from the other.

Slurm shows the text of a QoS, and its log of changes, to every user. So Slurm gets a digest of the subject, and only of
those whose name or numbers are not derived from it: of the others the name of the user says it all. The record of the
attachment has the subjects themselves, for attribution.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

from runner.model.limits import size
from runner.model.records import Deciding, Detail, Notes
from runner.slurm.tenant.accounting_state import Observed
from runner.slurm.tenant.identities import DERIVED_NAME, HIGHEST_ID, Memory, Person, derived, digest_of

FORM = "g1"
_ENTRY = re.compile(r"([0-9a-f]{12})=([a-z][a-z0-9_-]{0,30}):([0-9]{1,10}):([0-9]{1,10})")
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
    """The text of a project's QoS; empty if all of them are derived."""
    entries = sorted(f"{one.digest}={one.name}:{one.uid}:{one.gid}" for one in people if not one.is_derived)
    return ",".join([FORM, *entries]) if entries else ""


def from_text(text: str) -> list[Person]:
    """Those of a text that is ours; an entry that a person changed is skipped."""
    form, *entries = text.split(",")
    found = (_ENTRY.fullmatch(one) for one in entries if form == FORM)
    return [Person(one[1], one[2], int(one[3]), int(one[4])) for one in found if one and _in_range(one[3], one[4])]


def from_notes(notes: TenantNotes) -> list[Person]:
    found = ((subject, text.split(":")) for subject, text in (notes.people or {}).items())
    return [Person(digest_of(subject), name, int(uid), int(gid)) for subject, (name, uid, gid) in found]


def from_slurm(seen: Observed) -> dict[str, list[Person]]:
    """Who is or was in each project's account, by what Slurm keeps."""
    found = {name: from_text(qos.description) for name, qos in seen.qos.items()}
    for row in seen.associations:
        if one := DERIVED_NAME.fullmatch(row.user):
            found.setdefault(row.account, []).append(derived(one[1]))
    return {name: people for name, people in found.items() if people}


def merged(*sources: Iterable[Person]) -> Memory:
    """The first source that knows a subject decides."""
    found: dict[str, Person] = {}
    for source in sources:
        for person in source:
            found.setdefault(person.digest, person)
    return found


def noted(before: Mapping[str, str], people: Iterable[tuple[str, Person]]) -> Detail:
    """`people` of the notes: what was there, and who came. Who left stays, as long as there is room.

    Without room those go first whose user can be derived from the subject, since only attribution needs them.
    """
    made = {**before, **{subject: f"{one.name}:{one.uid}:{one.gid}" for subject, one in people}}
    for subject in sorted(made, reverse=True):
        if size(made) <= PEOPLE_BYTES:
            break
        rule = derived(digest_of(subject))
        if made[subject] == f"{rule.name}:{rule.uid}:{rule.gid}":
            del made[subject]
    return dict(sorted(made.items()))


def _in_range(*numbers: str) -> bool:
    return all(int(one) <= HIGHEST_ID for one in numbers)
