"""The steps of a plan: what decide may ask for. Data only; each step carries the reason it is there."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import NAMESPACE_OID, UUID, uuid5

from runner.model import limits
from runner.model.attached import AttachedProject
from runner.model.host_data import printable
from runner.model.instance_notes import Reason
from runner.model.names import host_name
from runner.model.platform import AppInstance, Member, Operation, OperationStatus
from runner.model.records import TEXT_CHARS, Detail, ErrorClass, NotedError
from runner.model.times import stamp

__all__ = ["Detail", "ErrorClass", "stamp"]

Act = tuple[str, UUID]  # what is done to which member
# A tick settles in a few rounds of deciding; the limit only stops a policy that wants the same step for ever.
MAX_ROUNDS = 200


@dataclass(frozen=True)
class AdapterError:
    """What went wrong, for whom it matters, and (in the message) what an operator does next."""

    code: str
    message: str
    klass: ErrorClass = "intervention"
    host: str | None = None
    task: str | None = None
    instance: UUID | None = None  # the one that the host serves instead

    def as_note(self, at: datetime) -> NotedError:
        """As it is kept in a record; a message that is too long is cut."""
        return NotedError(
            code=self.code,
            message=printable(self.message, TEXT_CHARS, keep="\n\t"),
            klass=self.klass,
            host=self.host,
            task=self.task,
            at=at,
            instance=self.instance,
        )

    def as_reason(self) -> Reason:
        return Reason(code=self.code, message=self.message)


@dataclass(frozen=True)
class Step:
    why: str
    # The rule that asked for it, as in the tables of the app's decide; two steps that do the same are equal.
    rule: str = field(default="", kw_only=True, compare=False)
    # The operation that asks for it; None for what no open operation asks for: a look, a repair, a report.
    operation: Operation | None = field(default=None, kw_only=True, compare=False)
    # The rule of the play that it has to come before, if there is one.
    play_rule: str = field(default="", kw_only=True, compare=False)


@dataclass(frozen=True)
class Refuse(Step):
    """End an operation that cannot be done as asked; nothing else is touched."""

    operation: Operation = field()
    code: str


@dataclass(frozen=True)
class Claim(Step):
    """Take an operation, or what is done to a member, for as long as the lease lasts."""

    subject: Operation | Member
    # A member that is being brought up is reconciling; one that is taken down stays what it is.
    status: str = "reconciling"
    # False: a claim of ours on an operation holds the member already, so only its fence grows.
    hold: bool = True


@dataclass(frozen=True)
class NewMember(Step):
    operation: Operation = field()
    component_key: str
    allocation_id: UUID
    detail: Detail = field(default_factory=dict)


@dataclass(frozen=True)
class NewOperation(Step):
    """Request an operation that the platform did not make at the deploy. The same step is the same request."""

    verb: str
    component_key: str
    allocation_ids: tuple[UUID, ...]

    def planned(self, instance: AppInstance) -> Operation:
        """The operation as it would be."""
        return Operation(
            id=uuid5(NAMESPACE_OID, f"{instance.id}/{self.verb}/{self.allocation_ids}"),
            operation=self.verb,
            component_key=self.component_key,
            allocation_ids=list(self.allocation_ids),
            status=OperationStatus.ACCEPTED,
            correlation_id=instance.correlation_id,
        )


@dataclass(frozen=True)
class SetMember(Step):
    member: Member
    status: str
    detail: Detail = field(default_factory=dict)
    # Whether it draws the conclusion from how the member came out of a play; a note beside it does not.
    consumes_outcome: bool = True
    # Whether the write also raises the fence for the play that follows; see runner/model/claims.py.
    new_fence: bool = False


@dataclass(frozen=True)
class Pin(Step):
    """Read the ssh keys that hosts show and write them into their members' records, before anything is run there."""

    members: tuple[Member, ...]


@dataclass(frozen=True)
class SetInstance(Step):
    status: str
    health: str
    detail: Detail
    access: Detail | None = None


@dataclass(frozen=True)
class SetAttachment(Step):
    """Report on an attachment of a shared runtime; `changes` are fields of the record, each whole."""

    attachment: AttachedProject
    changes: Detail


@dataclass(frozen=True)
class Announce(Step):
    """Put an event on the instance's timeline; `cause` makes it happen once."""

    kind: str
    cause: str
    data: Detail = field(default_factory=dict)


@dataclass(frozen=True)
class Finish(Step):
    operation: Operation = field()
    status: str
    result: Detail
    error: Detail | None = None


@dataclass(frozen=True)
class ForgetSecrets(Step):
    """Take the instance's runtime secrets out of Vault, every version of them. Idempotent."""


@dataclass(frozen=True)
class Resolve(Step):
    """Ask the platform where the app's packages may come from."""


