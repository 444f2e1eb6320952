"""Claims of one tick, call by call: what is written when they are taken, renewed and released."""

import contextlib
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from runner import context
from runner.model import claims
from runner.model.errors import Conflict, PlatformError
from runner.model.plan import Claim, stamp
from runner.model.platform import Member, Operation
from runner.report.claims import Claims
from runner.report.leases import LostLease, OperationEnded, Outdated
from tests.unit.lifecycle import ask, serving
from tests.unit.worlds import ME, NOW

EXPIRY = stamp(NOW + timedelta(seconds=90))
LEASE = {"claimed_by": ME, "lease_expires_at": EXPIRY}
INSTANCE = UUID(int=7)


class Client:
    def __init__(self) -> None:
        self.newest: dict[tuple[UUID, UUID], Operation] = {}
        self.clones: list[float] = []
        self.is_open = False

    def now(self) -> datetime:
        return NOW

    def operation_again(self, instance: UUID, operation: Operation) -> Operation:
        return self.newest[instance, operation.id]

    @contextlib.contextmanager
    def clone(self, *, patience: float) -> Iterator["Client"]:
        self.clones.append(patience)
        made = Client()
        made.is_open = True
        yield made
        made.is_open = False


class Writer:
    """Keeps each call, with the client that it goes through; `answer` may raise what the platform would."""

    def __init__(self, *members: Member, answer: Callable[[], None] = lambda: None) -> None:
        self.client = Client()
        self.instance = SimpleNamespace(id=INSTANCE, correlation_id="c-deploy", traceparent=None)
        self.members = {one.id: one for one in members}
        self.claimed: dict[UUID, Operation] = {}
        self.calls: list[Any] = []
        self.through: list[bool] = []
        self.causes: list[str | None] = []
        self.answer = answer

    def holds(self, member: Member) -> bool:
        return claims.is_held_by(ME, member)

    @contextlib.contextmanager
    def using(self, client: Client) -> Iterator[None]:
        usual, self.client = self.client, client
        yield
        self.client = usual

    def patch_operation(self, operation: Operation, body: dict[str, Any]) -> Operation:
        self._note(operation.id, body)
        return operation.model_copy(update={"etag": "written", **body})

    def write_member(self, member_id: UUID, status: str, changes: Any, *, new_fence: bool = False) -> Member:
        self._note(member_id, status, changes, new_fence)
        return self.members[member_id]

    def _note(self, *call: Any) -> None:
        self.calls.append(call)
        self.through.append(self.client.is_open)
        self.causes.append(context.correlation_id())
        self.answer()


def tick(writer: Writer) -> tuple[Claims, list[str]]:
    """The claims of a tick that writes there, and what becomes of the renewal's thread."""
    settings: Any = SimpleNamespace(runner_id=ME, lease_seconds=90)
    made, thread = Claims(writer, settings), list[str]()  # type: ignore[arg-type]
    assert (made.renewal._renew, made.renewal._lease_seconds) == (made._renew, 90)
    made.renewal.start = lambda: thread.append("start")  # type: ignore[method-assign]
    made.renewal.stop = lambda: thread.append("stop")  # type: ignore[method-assign]
    return made, thread


def raising(*errors: Exception) -> Callable[[], None]:
    left = list(errors)

    def answer() -> None:
        if left:
            raise left.pop(0)

    return answer


def asked(**changes: Any) -> Operation:
    return ask("drain", serving(2)).model_copy(update={"etag": "read", **changes})


def test_an_operation_is_claimed_for_the_length_of_a_lease() -> None:
    writer, operation = Writer(), asked()
    ours, thread = tick(writer)
    claimed = ours.claim_operation(operation)
    assert writer.calls == [(operation.id, {"status": "running", **LEASE})] and thread == ["start"]
    assert claimed == operation.model_copy(update={"etag": "written", "status": "running", **LEASE})
    assert writer.claimed == {operation.id: claimed}


def test_an_operation_without_an_etag_is_read_again_before_it_is_claimed() -> None:
    writer, operation = Writer(), asked(etag=None)
    newest = operation.model_copy(update={"etag": "newest", "parameters": {"newest": True}})
    writer.client.newest[INSTANCE, operation.id] = newest
    claimed = tick(writer)[0].claim_operation(operation)
    assert claimed.parameters == {"newest": True} and len(writer.calls) == 1


@pytest.mark.parametrize("changes", [{"status": "running"}, {"claimed_by": "other"}])
def test_an_operation_that_changed_since_it_was_listed_is_not_claimed(changes: dict[str, Any]) -> None:
    writer, operation = Writer(), asked(etag=None)
    writer.client.newest[INSTANCE, operation.id] = operation.model_copy(update={"etag": "newest", **changes})
    ours, thread = tick(writer)
    with pytest.raises(LostLease) as lost:
        ours.claim_operation(operation)
    assert str(lost.value) == f"drain {operation.id} was claimed by another runner first"
    assert (writer.calls, writer.claimed, thread) == ([], {}, [])


