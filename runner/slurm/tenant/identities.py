"""Unix users of platform identities: name, uid and gid by a fixed rule, the same on every host and for every runner.

The rule needs no table: it takes a digest of the `subject`. Values that the platform gives win over it, so they are
remembered (`Memory`): a subject keeps its first name and numbers, and no other subject ever gets them.
"""

import hashlib
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from runner.model.attachments import Attachment, Identity
from runner.slurm.tenant.accounting_state import USER_NAME
from runner.slurm.users import KEY, LOWEST_ID, RESERVED

DIGEST_CHARS = 12
DERIVED_NAME = re.compile(rf"u_([0-9a-f]{{{DIGEST_CHARS}}})")
# Derived uids have 31 bits with the highest one set: above every range of Debian's for users of a host.
DERIVED_BASE = 2**30
HIGHEST_ID = 2**31 - 1
# Debian's ranges for its own accounts, `nobody` and the 16-bit -1 among them.
SYSTEM_IDS = range(60000, 65536)


@dataclass(frozen=True)
class Person:
    """The Unix user of one subject. `digest` is all that Slurm gets of the subject: its users read Slurm's records."""

    digest: str
    name: str
    uid: int
    gid: int

    @property
    def is_derived(self) -> bool:
        return self == derived(self.digest)


# By digest of the subject.
Memory = Mapping[str, Person]


@dataclass(frozen=True)
class KeptOut:
    """An identity that gets no user, or a project that gets no account: where, why, and what to do."""

    attachment_id: UUID
    code: str
    message: str


@dataclass
class Roster:
    """Who has which Unix user. `of_attachment` has the digests of the identities that are let in."""

    people: dict[str, Person] = field(default_factory=dict)
    keys: dict[str, list[str]] = field(default_factory=dict)
    of_attachment: dict[UUID, list[str]] = field(default_factory=dict)
    subjects: dict[str, str] = field(default_factory=dict)
    kept_out: list[KeptOut] = field(default_factory=list)
    # Attachments with an identity that may only get a user once it is known which ones there were.
    unnamed: set[UUID] = field(default_factory=set)

    def leave_out(self, attachment: UUID, digest: str) -> None:
        """An identity that was let in and cannot be noted. It stays where another attachment let it in."""
        self.of_attachment[attachment].remove(digest)
        message = (
            f"identity {self.subjects[digest]} is not let in: the attachment's record is full of identities with a name"
            " or numbers of their own, former ones among them. Give it neither, then it needs no room there"
        )
        self.kept_out.append(KeptOut(attachment, "identities_too_many", message))
        if not any(digest in found for found in self.of_attachment.values()):
            del self.people[digest]


def digest_of(subject: str) -> str:
    return hashlib.sha256(f"gpuaas identity {subject}".encode()).hexdigest()[:DIGEST_CHARS]


def derived(digest: str) -> Person:
    """30 bits of the digest are the uid; the name has all of it."""
    uid = DERIVED_BASE + (int(digest, 16) >> (4 * DIGEST_CHARS - 30))
    return Person(digest, f"u_{digest}", uid, uid)


def assign(attachments: Iterable[Attachment], memory: Memory, without_notes: Container[UUID] | None = None) -> Roster:
    """One subject, one name, one uid in all attachments. What is remembered comes first, then the older attachment.

    `without_notes` is given where the memory has only the notes of attachments: those that have none. An identity that
    is not in the memory then gets a user only if its attachment has notes and the user is derived, which no other
    subject can have had.
    """
    book = _Book(memory, without_notes)
    ordered = sorted(attachments, key=lambda one: (one.created_at is None, str(one.created_at), str(one.id)))
    for attachment in ordered:
        people, unreadable = attachment.read_identities()
        book.roster.of_attachment[attachment.id] = []
        for problem in unreadable:
            who = problem.subject or "without a readable subject"
            book.keep_out(attachment, "identity_unreadable", f"identity {who} cannot be read: {problem.problem}")
        for identity in people:
            book.let_in(attachment, identity)
    book.end()
    return book.roster