@dataclass(frozen=True)
class Play(Step):
    """One Ansible run for all the members that need it. Always the last step."""

    playbook: str
    members: tuple[Member, ...]
    # What is done to whom, so that one tick does not do it twice.
    acts: frozenset[Act] = frozenset()
    # What the play has to do through the lead's host (the app's modules read it).
    work: Detail = field(default_factory=dict)
    # Variables for every host of the run. They may come from an operation: the code that sets them checks them.
    terms: Detail = field(default_factory=dict)
    # What opens the package source, if it is a private one.
    package_credential: UUID | None = None
    # The fence under which each member's host is changed, and who is brought up for the first time.
    fences: Mapping[UUID, int] = field(default_factory=dict)
    first: frozenset[UUID] = frozenset()
    # Whether it is pointless for the others if the lead cannot be reached.
    needs_lead: bool = True
    # The operation that asks for it, by member: one run may serve several.
    operations: Mapping[UUID, Operation] = field(default_factory=dict, kw_only=True, compare=False)


@dataclass(frozen=True)
class SkipPlay(Step):
    """Do not run the play: these members of it come out with the error, and no host is touched."""

    play: Play
    members: tuple[Member, ...]
    error: AdapterError


@dataclass(frozen=True)
class Wait(Step):
    """Nothing to do now for this subject, and why."""

    subject: str


@dataclass(frozen=True)
class Warn(Wait):
    """A Wait that an operator has to know about: it is logged at every tick."""


@dataclass(frozen=True)
class Plan:
    steps: tuple[Step, ...] = ()

    @property
    def play(self) -> Play | None:
        return next((step for step in self.steps if isinstance(step, Play)), None)

    @property
    def before_play(self) -> tuple[Step, ...]:
        """The steps to carry out now: writes to the platform, and what is read or asked before a play."""
        return tuple(step for step in self.steps if not isinstance(step, Play | Wait))

    @property
    def idle(self) -> bool:
        return all(isinstance(step, Wait) for step in self.steps)


def for_operation(operation: Operation, steps: Iterable[Step]) -> list[Step]:
    """The steps as asked for by the operation, where they do not name one."""
    return [_with_operation(operation, step) for step in steps]


def _with_operation(operation: Operation, step: Step) -> Step:
    if step.operation or (isinstance(step, Play) and step.operations):
        return step
    if isinstance(step, Play):
        return replace(step, operation=operation, operations={one.id: operation for one in step.members})
    return replace(step, operation=operation)


def operations_of(step: Step) -> list[Operation]:
    """Every operation that asks for the step, once."""
    found = [step.operation] if step.operation else []
    if isinstance(step, Play):
        found += step.operations.values()
    return list({one.id: one for one in found}.values())


def shown(step: Step) -> dict[str, str]:
    """One step as a row: what is done, to what, for which operation, by which rule of the app, and why."""
    what = type(step).__name__
    labels = limits.named([operation.label for operation in operations_of(step)])
    match step:
        case Refuse(operation=operation, code=code):
            subject, what = operation.label, f"refuse ({code})"
        case Claim(subject=Operation() as operation):
            subject, what = operation.label, "claim"
        case Claim(subject=Member() as member, hold=hold):
            subject, what = host_name(member), "claim" if hold else "new fence"
        case NewMember(component_key=key, allocation_id=allocation):
            subject, what = f"{key} on allocation {str(allocation)[:8]}", "create member"
        case NewOperation(verb=verb, allocation_ids=allocations):
            subject, what = f"{len(allocations)} allocation(s)", f"request {verb}"
        case Pin(members=members):
            subject, what = _names(members), "pin host keys"
        case SetMember(member=member, status=status):
            subject, what = host_name(member), f"report {status}"
        case SetInstance(status=status, health=health):
            subject, what = "instance", f"report {status}/{health}"
        case SetAttachment(attachment=attachment, changes=changes):
            subject = f"project {str(attachment.project_id)[:8]}"
            what = f"report {changes.get('status', attachment.status)}"
        case Announce(kind=kind):
            subject, what = "instance", f"event {kind}"
        case Finish(operation=operation, status=status):
            subject, what = operation.label, f"finish ({status})"
        case ForgetSecrets():
            subject, what = "instance", "delete secrets"
        case Play(playbook=playbook, members=members):
            subject, what = _names(members), f"run playbooks/{playbook}.yml"
        case Resolve():
            subject, what = "instance", "ask policy for a package source"
        case SkipPlay(play=play, members=members):
            subject, what = _names(members), f"do not run playbooks/{play.playbook}.yml"
        case Wait(subject=waiting):
            subject, what = waiting, "wait"
        case _:
            subject = ""
    return {"step": what, "subject": subject, "operation": labels, "rule": step.rule, "why": step.why}


def _names(members: Iterable[Member]) -> str:
    return limits.named([host_name(member) for member in members])