def test_an_operation_that_another_runner_claims_first_is_lost() -> None:
    conflict = Conflict("changed meanwhile", status=412)
    writer, operation = Writer(answer=raising(conflict)), asked()
    with pytest.raises(LostLease) as lost:
        tick(writer)[0].claim_operation(operation)
    assert str(lost.value) == f"drain {operation.id} was claimed by another runner first"
    assert lost.value.__cause__ is conflict and writer.claimed == {}


@pytest.mark.parametrize(("hold", "lease"), [(True, LEASE), (False, {})])
def test_a_claim_of_a_member_takes_a_number(hold: bool, lease: dict[str, Any]) -> None:
    member = serving(2)
    writer = Writer(member)
    ours, thread = tick(writer)
    assert ours.claim_member(member, Claim("why", member, "deleting", hold)) is member
    assert writer.calls == [(member.id, "deleting", lease, True)] and thread == ["start"]


def held(number: int) -> Member:
    """Held for work of its own; the fourth has no correlation id, so its work is the deploy's."""
    marked = {} if number == 4 else {"correlation_id": f"c-{number}"}
    return serving(number, status="draining", correlation_id=None, adapter_detail={"claimed_by": ME, **marked})


def test_every_claim_is_released_whatever_becomes_of_the_others() -> None:
    errors = PlatformError("away"), Outdated("old"), LostLease("lost")
    free, one, other, last = serving(2), held(3), held(4), held(5)
    writer = Writer(free, one, other, last, answer=raising(*errors))
    operation = asked()
    writer.claimed[operation.id] = operation
    ours, thread = tick(writer)
    with capture_logs() as lines:
        ours.release()
    nothing = {"claimed_by": None, "lease_expires_at": None}
    assert thread == ["stop"] and writer.calls == [
        (operation.id, {"lease_expires_at": stamp(NOW)}),
        *((member.id, "draining", nothing, False) for member in (one, other, last)),
    ]
    event = {"event": "claim not released; its lease will expire", "log_level": "warning"}
    assert writer.causes == [operation.correlation_id, "c-3", "c-deploy", "c-5"], "each for the work that held it"
    codes = {"away": {"error_code": "platform_error"}, "old": {}, "lost": {"error_code": "lease_lost"}}
    assert lines == [{**event, "problem": problem, **code} for problem, code in codes.items()]


def test_every_lease_is_renewed_through_a_client_that_does_not_wait() -> None:
    free, one, other = serving(2), held(3), held(4)
    writer, first, second = Writer(free, one, other), asked(), asked()
    writer.claimed = {first.id: first, second.id: second}
    tick(writer)[0]._renew()
    lease = {"lease_expires_at": EXPIRY}
    assert writer.calls == [
        (first.id, lease),
        (second.id, lease),
        (one.id, "draining", lease, False),
        (other.id, "draining", lease, False),
    ]
    assert writer.causes == [first.correlation_id, second.correlation_id, "c-3", "c-deploy"]
    assert writer.through == [True] * 4 and writer.client.clones == [0] and not writer.client.is_open
    assert [writer.claimed[one.id].etag for one in (first, second)] == ["written"] * 2


def test_what_ended_during_a_renewal_is_left_out_and_the_others_go_on() -> None:
    one, other, last = held(3), held(4), held(5)
    writer, first, second, third = Writer(one, other, last), asked(), asked(), asked()
    writer.claimed = {each.id: each for each in (first, second, third)}

    def answer() -> None:
        writer.claimed.pop(second.id, None)
        writer.members.pop(other.id, None)
        if len(writer.calls) == 1:
            raise OperationEnded("cancelled")

    writer.answer = answer
    with capture_logs(processors=[merge_contextvars]) as lines:
        tick(writer)[0]._renew()
    assert [call[0] for call in writer.calls] == [first.id, third.id, one.id, last.id]
    warning = {"event": "lease not renewed", "log_level": "warning", "problem": "cancelled"}
    assert lines == [{**warning, "operation_id": str(first.id), "correlation_id": first.correlation_id}]


def test_a_member_that_another_client_changed_does_not_end_the_renewal_of_the_others() -> None:
    one, other = held(3), held(4)
    writer = Writer(one, other)

    def answer() -> None:
        if len(writer.calls) == 1:
            raise Outdated("it is failed now")

    writer.answer = answer
    with capture_logs() as lines:
        tick(writer)[0]._renew()
    assert [call[0] for call in writer.calls] == [one.id, other.id]
    warned = [(line["event"], line["member_id"], line["problem"]) for line in lines]
    assert warned == [("lease not renewed", str(one.id), "it is failed now")]
