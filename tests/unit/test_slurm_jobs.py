"""Jobs by their addresses: what is read from Slurm's answers, and what a command is given."""

import json
from typing import Any

import pytest
from ansible.module_utils.host.errors import AdapterError
from ansible.module_utils.slurm.evict import Evictions
from ansible.module_utils.slurm.jobs import Job, check_addresses, elements, find_targets, parse_jobs, with_jobs

from tests.unit.recorded_slurm import recorded


def job(address: str, number: int, state: str = "RUNNING", *, het: int | None = None, **more: Any) -> Job:
    offset = int(address.partition("+")[2]) if het else None
    return {
        "id": number,
        "address": address,
        "het_job_id": het,
        "het_job_offset": offset,
        "state": state,
        "nodes": more.get("nodes", []),
        "required_nodes": more.get("required_nodes", []),
        "end_time": None,
    }


def raw(number: int, state: str = "RUNNING", **more: Any) -> dict[str, Any]:
    return {"job_id": number, "job_state": state, "nodes": "w", **more}


def parsed(*jobs: dict[str, Any]) -> list[str] | None:
    found = parse_jobs(json.dumps({"jobs": jobs}))
    return None if found is None else [one["address"] for one in found]


# -- reading ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["22.05", "24.11"])
def test_arrays_and_heterogeneous_jobs_are_read_from_recorded_answers(version: str) -> None:
    expected = json.loads(recorded(version, "addresses", "expected.json"))
    jobs = parse_jobs(recorded(version, "addresses", "jobs.json"))
    assert jobs is not None
    assert {one["address"]: [one["state"], one["nodes"]] for one in jobs} == expected


@pytest.mark.parametrize(
    ("fields", "address"),
    [
        ({}, "100"),
        ({"array_job_id": 0, "array_task_id": None, "het_job_id": 0, "het_job_offset": 0}, "100"),
        ({"array_job_id": 100, "array_task_id": 0}, "100_0"),
        ({"array_job_id": 90, "array_task_id": 7}, "90_7"),
        ({"array_job_id": 100, "array_task_id": None, "array_task_string": "5-9%2"}, "100_[5-9]"),
        ({"het_job_id": 100, "het_job_offset": 0}, "100+0"),
        ({"het_job_id": 99, "het_job_offset": 1}, "99+1"),
        (
            {
                "array_job_id": {"set": True, "infinite": False, "number": 90},
                "array_task_id": {"set": True, "infinite": False, "number": 0},
            },
            "90_0",
        ),
        (
            {
                "array_job_id": {"set": True, "infinite": False, "number": 0},
                "array_task_id": {"set": False, "infinite": False, "number": 0},
                "het_job_id": {"set": True, "infinite": False, "number": 99},
                "het_job_offset": {"set": True, "infinite": False, "number": 2},
            },
            "99+2",
        ),
    ],
)
def test_a_job_has_the_address_that_means_it_alone(fields: dict[str, Any], address: str) -> None:
    assert parsed(raw(100, **fields)) == [address]


@pytest.mark.parametrize("tasks", ["", "1-3,...", "*"])
def test_elements_that_slurm_does_not_name_are_listed_and_never_ended(tasks: str) -> None:
    assert parsed(raw(100, "PENDING", array_job_id=100, array_task_id=None, array_task_string=tasks)) == ["100_[?]"]
    queue = FakeQueue(job("100_[?]", 100, "PENDING", required_nodes=["w"]))
    for verb in ("cancel", "requeue", "unpin"):
        evictions = Evictions(queue.look, queue.run)
        getattr(evictions, verb)(["100_[?]"])
        assert queue.commands == [] and evictions.verdicts["100_[?]"]["did"] == "kept"


def test_a_node_lists_the_addresses_of_the_jobs_on_it() -> None:
    node: Any = {"jobs": []}
    jobs = [job("100_1", 101, nodes=["a"]), job("100_2", 100, nodes=["b"]), job("7", 7, "PENDING", nodes=["a"])]
    assert {name: one["jobs"] for name, one in with_jobs({"a": node, "b": node}, jobs).items()} == {
        "a": ["100_1"],
        "b": ["100_2"],
    }