class _Book:
    """Names and numbers that are taken, each with the digest of the subject that has it."""

    def __init__(self, memory: Memory, without_notes: Container[UUID] | None) -> None:
        self.roster = Roster()
        self._without_notes = without_notes
        self._memory: dict[str, Person] = {}
        self._names: dict[str, str] = {}
        self._uids: dict[int, str] = {}
        self._gids: dict[int, str] = {}
        self._conflicts: list[tuple[Attachment, Identity, str]] = []
        for digest, person in sorted(memory.items()):
            if self._taken(person) is None:
                self._assign(person)
                self._memory[digest] = person

    def let_in(self, attachment: Attachment, identity: Identity) -> None:
        digest = digest_of(identity.subject)
        before = self._memory.get(digest)
        if problem := _invalid(identity):
            self.keep_out(attachment, "identity_invalid", f"identity {identity.subject}: {problem}")
            return
        person = before or _person(digest, identity)
        if before is None and self._may_be_anothers(attachment, person):
            self.roster.unnamed.add(attachment.id)
            return
        if before and (conflict := _conflict(before, identity)):
            self.keep_out(attachment, "identity_conflict", f"identity {identity.subject}: {conflict}")
            return
        if before is None and (conflict := self._taken(person)):
            self._conflicts.append((attachment, identity, conflict))
            return
        if before is None:
            self._assign(person)
            self._memory[digest] = person
        self.roster.people[digest] = person
        self.roster.subjects[digest] = identity.subject
        self.roster.of_attachment[attachment.id].append(digest)
        keys = self.roster.keys.setdefault(digest, [])
        keys += [key for key in identity.ssh_keys if KEY.fullmatch(key) and key not in keys]

    def end(self) -> None:
        """An identity that could not have this user is let in with the one that another attachment gave it."""
        conflicts, self._conflicts = self._conflicts, []
        for attachment, identity, conflict in conflicts:
            if digest_of(identity.subject) in self._memory:
                self.let_in(attachment, identity)
            else:
                self.keep_out(attachment, "identity_conflict", f"identity {identity.subject}: {conflict}")

    def _may_be_anothers(self, attachment: Attachment, person: Person) -> bool:
        without = self._without_notes
        return without is not None and (attachment.id in without or not person.is_derived)

    def keep_out(self, attachment: Attachment, code: str, message: str) -> None:
        self.roster.kept_out.append(KeptOut(attachment.id, code, message))

    def _taken(self, person: Person) -> str | None:
        """Whose name or number it would take. A removed identity keeps what it had."""
        for what, value, taken in (
            ("name", person.name, self._names.get(person.name)),
            ("uid", person.uid, self._uids.get(person.uid)),
            ("gid", person.gid, self._gids.get(person.gid)),
        ):
            if taken is not None and taken != person.digest:
                return f"the {what} {value} belongs to another identity, or belonged to one. Choose another"
        return None

    def _assign(self, person: Person) -> None:
        self._names[person.name] = self._uids[person.uid] = self._gids[person.gid] = person.digest


def _person(digest: str, identity: Identity) -> Person:
    rule = derived(digest)
    uid = rule.uid if identity.uid is None else identity.uid
    return Person(digest, identity.username or rule.name, uid, uid if identity.gid is None else identity.gid)


def _invalid(identity: Identity) -> str | None:
    name = identity.username
    if name is not None and not USER_NAME.fullmatch(name):
        return "the username is not a Unix name of small letters, digits, `-` and `_`, at most 31. Correct it"
    if name is not None and (name in RESERVED or name.startswith("systemd-")):
        return f"the username {name} is a name of the system. Choose another"
    if name is not None and DERIVED_NAME.fullmatch(name) and name != derived(digest_of(identity.subject)).name:
        return f"the username {name} has the form of a derived name. Choose another"
    for what, value in (("uid", identity.uid), ("gid", identity.gid)):
        if value is not None and (not LOWEST_ID <= value <= HIGHEST_ID or value in SYSTEM_IDS):
            return f"the {what} {value} is not between {LOWEST_ID} and {HIGHEST_ID}, or is a number of the system's own"
    return None


def _conflict(before: Person, identity: Identity) -> str | None:
    """A number cannot change: files have it. A changed username is a rename, which keeps the Unix name."""
    for what, now, given in (("uid", before.uid, identity.uid), ("gid", before.gid, identity.gid)):
        if given is not None and given != now:
            return f"it has the {what} {now} since it was first seen, and this attachment gives {given}. Correct it"
    return None
