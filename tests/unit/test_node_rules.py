"""One exhaustive table: states, flags, jobs, named jobs and reservations against every judge of a node.

The expected answers are written out here, from Slurm's documents; no rule of the code under test is used for them.
"""

import json
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
from ansible.module_utils.slurm import node_rules
from ansible.module_utils.slurm.leave import obstacle
from ansible.module_utils.slurm.parse import has_registered, is_held, is_serving, parse_nodes

from plugins.modules import slurm_nodes
from runner.model.limits import ERROR_CHARS
from runner.model.world import Policy
from runner.slurm import node_rules as runner_rules
from runner.slurm.findings import findings
from runner.slurm.notes import WorkerNotes
from runner.slurm.readiness import deletion_problem, is_drained, worker_problem
from runner.slurm.readiness import is_serving as runner_is_serving
from runner.slurm.snapshot import Job, Node, Reservation
from tests.unit.fake_slurm import FakeNode, FakeSlurm
from tests.unit.lifecycle import serving
from tests.unit.recorded_slurm import recorded
from tests.unit.worlds import controller, snapshot

STATES = ("IDLE", "ALLOCATED", "MIXED", "DOWN", "UNKNOWN", "ERROR", "FUTURE")
# Every flag that `scontrol show node` prints in 22.05 and 24.11.
FLAGS = (
    *("BLOCKED", "CLOUD", "COMPLETING", "DRAIN", "DYNAMIC_FUTURE", "DYNAMIC_NORM", "EXTERNAL", "FAIL", "INVALID_REG"),
    *("MAINTENANCE", "NET", "NOT_RESPONDING", "PERFCTRS", "PLANNED", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP"),
    *("POWER_DOWN", "POWER_UP", "REBOOT_CANCEL", "REBOOT_ISSUED", "REBOOT_REQUESTED", "RESERVED", "RES", "RESUME"),
    "UNDRAIN",
)
STOPS_WORK = {
    *("DRAIN", "FAIL", "INVALID_REG", "MAINTENANCE", "NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP"),
    *("POWER_DOWN", "REBOOT_ISSUED", "REBOOT_REQUESTED"),
}
Case = tuple[str, frozenset[str], bool, bool, bool]


# The notes of a worker whose node is w, with no resources to compare.
NODE = WorkerNotes(worker_hostname="w")


def flag_sets() -> Iterator[frozenset[str]]:
    """No flag, each alone, each pair, and each pair on a node that is drained."""
    yield frozenset()
    for count in (1, 2):
        yield from (frozenset(chosen) for chosen in combinations(FLAGS, count))
    yield from (frozenset({*chosen, "DRAIN"}) for chosen in combinations(FLAGS, 2) if "DRAIN" not in chosen)


def cases() -> Iterator[Case]:
    for state in STATES:
        for flags in flag_sets():
            for number in range(8):
                yield state, flags, bool(number & 1), bool(number & 2), bool(number & 4)


# -- what is right, written independently ----------------------------------------------------------------------


def drained_is(state: str, flags: frozenset[str], job: bool) -> bool:
    if state == "IDLE" or state == "DOWN":
        return "DRAIN" in flags and "COMPLETING" not in flags and "UNDRAIN" not in flags and not job
    return False


def deletable_is(state: str, flags: frozenset[str], job: bool, named: bool, reserved: bool) -> bool:
    return drained_is(state, flags, job) and not named and not reserved


def code_is(state: str, flags: frozenset[str], job: bool, named: bool, reserved: bool) -> str | None:
    """The code of the first thing in the way: the node's own state, then jobs that name it, then reservations."""
    if drained_is(state, flags, job):
        return "jobs_need_node" if named else "node_reserved" if reserved else None
    shows_no_work = "DRAIN" in flags and not flags & {"COMPLETING", "UNDRAIN"} and not job
    return "state_unknown" if shows_no_work and state in ("UNKNOWN", "ERROR", "FUTURE") else "not_drained"


def serving_is(state: str, flags: frozenset[str]) -> bool:
    return state in ("IDLE", "ALLOCATED", "MIXED") and not any(flag in STOPS_WORK for flag in flags)


def held_is(state: str, flags: frozenset[str]) -> bool:
    return "DRAIN" in flags and serving_is(state, flags - {"DRAIN"})


# -- the judges ------------------------------------------------------------------------------------------------


def on_host(state: str, flags: frozenset[str], job: bool, named: bool, reserved: bool) -> dict[str, Any]:
    waiting = {"id": 9, "address": "9", "state": "PENDING", "nodes": [], "required_nodes": ["w"], "end_time": None}
    node = {"state": state, "flags": sorted(flags), "reason": None, "reason_by": None, "jobs": ["4"] if job else []}
    return {
        "nodes": {"w": {**node, "slurmd_started_at": None}},
        "jobs": [waiting] if named else [],
        "reservations": [{"name": "r", "nodes": ["w"]}] if reserved else [],
    }


def in_runner(state: str, flags: frozenset[str], job: bool, named: bool, reserved: bool) -> Any:
    node = Node(state=state, flags=flags, jobs=["4"] if job else [])
    seen = snapshot({"w": node})
    update = {
        "jobs": [Job(id=9, address="9", state="PENDING", required_nodes=["w"])] if named else [],
        "reservations": [Reservation(name="r", nodes=["w"])] if reserved else [],
    }
    return seen.model_copy(update=update)


def test_every_judge_of_a_node_agrees_with_the_table() -> None:
    module = slurm_nodes
    count = 0
    for case in cases():
        state, flags, job = case[:3]
        seen, host = in_runner(*case), on_host(*case)
        node, raw = seen.nodes["w"], host["nodes"]["w"]
        jobs = raw["jobs"]

        drained = drained_is(state, flags, job)
        assert is_drained(node) is drained, case
        assert node_rules.is_drained(state, flags, jobs) is drained, case
        assert module._describe_drain(raw)["is_drained"] is drained, case

        code = code_is(*case)
        assert (code is None) is deletable_is(*case), case
        refusal, problem = obstacle("w", host), deletion_problem(seen, "w")
        assert (refusal["code"] if refusal else None) == code, case
        assert (problem.code if problem else None) == code, case

        serves, held = serving_is(state, flags), held_is(state, flags)
        assert is_serving(raw) is serves, case
        assert runner_is_serving(node) is serves, case
        assert is_held(raw) is held, case
        assert has_registered(raw) is (serves or held), case
        assert (worker_problem(seen, NODE) is None) is serves, case
        assert (worker_problem(seen, NODE, may_be_held=True) is None) is (serves or held), case
        count += 1
    assert count == len(STATES) * 8 * (1 + len(FLAGS) + 25 * 26 // 2 + 24 * 25 // 2)


@pytest.mark.parametrize("version", ["22.05", "24.11"])
def test_every_state_and_flag_is_read_from_the_output_of_both_versions(version: str) -> None:
    document = json.loads(recorded(version, "idle", "nodes.json"))
    for state in STATES:
        for flags in (FLAGS, *((flag,) for flag in FLAGS)):
            one = document["nodes"][0]
            one |= {"state": state.lower(), "state_flags": flags} if version == "22.05" else {"state": [state, *flags]}
            found = parse_nodes(json.dumps(document))
            assert found
            assert (found[one["name"]]["state"], set(found[one["name"]]["flags"])) == (state, set(flags))


def test_health_calls_every_node_that_does_not_serve_by_a_code() -> None:
    worker = serving(2)
    for state in STATES:
        for flags in flag_sets():
            node = Node(state=state, flags=flags, cpus=2, memory_mb=1000, reason="r", reason_by="slurm")
            found = findings(snapshot({"w2": node}), [controller(status="ready"), worker], Policy())
            codes = [one.code for one in found if one.member and one.member.id == worker.id]
            assert bool(codes) is not serving_is(state, flags), (state, flags, codes)


def test_the_stand_in_judges_a_deletion_by_the_same_table() -> None:
    """The stand-in has rules of its own, so that a wrong rule of ours is seen in whole lifecycles too."""
    for state in STATES:
        for flags in (frozenset(), *(frozenset({flag}) for flag in FLAGS if flag != "DRAIN")):
            for number in range(8):
                job, named, reserved = bool(number & 1), bool(number & 2), bool(number & 4)
                fake = FakeNode({4} if job else set(), "gpuaas:x", None if state == "IDLE" else state, set(flags))
                slurm = FakeSlurm({"w": fake})
                slurm.pending_on = {9: "w"} if named else {}
                slurm.reservations = {"r": "w"} if reserved else {}
                drained = flags | {"DRAIN"}
                expected = deletable_is(state, drained, job, named, reserved)
                assert (slurm._delete("w") is None) is expected, (state, flags, number)


@pytest.mark.parametrize("unknown", ["nodes", "jobs", "reservations"])
def test_what_cannot_be_known_frees_no_node(unknown: str) -> None:
    drained: Case = ("IDLE", frozenset({"DRAIN"}), False, False, False)
    refusal = obstacle("w", on_host(*drained) | {unknown: None})
    assert refusal and (refusal["did"], refusal["code"]) == ("unknown", "state_unknown")
    problem = deletion_problem(in_runner(*drained).model_copy(update={unknown: None}), "w")
    assert problem and problem.code == "state_unknown"


def test_an_unknown_state_is_neither_serving_nor_drained() -> None:
    for flags in (frozenset[str](), frozenset({"DRAIN"})):
        assert not node_rules.is_serving("HOVERING", flags)
        assert not node_rules.is_drained("HOVERING", flags, [])


@pytest.mark.parametrize(
    ("state", "flags", "rest", "code", "message"),
    [
        ("IDLE", {"A"}, [[], [], []], "not_drained", "Node w is IDLE+A, not drained. Drain it first."),
        (
            *("IDLE", {"UNDRAIN", "DRAIN"}, [["4"], ["9"], ["r"]], "not_drained"),
            "Node w is IDLE+DRAIN+UNDRAIN, not drained. Drain it first.",
        ),
        (
            *("MIXED", {"DRAIN"}, [["4", "100_7"], ["9"], []], "not_drained"),
            "Node w is MIXED+DRAIN with job 4, 100_7. Wait for its jobs, or end them.",
        ),
        (
            *("IDLE", {"DRAIN", "COMPLETING"}, [[], [], []], "not_drained"),
            "Node w is IDLE+COMPLETING+DRAIN: a job on the node is still completing. Wait for it.",
        ),
        (
            *("ALLOCATED", {"DRAIN"}, [[], [], []], "not_drained"),
            "Node w is ALLOCATED+DRAIN: a job on the node is still completing. Wait for it.",
        ),
        (
            *("ERROR", {"DRAIN"}, [[], [], []], "state_unknown"),
            "Node w is ERROR+DRAIN, so it is unknown whether a job is on the node. The adapter retries.",
        ),
        (
            *("IDLE", {"DRAIN"}, [[], ["9", "11"], ["r"]], "jobs_need_node"),
            "Job 9, 11 waits for node w by name. Change it (scontrol update jobid=ID nodelist=) or cancel it.",
        ),
        (
            *("DOWN", {"DRAIN"}, [[], [], ["r", "s"]], "node_reserved"),
            "Reservation r, s holds node w. Take the node out of it, or delete it.",
        ),
    ],
)
def test_an_obstacle_names_what_is_in_the_way_and_what_to_do(
    state: str, flags: set[str], rest: list[list[str]], code: str, message: str
) -> None:
    jobs, named_by, reserved_by = rest
    assert node_rules.delete_obstacle("w", state, flags, jobs, named_by, reserved_by) == (code, message)


@pytest.mark.parametrize("place", ["jobs", "named_by", "reserved_by"])
def test_a_message_names_the_first_of_many_and_counts_the_others(place: str) -> None:
    names = [f"{number}_[{','.join(map(str, range(500)))}]" for number in range(5000)]
    found = node_rules.delete_obstacle(
        "gs-2", "IDLE", {"DRAIN"}, **({"jobs": (), "named_by": (), "reserved_by": ()} | {place: names})
    )
    assert found and "0_[0,1,2" in found.message and " and 4980 more" in found.message
    assert len(found.message) < ERROR_CHARS


def test_the_runner_and_the_modules_read_one_file() -> None:
    assert runner_rules.__file__ and node_rules.__file__
    texts = {open(one.__file__ or "").read() for one in (runner_rules, node_rules)}  # noqa: PTH123, SIM115
    assert len(texts) == 1


def test_names_are_cut_to_sixty_characters_and_counted_from_the_twenty_first() -> None:
    fits, long = "a" * 60, "b" * 61
    assert node_rules._listed([fits, long]) == f"{fits}, {'b' * 57}..."
    assert node_rules._listed(range(20)).endswith(", 19")
    assert node_rules._listed(range(21)).endswith(", 19 and 1 more")
