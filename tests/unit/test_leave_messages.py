"""What people read of operations on workers: refusals and results; each text as a whole."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from runner.intent.errors import IntentError
from runner.model.names import host_name
from runner.model.neighbours import Neighbours
from runner.model.plan import AdapterError
from runner.model.platform import Member, MemberStatus, Operation
from runner.slurm.decide.workers import results
from runner.slurm.decide.workers.refusals import refusal
from runner.slurm.decide.workers.terms import LeaveTerms, read_as
from runner.slurm.notes import WorkerLeave
from runner.slurm.placement import Placement
from tests.unit.lifecycle import ask, cluster, serving
from tests.unit.worlds import NOW, add, allocation, controller, not_found


def test_terms_that_are_not_given_have_a_default() -> None:
    terms = read_as(LeaveTerms, {})
    assert (terms.reason, terms.deadline_seconds, terms.host_patience_seconds) == ("", None, 600)
    assert (terms.deadline_action, terms.remove_homes) == ("give_up", False)
    assert read_as(LeaveTerms, {"deadline_seconds": 0, "on_deadline": "cancel"}).deadline_action == "cancel"


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"on_deadline": "cancel"}, "Value error, on_deadline needs deadline_seconds"),
        ({"deadline_seconds": -1}, "deadline_seconds Input should be greater than or equal to 0"),
        ({"odd": 1}, "odd Extra inputs are not permitted"),
    ],
)
def test_terms_that_cannot_be_used_name_the_parameter(parameters: dict[str, Any], problem: str) -> None:
    with pytest.raises(IntentError) as raised:
        read_as(LeaveTerms, parameters)
    error = raised.value
    assert (error.code, error.message) == ("parameters_invalid", f"parameters cannot be used: {problem}")
    assert error.__suppress_context__


def test_a_parameter_inside_another_is_named_with_its_path() -> None:
    class Outer(LeaveTerms):
        inner: dict[str, int]

    with pytest.raises(IntentError, match=r"^parameters cannot be used: inner\.a Input"):
        read_as(Outer, {"inner": {"a": "x"}})


# -- refusals ------------------------------------------------------------------------------------------------

SPLIT = Placement(mode="split", controller_allocation_id=allocation(1).id)
SAME = Placement(mode="same_node", controller_allocation_id=allocation(1).id)


def refused(operation: Operation, *members: Member, busy: Any = (), placement: Placement = SPLIT, **more: Any) -> Any:
    now = cluster(*members, operations=(operation,))
    now = now.later(**more) if more else now
    return refusal(now, placement, operation, dict.fromkeys(busy, operation))


def of(component: str, verb: str) -> Operation:
    return add(4, component_key=component, operation=verb)


def test_what_is_not_for_workers_is_refused() -> None:
    second = "a cluster has one controller, made by the deploy; a second one cannot be added"
    assert refused(of("controller", "add")) == ("second_controller", second)
    fixed = "drain is for workers: the controller is created and removed with the instance"
    assert refused(of("controller", "drain")) == ("controller_not_supported", fixed)
    unknown = "component 'gateway' is not one of this app's (controller, worker)"
    assert refused(of("gateway", "add")) == ("component_unknown", unknown)
    verbs = "'dance' is not an operation of this app. Supported: add, drain, resume, remove, replace"
    assert refused(of("worker", "dance")) == ("operation_unknown", verbs)


@pytest.mark.parametrize("verb", ["add", "replace"])
def test_allocations_that_cannot_be_used_are_refused(verb: str) -> None:
    def asked(*numbers: int) -> Operation:
        return ask(verb, serving(2), allocations=numbers)

    required = f"{verb} names no allocation_ids. Name existing allocations: the adapter does not rent machines"
    assert refused(asked()) == ("allocations_required", required)
    assert refused(asked(4, 5, 4)) == ("allocation_twice", f"{verb} names the same allocation twice")
    one, four = allocation(1).id, allocation(4).id
    split = f"allocation {one} is the controller's and placement is split"
    assert refused(asked(4, 1)) == ("allocation_is_controller", split)
    missing = refused(asked(4), allocations={four: not_found(4)})
    assert missing == ("allocation_not_found", f"allocation {four} is not in this project")
    whose = f"allocation {four} already serves as another operation's worker: remove that one first"
    assert refused(asked(4), busy=[four]) == ("allocation_in_use", whose)
    elsewhere = Neighbours({four: "instance 8"})
    serves = f"allocation {four} serves instance 8: remove it there first"
    assert refused(asked(5, 4), neighbours=elsewhere) == ("allocation_in_use", serves)


@pytest.mark.parametrize("verb", ["drain", "resume", "remove"])
def test_an_operation_on_a_worker_needs_no_allocation(verb: str) -> None:
    one = serving(2, status="draining")
    assert refused(ask(verb, one), one) is None


def test_an_allocation_serves_one_worker_at_a_time() -> None:
    operation, four = add(4), allocation(4).id
    for status in ("requested", "ready", "deleting"):
        one = serving(4, status=status)
        whose = f"allocation {four} already serves as {host_name(one)}: remove that one first"
        assert refused(operation, serving(2), one) == ("allocation_in_use", whose)
    for status in ("deleted", "failed"):
        assert refused(operation, serving(4, status=status)) is None
    ours = serving(4, adapter_detail={"operation_id": str(operation.id)})
    assert refused(operation, ours, neighbours=Neighbours({four: "instance 8"})) is None
    assert refused(add(1), placement=SAME) is None, "the controller's host can be a worker's as well"
    assert refused(operation, neighbours=Neighbours({allocation(5).id: "instance 8"})) is None


@pytest.mark.parametrize("verb", ["drain", "resume", "remove", "replace"])
def test_members_that_an_operation_cannot_be_about_are_refused(verb: str) -> None:
    one, boss = serving(2), controller(status="ready")

    def asked(*members: Member) -> Operation:
        return ask(verb, *members, allocations=(4, 5)[: len(members)] or (4,))

    assert refused(asked()) == ("no_members", f"{verb} names no member_ids: name the workers")
    assert refused(asked(one, one), one) == ("member_twice", f"{verb} names the same member twice")
    assert refused(asked(one)) == ("member_not_found", f"{one.id} is not a member of this instance")
    about = f"{boss.id} is the controller: {verb} is for workers"
    assert refused(asked(one, boss), one) == ("controller_not_supported", about)
    gone = serving(2, status="deleted")
    state = f"{verb} is not possible while {host_name(gone)} is deleted"
    operation = asked(gone)
    assert refused(operation, gone) == ("member_state", state)
    leave_note = WorkerLeave(operation_id=operation.id, verb="remove", started_at=NOW).stored()
    begun = gone.model_copy(update={"adapter_detail": gone.adapter_detail | {"leave": leave_note}})
    assert refused(operation, begun) is None, "the operation itself made it so"
    assert refused(asked(one), one) is None


LEAVING_IS_ALLOWED = {"requested", "reconciling", "ready", "draining", "deleting", "failed"}
ALLOWED = {
    "drain": {"ready", "draining"},
    "resume": {"ready", "draining"},
    "remove": LEAVING_IS_ALLOWED,
    "replace": LEAVING_IS_ALLOWED,
}


@pytest.mark.parametrize("status", list(MemberStatus))
@pytest.mark.parametrize("verb", ALLOWED)
def test_a_member_in_each_status_allows_the_verbs_of_the_table(verb: str, status: str) -> None:
    one = serving(2, status=status)
    found = refused(ask(verb, one, allocations=(4,)), one)
    assert (found and found[0]) == (None if status in ALLOWED[verb] else "member_state")


def test_a_replacement_needs_as_many_allocations_as_members() -> None:
    one = serving(2)
    uneven = "replace_uneven", "replace needs one allocation for each member it replaces"
    assert refused(ask("replace", one, allocations=(4, 5)), one) == uneven


def test_parameters_that_an_operation_does_not_have_are_refused() -> None:
    one = serving(2)

    def asked(verb: str, **parameters: Any) -> Any:
        return refused(ask(verb, one, allocations=(4,), parameters=parameters), one)

    def invalid(name: str) -> tuple[str, str]:
        return "parameters_invalid", f"parameters cannot be used: {name} Extra inputs are not permitted"

    assert asked("drain", remove_homes=False) == invalid("remove_homes")
    assert asked("drain", host_patience_seconds=9) == invalid("host_patience_seconds")
    assert asked("drain", deadline_seconds=9, on_deadline="cancel", reason="new disk") is None
    for verb in ("remove", "replace"):
        assert asked(verb, remove_homes=True, host_patience_seconds=9, deadline_seconds=9) is None
        assert asked(verb, odd=9) == invalid("odd")
    assert asked("resume", deadline_seconds=9) == invalid("deadline_seconds")
    assert refused(add(4, parameters={"odd": 9})) == invalid("odd") and refused(add(4)) is None


# -- results -------------------------------------------------------------------------------------------------

ERROR = AdapterError("odd", "x" * 400, "drift").as_note(NOW)


def test_a_member_in_a_result_has_the_documented_fields() -> None:
    plain = serving(2)
    base = {"allocation_id": str(plain.allocation_id), "status": "ready", "hostname": "w2", "error": None}
    assert results.member_result(plain, None) == base
    leave_note = WorkerLeave(
        operation_id=UUID(int=1), verb="remove", started_at=NOW, result="done", announced_eviction="cancel of job 7"
    )
    more = {"leave": leave_note.stored(), "host_cleaned": False, "homes_left": ["a", "b", "c", "d"]}
    full = {"did": "cancel of job 7", "verdict": "done", "host_cleaned": False, "homes_left": ["a", "b", "c"]}
    error = ERROR.stored() | {"message": "x" * 300}
    assert results.member_result(serving(2, adapter_detail=more), ERROR) == base | full | {"error": error}
    begun = leave_note.but(result=None, announced_eviction=None).stored()
    assert results.member_result(serving(2, adapter_detail={"leave": begun}), None) == base
    over = AdapterError("drain_deadline", "not free in 9 s").as_note(NOW)
    for gave_up in (begun | {"error": over.stored()}, begun | {"announced_eviction": "gave up"}):  # now, and before 1.1
        result = results.member_result(serving(2, adapter_detail={"leave": gave_up}), None)
        assert result == base | {"did": "gave up"}


def test_a_member_has_the_error_of_its_join_or_of_its_leave() -> None:
    broken = {"last_adapter_error": ERROR.stored()}
    assert results.join_error(serving(2, adapter_detail=broken)) is None
    assert results.join_error(serving(2, status="failed", adapter_detail=broken)) == ERROR
    leave_note = WorkerLeave(operation_id=UUID(int=1), verb="remove", started_at=NOW, error=ERROR)
    assert results.leave_error(serving(2, adapter_detail={"leave": leave_note.stored()})) == ERROR
    assert results.leave_error(serving(2, adapter_detail=broken)) is None
    one, other = serving(2), serving(3, status="failed", adapter_detail=broken)
    assert results.joined_results([one, other]) == {
        "members": {
            str(other.id): results.member_result(other, ERROR),
            str(one.id): results.member_result(one, None),
        }
    }


def test_the_error_of_an_operation_counts_its_workers() -> None:
    one, other, first = serving(2), serving(3), replace(AdapterError("odd", "disk full")).as_note(NOW)
    all_failed = {"code": "odd", "message": "2 of 2 workers failed; the first: disk full"}
    assert results.failure([one, other], [one, other], first) == all_failed
    some = {"code": "partly_failed", "message": "1 of 2 workers failed, 1 left; the first: disk full"}
    assert results.failure([one], [one, other], first, ", 1 left") == some
    unknown = {"code": "worker_failed", "message": "1 of 1 workers failed; the first: no reason is recorded"}
    assert results.failure([one], [one], None) == unknown


def test_a_result_has_failures_first_and_counts_what_does_not_fit() -> None:
    def sized(length: int, error: str | None = None) -> dict[str, Any]:
        made = {"error": error, "text": ""}
        return made | {"text": "x" * length}

    failed, good = sized(0, "odd"), sized(0)
    assert list(results.fitted({"a": good, "b": failed})["members"]) == ["b", "a"]
    assert results.fitted({"a": good}) == {"members": {"a": good}}
    # A result of two equal entries: 27 bytes of JSON around the text, one for the id, 8 for what is between them.
    fits, over = sized(5964), sized(5965)
    assert results.fitted({"a": fits, "b": fits}) == {"members": {"a": fits, "b": fits}}
    assert results.fitted({"a": fits, "b": over, "c": good}) == {"members": {"a": fits}, "more_members": 2}
    moment = sized(0) | {"at": NOW}
    assert results.fitted({"a": moment}) == {"members": {"a": moment}}