@pytest.mark.parametrize(
    "address", ["", "0", "-1", "1,2", "1 2", "100_", "100_7_8", "100_[", "100_[a]", "100+", "--user=x", "all", "1\n"]
)
def test_an_address_that_could_mean_other_jobs_is_refused(address: str) -> None:
    with pytest.raises(AdapterError) as refusal:
        check_addresses([address])
    assert refusal.value.code == "job_address_refused"


def test_addresses_of_every_kind_are_taken() -> None:
    assert check_addresses(["9", "100_7", "100_[1-3,7]", "200+1", "9"]) == ["100_7", "100_[1-3,7]", "200+1", "9"]


# -- what a command is given -----------------------------------------------------------------------------------

HET = [job("200+0", 200, het=200), job("200+1", 201, het=200), job("200+2", 202, het=200)]


@pytest.mark.parametrize(
    ("address", "whole", "given", "ids"),
    [
        ("200+1", False, "201", [201]),
        ("200+0", False, "200", [200, 201, 202]),
        ("200+1", True, "200", [200, 201, 202]),
    ],
)
def test_component_zero_and_a_requeue_stand_for_the_whole_job(
    address: str, whole: bool, given: str, ids: list[int]
) -> None:
    assert find_targets([address], HET, whole=whole) == {address: {"given": [given], "ids": ids}}


class FakeQueue:
    """squeue, scancel and scontrol over a list of jobs; an address means what Slurm takes it to mean."""

    def __init__(self, *jobs: Job) -> None:
        self.jobs = list(jobs)
        self.commands: list[tuple[str, ...]] = []
        self.deaf = False

    def look(self) -> list[Job]:
        return [dict(one) for one in self.jobs]  # type: ignore[misc]

    def run(self, _about: str, command: tuple[str, ...]) -> str:
        self.commands.append(command)
        if self.deaf:
            return "Access denied"
        if command[0] == "scancel":
            self.jobs = [one for one in self.jobs if not any(self._means(given, one) for given in command[1:])]
        elif command[1] == "requeue":
            for one in self.jobs:
                if any(self._means(given, one) for given in command[2].split(",")):
                    one["state"] = "PENDING"
        else:
            for one in self.jobs:
                if self._means(command[2].removeprefix("JobId="), one):
                    one["required_nodes"] = []
        return ""

    def _means(self, given: str, one: Job) -> bool:
        """A bare number is every element of an array and, of a leader, every component."""
        if given.isdigit():
            array = one["address"].partition("_")[0]
            return given == array or int(given) in (one["id"], one["het_job_id"])
        return given in elements(one["address"])


def test_cancel_ends_one_element_and_leaves_the_rest_of_the_array() -> None:
    # The last element to start has the array's own id: `scancel 100` would end all three.
    queue = FakeQueue(job("100_1", 101), job("100_2", 102), job("100_3", 100))
    evictions = Evictions(queue.look, queue.run)
    evictions.cancel(["100_3"])
    assert [one["address"] for one in queue.jobs] == ["100_1", "100_2"]
    assert evictions.verdicts["100_3"]["did"] == "cancelled"
    assert queue.commands == [("scancel", "100_3")]


def test_requeue_puts_back_one_element_and_leaves_the_rest_running() -> None:
    queue = FakeQueue(job("100_1", 101), job("100_2", 100))
    evictions = Evictions(queue.look, queue.run)
    evictions.requeue(["100_2"])
    assert {one["address"]: one["state"] for one in queue.jobs} == {"100_1": "RUNNING", "100_2": "PENDING"}
    assert evictions.verdicts["100_2"]["did"] == "requeued"


def test_a_component_other_than_zero_is_cancelled_alone() -> None:
    queue = FakeQueue(*HET)
    evictions = Evictions(queue.look, queue.run)
    evictions.cancel(["200+1"])
    assert [one["address"] for one in queue.jobs] == ["200+0", "200+2"]
    assert evictions.verdicts["200+1"] == {"did": "cancelled", "code": None, "reason": None}


def test_the_verdict_on_a_heterogeneous_jobs_leader_names_its_other_components() -> None:
    queue = FakeQueue(*HET)
    evictions = Evictions(queue.look, queue.run)
    evictions.cancel(["200+0"])
    assert queue.jobs == []
    assert "200+1, 200+2" in str(evictions.verdicts["200+0"]["reason"])


