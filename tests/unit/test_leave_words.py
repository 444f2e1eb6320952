"""What people read of operations on workers: jobs in the way, refusals, and results; each text as a whole."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from runner.intent.errors import IntentError
from runner.intent.placement import Placement
from runner.model.names import host_name
from runner.model.neighbours import Neighbours
from runner.model.plan import AdapterError
from runner.model.platform import Member, Operation
from runner.slurm.decide.workers import evict, results
from runner.slurm.decide.workers.refusals import refusal
from runner.slurm.decide.workers.terms import LeaveTerms, read_as
from runner.slurm.notes import WorkerLeave
from runner.slurm.snapshot import Job
from tests.unit.lifecycle import ask, cluster, serving
from tests.unit.worlds import NOW, add, allocation, controller, not_found

# -- jobs ----------------------------------------------------------------------------------------------------


def job(number: int, state: str = "RUNNING", address: str | None = None) -> Job:
    return Job(id=number, address=address or str(number), state=state)


LONG = "100_[" + "1," * 30 + "2]"
CUT = LONG[:36] + "...]"


def test_jobs_are_named_oldest_first_and_long_lists_are_cut() -> None:
    many = [job(number) for number in range(22, 0, -1)]
    twenty = [str(number) for number in range(1, 21)]
    assert evict.addresses(many) == twenty
    assert evict.named(many) == f"job {', '.join(twenty)} and 2 more"
    assert evict.named(many[2:]) == f"job {', '.join(twenty)}"
    assert evict.named([job(7), job(100, address=LONG), job(3)]) == f"job 3, 7, {CUT}"
    fits, over = "1_[" + "5" * 36 + "]", "1_[" + "5" * 37 + "]"
    assert evict.addresses([job(1, address=fits), job(2, address=over)]) == [fits, "1_[" + "5" * 33 + "...]"]


def test_a_job_that_is_being_ended_is_not_ended_again() -> None:
    assert [evict.is_open(job(1, state)) for state in ("RUNNING", "PENDING", "COMPLETING")] == [True, True, False]


RUNS, WAITS = [job(9), job(7)], [job(8, "PENDING")]


@pytest.mark.parametrize(
    ("how", "jobs", "text"),
    [
        ("requeue", RUNS, "requeue of job 7, 9"),
        ("cancel", RUNS, "cancel of job 7, 9"),
        ("requeue", WAITS, "required nodes cleared of job 8"),
        ("cancel", WAITS, "cancel of job 8, waiting for the node by name"),
        ("requeue", RUNS + WAITS, "requeue of job 7, 9 and required nodes cleared of job 8"),
        ("cancel", RUNS + WAITS, "cancel of job 7, 9 and cancel of job 8, waiting for the node by name"),
        ("requeue", [job(3, "PENDING", "3+1")], "required nodes cleared of job 3+1"),
        (
            "cancel",
            [job(3, "PENDING", "3+1")],
            "cancel of job 3+1 (the whole heterogeneous job 3), waiting for the node by name",
        ),
        ("cancel", [job(3, "RUNNING", "3+1")], "cancel of job 3+1"),
        (
            "cancel",
            [job(number) for number in range(21, 0, -1)],
            f"cancel of job {', '.join(map(str, range(1, 21)))} and 1 more",
        ),
    ],
)
def test_an_eviction_is_announced_with_its_reach(how: str, jobs: list[Job], text: str) -> None:
    assert evict.announcement(how, jobs) == text


@pytest.mark.parametrize(
    ("how", "address", "waits", "text"),
    [
        ("requeue", "3+1", False, "3+1 (the whole heterogeneous job 3)"),
        ("cancel", "3+0", False, "3+0 (the whole heterogeneous job 3)"),
        ("cancel", "3+1", True, "3+1 (the whole heterogeneous job 3)"),
        ("cancel", "3+1", False, "3+1"),
        ("", "3+0", True, "3+0"),
        ("requeue", "3", True, "3"),
        ("cancel", LONG, False, CUT),
    ],
)
def test_a_heterogeneous_job_is_ended_as_a_whole(how: str, address: str, waits: bool, text: str) -> None:
    assert evict.reach(how, address, waits=waits) == text


def test_only_a_component_that_waits_takes_the_whole_job_with_it() -> None:
    assert evict.reach("cancel", "3+1") == "3+1"


def test_what_was_announced_is_kept_as_far_as_it_fits() -> None:
    assert evict.announced_too(None, "a") == "a" and evict.announced_too("a; b", "c") == "a; b; c"
    assert evict.is_announced("a; b", "b") and not evict.is_announced("a; b", "a; b")
    assert not evict.is_announced(None, "a") and not evict.is_announced(None, "XXXX")
    full = "x" * 994 + "; " + "y" * 1000
    assert evict.announced_too(full, "zz") == f"{full}; zz" and len(f"{full}; zz") == 2000
    assert evict.announced_too(full, "zzz") == "y" * 1000 + "; zzz"
    assert evict.announced_too("a; b", "z" * 3000) == "z" * 3000


# -- terms ---------------------------------------------------------------------------------------------------


def test_terms_that_are_not_given_have_a_default() -> None:
    terms = read_as(LeaveTerms, {})
    assert (terms.reason, terms.deadline_seconds, terms.host_patience_seconds) == ("", None, 600)
    assert (terms.at_deadline, terms.remove_homes) == ("give_up", False)
    assert read_as(LeaveTerms, {"deadline_seconds": 0, "on_deadline": "cancel"}).at_deadline == "cancel"


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
    life = "drain is for workers: the controller's life is the instance's"
    assert refused(of("controller", "drain")) == ("controller_not_supported", life)
    unknown = "component 'gateway' is not one of this app's (controller, worker)"
    assert refused(of("gateway", "add")) == ("component_unknown", unknown)
    verbs = "'dance' is not an operation of this app: add, drain, resume, remove, replace are"
    assert refused(of("worker", "dance")) == ("operation_unknown", verbs)


@pytest.mark.parametrize("verb", ["add", "replace"])
def test_allocations_that_cannot_be_used_are_refused(verb: str) -> None:
    def asked(*numbers: int) -> Operation:
        return ask(verb, serving(2), allocations=numbers)

    required = f"{verb} names no allocation_ids. Name existing allocations: none is requested for you"
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
    state = f"{host_name(gone)} is deleted: it cannot be asked to {verb}"
    operation = asked(gone)
    assert refused(operation, gone) == ("member_state", state)
    known = WorkerLeave(operation_id=operation.id, verb="remove", started_at=NOW).stored()
    begun = gone.model_copy(update={"adapter_detail": gone.adapter_detail | {"leave": known}})
    assert refused(operation, begun) is None, "the operation itself made it so"
    assert refused(asked(one), one) is None
    failed = serving(2, status="failed")
    assert (refused(asked(failed), failed) is None) == (verb in ("remove", "replace"))


def test_a_replacement_needs_as_many_allocations_as_members() -> None:
    one = serving(2)
    uneven = "replace_uneven", "replace needs one allocation for each member it replaces"
    assert refused(ask("replace", one, allocations=(4, 5)), one) == uneven


def test_parameters_that_an_operation_does_not_have_are_refused() -> None:
    one = serving(2)

    def asked(verb: str, **parameters: Any) -> Any:
        return refused(ask(verb, one, allocations=(4,), parameters=parameters), one)

    homes = "parameters_invalid", "parameters cannot be used: remove_homes is for remove and replace"
    assert asked("drain", remove_homes=True) == homes
    assert asked("drain", remove_homes=False, deadline_seconds=9) is None
    assert asked("remove", remove_homes=True) is None and asked("replace", remove_homes=True) is None
    extra = "parameters_invalid", "parameters cannot be used: deadline_seconds Extra inputs are not permitted"
    assert asked("resume", deadline_seconds=9) == extra
    invalid = "parameters_invalid", "parameters cannot be used: odd Extra inputs are not permitted"
    assert asked("remove", odd=9) == invalid
    assert refused(add(4, parameters={"odd": 9})) is None


# -- results -------------------------------------------------------------------------------------------------

ERROR = AdapterError("odd", "x" * 400, "drift").as_note(NOW)


def test_a_member_in_a_result_has_the_documented_fields() -> None:
    plain = serving(2)
    base = {"allocation_id": str(plain.allocation_id), "status": "ready", "hostname": "w2", "error": None}
    assert results.member_result(plain, None) == base
    known = WorkerLeave(
        operation_id=UUID(int=1), verb="remove", started_at=NOW, result="done", announced_eviction="cancel of job 7"
    )
    more = {"leave": known.stored(), "host_cleaned": False, "homes_left": ["a", "b", "c", "d"]}
    full = {"did": "cancel of job 7", "verdict": "done", "host_cleaned": False, "homes_left": ["a", "b", "c"]}
    error = ERROR.stored() | {"message": "x" * 300}
    assert results.member_result(serving(2, adapter_detail=more), ERROR) == base | full | {"error": error}
    begun = known.but(result=None, announced_eviction=None).stored()
    assert results.member_result(serving(2, adapter_detail={"leave": begun}), None) == base


def test_a_member_has_the_error_of_its_join_or_of_its_leave() -> None:
    broken = {"last_adapter_error": ERROR.stored()}
    assert results.join_error(serving(2, adapter_detail=broken)) is None
    assert results.join_error(serving(2, status="failed", adapter_detail=broken)) == ERROR
    known = WorkerLeave(operation_id=UUID(int=1), verb="remove", started_at=NOW, error=ERROR)
    assert results.leave_error(serving(2, adapter_detail={"leave": known.stored()})) == ERROR
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