def test_a_component_that_waits_is_cancelled_with_the_whole_job() -> None:
    """Slurm refuses it for one of them: Operation not permitted on individual component."""
    queue = FakeQueue(*(job(f"200+{place}", 200 + place, "PENDING", het=200) for place in (0, 1)))
    evictions = Evictions(queue.look, queue.run)
    evictions.cancel(["200+1"])
    assert queue.commands == [("scancel", "200")] and queue.jobs == []


def test_two_components_of_one_job_are_requeued_by_one_command() -> None:
    queue = FakeQueue(*[dict(one) for one in HET])  # type: ignore[arg-type]
    evictions = Evictions(queue.look, queue.run)
    evictions.requeue(["200+1", "200+2"])
    assert queue.commands == [("scontrol", "requeue", "200")]
    assert {one["state"] for one in queue.jobs} == {"PENDING"}
    assert {verdict["did"] for verdict in evictions.verdicts.values()} == {"requeued"}


def test_a_pending_job_loses_its_required_nodes_and_waits_on() -> None:
    queue = FakeQueue(job("9", 9, "PENDING", required_nodes=["w"]), job("10", 10, "PENDING", required_nodes=["w"]))
    evictions = Evictions(queue.look, queue.run)
    evictions.unpin(["9"])
    assert [one["required_nodes"] for one in queue.jobs] == [[], ["w"]]
    assert evictions.verdicts["9"]["did"] == "unpinned"


def test_elements_that_have_not_started_are_unpinned_one_by_one() -> None:
    """scontrol update refuses 100_[3,5-6], and the array's own id would change elements that run."""
    queue = FakeQueue(
        *(job(f"100_{task}", 100 + task, "PENDING", required_nodes=["w"]) for task in (3, 5, 6)),
        job("100_1", 101, required_nodes=["w"]),
    )
    shown = [job("100_[3,5-6]", 100, "PENDING", required_nodes=["w"]), job("100_1", 101, required_nodes=["w"])]
    answers = iter([shown])
    evictions = Evictions(lambda: next(answers, queue.look()), queue.run)
    evictions.unpin(["100_[3,5-6]"])
    assert [command[2] for command in queue.commands] == ["JobId=100_3", "JobId=100_5", "JobId=100_6"]
    assert evictions.verdicts["100_[3,5-6]"]["did"] == "unpinned"


def test_elements_in_steps_are_cancelled_one_by_one_in_one_command() -> None:
    queue = FakeQueue(job("100_[1-5:2]", 100, "PENDING"), job("100_2", 102))
    Evictions(queue.look, queue.run).cancel(["100_[1-5:2]"])
    assert queue.commands == [("scancel", "100_1", "100_3", "100_5")]


def test_an_expression_names_each_element() -> None:
    assert elements("8_[1-7:3,9]") == ["8_1", "8_4", "8_7", "8_9"]
    assert elements("8_7") == ["8_7"] and elements("8") == ["8"]


@pytest.mark.parametrize("verb", ["cancel", "requeue", "unpin"])
def test_the_verdict_is_what_the_controller_shows_and_not_what_a_command_printed(verb: str) -> None:
    state = "PENDING" if verb == "unpin" else "RUNNING"
    queue = FakeQueue(job("9", 9, state, required_nodes=["w"]))
    queue.deaf = True
    evictions = Evictions(queue.look, queue.run)
    getattr(evictions, verb)(["9"])
    assert evictions.verdicts["9"] == {"did": "kept", "code": None, "reason": "Access denied"}


@pytest.mark.parametrize("verb", ["cancel", "requeue", "unpin"])
def test_a_number_that_belongs_to_an_array_ends_no_element(verb: str) -> None:
    queue = FakeQueue(job("100_1", 101), job("100_2", 100))
    evictions = Evictions(queue.look, queue.run)
    getattr(evictions, verb)(["100"])
    assert queue.commands == []
    assert evictions.verdicts["100"]["did"] == "kept"
    assert "100_1, 100_2" in str(evictions.verdicts["100"]["reason"])


def test_a_job_that_has_ended_meanwhile_is_gone() -> None:
    queue = FakeQueue()
    evictions = Evictions(queue.look, queue.run)
    evictions.cancel(["9"])
    assert evictions.verdicts["9"]["did"] == "gone" and queue.commands == []
