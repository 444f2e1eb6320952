"""One call of slurm_nodes as a whole: every command, every verdict, and every text that an operator reads."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from ansible.module_utils.host.claim import CLAIM_ARGUMENT
from ansible.module_utils.host.errors import AdapterError
from ansible.module_utils.slurm import hold, leave
from ansible.module_utils.slurm.evict import Evictions

from plugins.modules import slurm_nodes

OWNER = "gpuaas:0f0e0d0c-0000-4000-8000-000000000001"
REASON = f"{OWNER}: disk"
KINDS = ("drain", "resume", "requeue", "unpin", "cancel", "verify_delete", "delete")
IGNORED = "Slurm accepted the command, but the node did not change. The adapter retries."
SILENT = (
    "slurmctld does not answer on the controller{when}, so its nodes and jobs"
    " are unknown. The adapter retries; if the error stays, read `journalctl -u slurmctld` there."
)


def node(state: str = "IDLE", *flags: str, reason: str | None = None, by: str = "root", **more: Any) -> dict[str, Any]:
    return {"state": state, "flags": list(flags), "reason": reason, "reason_by": by, "jobs": [], **more}


def drained(reason: str | None = REASON) -> dict[str, Any]:
    return node("IDLE", "DRAIN", reason=reason)


def verdict(did: str, reason: str | None = None, code: str | None = None) -> dict[str, Any]:
    return {"did": did, "code": code, "reason": reason}


def job(address: str, number: int, state: str = "RUNNING", het: int | None = None, **more: Any) -> Any:
    offset = int(address.partition("+")[2]) if het else None
    made = {"id": number, "address": address, "state": state, "het_job_id": het, "het_job_offset": offset}
    return {**made, "nodes": [], "required_nodes": [], "end_time": None, **more}


class Cluster:
    """What the controller shows, look by look: the last view stays. Commands are noted and answered as given."""

    def __init__(self, *views: Mapping[str, Any] | None, jobs: Any = (), answers: Sequence[Any] = ()) -> None:
        self.views = list(views)
        self.jobs = list(jobs)
        self.answers = list(answers)
        self.commands: list[tuple[str, ...]] = []
        self.looks: list[str] = []

    def seen(self, command: object) -> dict[str, Any]:
        assert command == ("sinfo",)
        nodes = self.views.pop(0) if len(self.views) > 1 else self.views[0]
        return {"nodes": nodes, "jobs": self.jobs, "reservations": []}

    def run(self, *command: str) -> tuple[int, str, str]:
        self.commands.append(command)
        output, errors = self.answers.pop(0) if self.answers else ("", "")
        return 0, output, errors


class Clock:
    """Time that passes only in sleep."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sleeps: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    def made(cluster: Cluster, *, dry: bool = False, clock: Clock | None = None, **asked: Any) -> dict[str, Any]:
        monkeypatch.setattr(slurm_nodes, "nodes_command", lambda: ("sinfo",))
        monkeypatch.setattr(slurm_nodes, "look_at_nodes", cluster.seen)
        monkeypatch.setattr(slurm_nodes, "look", cluster.seen)
        monkeypatch.setattr(slurm_nodes, "run", cluster.run)
        monkeypatch.setattr(slurm_nodes, "time", clock or Clock())
        params: dict[str, Any] = {kind: [] for kind in KINDS} | {"hold_down": False} | asked
        found: dict[str, Any] = slurm_nodes.Call(params, dry).run()
        return found

    return made


Calling = Callable[..., dict[str, Any]]


def test_a_call_without_requests_returns_the_cluster_as_it_is(call: Calling) -> None:
    cluster = Cluster({"a": node(), "b": drained()})
    assert call(cluster) == {
        "nodes": {},
        "jobs": {},
        "drains": {"b": {"reason": REASON, "held_by": "us", "is_drained": True}},
        "changes": [],
        "snapshot": {"nodes": {"a": node(), "b": drained()}, "jobs": [], "reservations": []},
    }
    assert cluster.commands == []


# -- drain ---------------------------------------------------------------------------------------------------


def test_nodes_are_drained_by_one_command_and_judged_by_the_next_look(call: Calling) -> None:
    before = {name: node("MIXED") for name in ("kept", "gone", "done", "taken")} | {"ours": drained()}
    after = {"kept": node("MIXED"), "done": drained(), "taken": drained("fan"), "ours": drained()}
    cluster = Cluster(before, after)
    names = ["taken", "ours", "kept", "gone", "done", "absent", "done"]
    found = call(cluster, drain=[{"nodes": names, "reason": REASON}])
    assert cluster.commands == [
        ("scontrol", "update", "NodeName=done,gone,kept,taken", "State=DRAIN", f"Reason={REASON}")
    ]
    assert found["changes"] == ["nodes done,gone,kept,taken drained"]
    assert found["nodes"] == {
        "absent": verdict("absent", "The controller has no node absent."),
        "ours": verdict("already_draining", REASON),
        "kept": verdict("kept", IGNORED, "not_drained"),
        "gone": verdict("absent", "Node gone was deleted meanwhile."),
        "done": verdict("drained", REASON),
        "taken": verdict("held_by_person", "fan"),
    }


def test_what_slurm_answers_is_the_reason_of_a_node_that_stays(call: Calling) -> None:
    for answer, reason in (((" output \n", ""), "output"), (("output", "refused"), "refused")):
        cluster = Cluster({"a": node()}, answers=[answer])
        found = call(cluster, drain=[{"nodes": ["a"], "reason": REASON}])
        assert found["nodes"] == {"a": verdict("kept", reason, "not_drained")}


def test_a_dry_run_changes_nothing_and_names_the_changes(call: Calling) -> None:
    cluster = Cluster({"a": node(), "b": node("DOWN", reason="fan")})
    found = call(cluster, dry=True, drain=[{"nodes": ["a"], "reason": REASON}], hold_down=True)
    assert (cluster.commands, found["changes"]) == ([], ["nodes a drained"])
    reason = "Nothing was changed: this is a dry run."
    assert found["nodes"] == {"a": verdict("kept", reason, "not_drained")}


def test_a_request_for_nodes_that_need_no_change_gives_no_command(call: Calling) -> None:
    cluster = Cluster({"a": drained(), "b": node()})
    found = call(
        cluster, drain=[{"nodes": ["a"], "reason": REASON}], resume=[{"nodes": ["b"], "owner": OWNER}], delete=["c"]
    )
    assert (cluster.commands, found["changes"]) == ([], [])


# -- resume --------------------------------------------------------------------------------------------------


def test_only_drains_of_the_owner_are_lifted_and_judged_by_the_next_look(call: Calling) -> None:
    before = {name: drained() for name in ("done", "gone", "kept", "taken")}
    before |= {"free": node(), "theirs": drained("fan"), "blank": drained(None)}
    after = before | {"done": node(), "kept": drained(), "taken": drained("fan")}
    del after["gone"]
    cluster = Cluster(before, after)
    found = call(cluster, resume=[{"nodes": [*before, "absent"], "owner": OWNER}])
    assert cluster.commands == [("scontrol", "update", "NodeName=done,gone,kept,taken", "State=UNDRAIN")]
    assert found["changes"] == ["nodes done,gone,kept,taken resumed"]
    assert found["nodes"] == {
        "absent": verdict("absent", "The controller has no node absent."),
        "free": verdict("left", "Node free is not drained."),
        "theirs": verdict("left", "Another owner drained theirs: fan."),
        "blank": verdict("left", "Another owner drained blank: no reason given."),
        "done": verdict("resumed"),
        "gone": verdict("absent", "Node gone was deleted meanwhile."),
        "kept": verdict("kept", IGNORED),
        "taken": verdict("resumed"),
    }


def test_a_resumed_node_is_shown_once_it_answers(call: Calling) -> None:
    silent = {"a": node("IDLE", "NOT_RESPONDING"), "other": node("IDLE", "NOT_RESPONDING")}
    orders = [{"nodes": ["a"], "owner": OWNER}]
    clock = Clock()
    cluster = Cluster({"a": drained()}, silent, silent, silent | {"a": node()})
    assert call(cluster, clock=clock, resume=orders)["nodes"] == {"a": verdict("resumed")}
    assert clock.sleeps == [0.2, 0.2]
    clock, cluster = Clock(), Cluster({"a": drained()}, silent)
    clock.sleep = lambda seconds: (clock.sleeps.append(seconds), setattr(clock, "now", clock.now + 5))  # type: ignore
    assert call(cluster, clock=clock, resume=orders)["nodes"] == {"a": verdict("resumed")}
    assert clock.sleeps == [0.2] * 3 and clock.now == 15.0, "at ten seconds it is asked once more"
    clock, cluster = Clock(), Cluster({"a": drained()}, silent)
    call(cluster, clock=clock, dry=True, resume=orders)
    assert clock.sleeps == []


# -- delete --------------------------------------------------------------------------------------------------


def test_nodes_are_checked_and_deleted_by_one_command(call: Calling) -> None:
    before = {"busy": node("MIXED"), "done": drained(), "kept": drained()}
    cluster = Cluster(before, {"busy": node("MIXED"), "kept": drained()})
    found = call(cluster, delete=["kept", "done", "busy", "absent"])
    assert cluster.commands == [("scontrol", "delete", "NodeName=done,kept")]
    assert found["changes"] == ["nodes done,kept deleted"]
    busy = leave.obstacle("busy", {"nodes": before, "jobs": [], "reservations": []})
    assert found["nodes"] == {
        "absent": verdict("absent"),
        "busy": busy,
        "done": verdict("deleted"),
        "kept": verdict("kept", IGNORED, "state_unknown"),
    }


def test_a_check_for_deletion_changes_nothing(call: Calling) -> None:
    before = {"busy": node("MIXED"), "free": drained()}
    cluster = Cluster(before)
    found = call(cluster, verify_delete=["free", "busy"])
    busy = leave.obstacle("busy", {"nodes": before, "jobs": [], "reservations": []})
    assert found["nodes"] == {"busy": busy, "free": verdict("deletable")} and cluster.commands == []


@pytest.mark.parametrize(("unread", "what"), [("nodes", "nodes"), ("jobs", "jobs"), ("reservations", "reservations")])
def test_a_list_that_was_not_answered_is_named(unread: str, what: str) -> None:
    lists: dict[str, Any] = {"nodes": {"a": drained()}, "jobs": [], "reservations": []}
    found = leave.obstacle("a", lists | {unread: None})
    assert found == verdict("unknown", f"The controller did not list its {what}. The adapter retries.", "state_unknown")


def test_an_obstacle_of_a_node_has_its_code_and_its_message() -> None:
    lists: dict[str, Any] = {"nodes": {"a": drained()}, "jobs": [], "reservations": []}
    assert leave.obstacle("a", lists) is None and leave.obstacle("b", lists) == verdict("absent")
    named = leave.obstacle("a", lists | {"jobs": [job("9", 9, "PENDING", required_nodes=["a"])]})
    by_name = "Job 9 waits for node a by name. Change it (scontrol update jobid=ID nodelist=) or cancel it."
    assert named == verdict("kept", by_name, "jobs_need_node")
    reserved = leave.obstacle("a", lists | {"reservations": [{"name": "r", "nodes": ["a"]}]})
    holds = "Reservation r holds node a. Take the node out of it, or delete it."
    assert reserved == verdict("kept", holds, "node_reserved")
    odd = leave.obstacle("a", lists | {"nodes": {"a": drained() | {"state": "FUTURE"}}})
    assert odd and (odd["did"], odd["code"]) == ("unknown", "state_unknown") and odd["reason"]
    used = leave.obstacle("a", lists | {"nodes": {"a": drained() | {"jobs": ["7"]}}})
    assert used and (used["did"], used["code"]) == ("kept", "not_drained") and "7" in str(used["reason"])


# -- a controller that does not answer -----------------------------------------------------------------------


def silent(call: Calling, cluster: Cluster, **asked: Any) -> tuple[str, str, str]:
    with pytest.raises(AdapterError) as raised:
        call(cluster, **asked)
    return raised.value.code, raised.value.message, raised.value.error_class


def test_a_controller_that_does_not_answer_is_a_retryable_error(call: Calling) -> None:
    before = "slurm_silent", SILENT.format(when=""), "retryable"
    after = "slurm_silent", SILENT.format(when=" after the changes"), "retryable"
    for asked in ({"delete": ["a"]}, {"verify_delete": ["a"]}, {"drain": [{"nodes": ["a"], "reason": REASON}]}):
        assert silent(call, Cluster(None), **asked) == before
    assert silent(call, Cluster(None)) == after
    assert silent(call, Cluster({}, {}, None), delete=["a"], hold_down=True) == before
    assert silent(call, Cluster({"a": drained()}, {}, None), delete=["a"]) == after
    assert silent(call, Cluster({}, None), verify_delete=["a"], hold_down=True) == before
    held_only = call(Cluster(None), hold_down=True)
    assert (held_only["nodes"], held_only["drains"], held_only["snapshot"]["nodes"]) == ({}, {}, None)


# -- names, reasons and owners -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a,b", "ALL", "", "-a", "a" * 65])
def test_a_name_of_more_than_one_node_is_refused(name: str) -> None:
    with pytest.raises(AdapterError) as raised:
        leave.check_names(["fine", name])
    message = f"{name!r} is not the name of one node. Correct the member's record, then retry."
    assert raised.value.as_dict() == {"code": "node_name_refused", "message": message, "class": "intervention"}


def test_a_reason_is_one_short_line_of_ours() -> None:
    assert leave.check_reason(f'{OWNER}:\t "new"\x00\x1b  disk\n') == f"{OWNER}: 'new' disk"
    assert leave.check_reason("gpuaas:" + "x" * 300) == "gpuaas:" + "x" * 193
    with pytest.raises(AdapterError) as raised:
        leave.check_reason("fan")
    message = "A drain's reason must start with gpuaas:, which marks it as the adapter's. Correct it, then retry."
    assert raised.value.as_dict() == {"code": "reason_refused", "message": message, "class": "intervention"}


@pytest.mark.parametrize(
    ("owner", "reason", "is_owner"),
    [
        ("gpuaas:*", REASON, True),
        ("gpuaas:*", "gpuaas:manual: x", False),
        ("gpuaas:*", None, False),
        ("gpuaas:", "gpuaas:manual: x", True),
        ("gpuaas:a", "gpuaas:a", True),
        ("gpuaas:a", "gpuaas:a: x", True),
        ("gpuaas:a", "gpuaas:a x", True),
        ("gpuaas:a", "gpuaas:ab", False),
        ("gpuaas:a", "gpuaas:aX", False),
        ("gpuaas:a", "fan", False),
        ("gpuaas:a", "", False),
        ("gpuaas:a", None, False),
        ("fan", "fan", False),
        ("fan:", "fan: x", False),
    ],
)
def test_a_drain_belongs_to_the_owner_in_its_reason(owner: str, reason: str | None, is_owner: bool) -> None:
    assert leave.owns(owner, reason) is is_owner


def test_a_drain_without_a_reason_is_not_ours() -> None:
    assert leave.standing_drain(drained(None)) == verdict("held_by_person")
    assert leave.standing_drain(drained("XXXX")) == verdict("held_by_person", "XXXX")


# -- nodes that a person set down ----------------------------------------------------------------------------

DOWN = {"b": node("DOWN", reason="fan"), "a": node("DOWN", reason=None), "c": node(), "d": drained()}


def test_nodes_that_a_person_set_down_are_drained_with_their_reason(call: Calling) -> None:
    after = DOWN | {name: node("DOWN", "DRAIN", reason="fan") for name in "ab"}
    cluster = Cluster(DOWN, after)
    found = call(cluster, hold_down=True)
    assert cluster.commands == [
        ("scontrol", "update", "NodeName=a", "State=DRAIN", "Reason=set down by a person"),
        ("scontrol", "update", "NodeName=b", "State=DRAIN", "Reason=fan"),
    ]
    assert found["changes"] == ["node a held", "node b held"]
    assert found["nodes"] == {"a": verdict("held", "set down by a person"), "b": verdict("held", "fan")}


def test_a_node_that_cannot_be_held_stops_the_restart() -> None:
    for answer, cause in (("refused", "refused"), ("", "Slurm gave no reason")):
        with pytest.raises(AdapterError) as raised:
            hold.hold_down(lambda: {"b": DOWN["b"]}, lambda *_, answer=answer: answer)
        message = (
            f"Node b was set down by a person (fan) and could not be drained ({cause}). A restart would put it back to"
            " work, so nothing was restarted. It is tried again."
        )
        assert raised.value.as_dict() == {"code": "not_held", "message": message, "class": "retryable"}


def test_a_node_that_is_gone_or_unseen_afterwards_does_not_stop_the_restart() -> None:
    afterwards: tuple[Any, ...] = ({}, None)
    for after in afterwards:
        views: list[Any] = [after, {"b": DOWN["b"]}]
        assert hold.hold_down(views.pop, lambda *_: "") == {"b": "fan"} and views == []
    looks = [{"c": node()}]
    assert hold.hold_down(looks.pop, lambda *_: "") == {} and looks == [], "one look is enough"


# -- jobs ----------------------------------------------------------------------------------------------------


class Queue:
    """Lists of open jobs, look by look; the last one stays."""

    def __init__(self, *views: list[Any], answers: Sequence[str] = ()) -> None:
        self.views, self.answers = list(views), list(answers)
        self.ran: list[tuple[str, tuple[str, ...]]] = []
        self.looks = 0
        self.evictions = Evictions(self._look, self._run)

    def _look(self) -> list[Any]:
        self.looks += 1
        return self.views.pop(0) if len(self.views) > 1 else self.views[0]

    def _run(self, change: str, command: tuple[str, ...]) -> str:
        self.ran.append((change, command))
        return self.answers.pop(0) if self.answers else ""


def test_the_kinds_of_evictions_come_in_order(call: Calling) -> None:
    jobs = [job("7", 7), job("8", 8, "PENDING", required_nodes=["a"]), job("9", 9)]
    cluster = Cluster({"a": node()}, jobs=jobs)
    found = call(cluster, requeue=["7"], unpin=["8"], cancel=["9"])
    assert cluster.commands == [
        ("scontrol", "requeue", "7"),
        ("scontrol", "update", "JobId=8", "NodeList="),
        ("scancel", "9"),
    ]
    assert found["changes"] == ["jobs 7 requeued", "job 8 unpinned", "jobs 9 cancelled"]
    assert found["jobs"] == {
        "7": verdict("kept", "Job 7 is RUNNING."),
        "8": verdict("kept", "Job 8 still names its nodes."),
        "9": verdict("kept", "Job 9 is RUNNING."),
    }


def test_nothing_is_looked_at_without_a_request() -> None:
    queue = Queue([])
    for kind in ("requeue", "cancel", "unpin"):
        getattr(queue.evictions, kind)([])
    assert (queue.looks, queue.ran, queue.evictions.verdicts) == (0, [], {})


def test_jobs_are_cancelled_by_one_command_and_judged_by_the_next_look() -> None:
    before = [job(str(number), number) for number in (3, 4, 5, 6)] + [job("100_1", 101), job("100_2", 100)]
    queue = Queue(before, [job("4", 4, "COMPLETING"), job("5", 5), job("6", 6, "PENDING"), *before[4:]])
    queue.evictions.cancel(["5", "3", "4", "6", "2", "100"])
    assert queue.ran == [("jobs 3,4,5,6 cancelled", ("scancel", "3", "4", "5", "6"))]
    assert queue.evictions.verdicts == {
        "100": verdict("kept", "100 does not name exactly one job; there are 100_1, 100_2."),
        "2": verdict("gone"),
        "3": verdict("cancelled"),
        "4": verdict("cancelled"),
        "5": verdict("kept", "Job 5 is RUNNING."),
        "6": verdict("kept", "Job 6 is PENDING."),
    }


def test_jobs_that_are_requeued_already_are_left_out_of_the_command() -> None:
    before = [job("3", 3), job("4", 4, "COMPLETING"), job("5", 5, "PENDING"), job("6", 6)]
    queue = Queue(before, [job("3", 3, "PENDING"), *before[1:]], answers=["refused"])
    queue.evictions.requeue(["3", "4", "5", "6"])
    assert queue.ran == [("jobs 3,6 requeued", ("scontrol", "requeue", "3,6"))]
    done = {name: verdict("requeued") for name in "345"}
    assert queue.evictions.verdicts == done | {"6": verdict("kept", "refused")}
    only = Queue([job("4", 4, "COMPLETING")])
    only.evictions.requeue(["4"])
    assert only.ran == [] and only.evictions.verdicts == {"4": verdict("requeued")}
    again = Queue([job("4", 4, "COMPLETING")], [])
    again.evictions.cancel(["4"])
    assert again.ran == [("jobs 4 cancelled", ("scancel", "4"))]


@pytest.mark.parametrize(("count", "more"), [(20, ""), (22, " and 2 more")])
def test_a_long_list_of_jobs_is_cut_in_the_change_and_not_in_the_command(count: int, more: str) -> None:
    numbers = [str(number) for number in range(10, 10 + count)]
    queue = Queue([job(one, int(one)) for one in numbers], [])
    queue.evictions.cancel(numbers)
    assert queue.ran == [(f"jobs {','.join(numbers[:20])}{more} cancelled", ("scancel", *numbers))]


def test_many_jobs_of_one_number_are_cut_in_the_verdict() -> None:
    queue = Queue([job(f"100_{number}", 100 + number) for number in range(22)])
    queue.evictions.cancel(["100"])
    named = ", ".join(f"100_{number}" for number in range(20))
    reason = f"100 does not name exactly one job; there are {named}."
    assert queue.evictions.verdicts == {"100": verdict("kept", reason)} and queue.ran == []


def test_a_heterogeneous_job_is_requeued_as_a_whole_and_named_so() -> None:
    parts = [job(f"200+{place}", 200 + place, het=200) for place in range(3)]
    ended = [{**part, "state": "PENDING"} for part in parts]
    queue = Queue(parts, ended)
    queue.evictions.requeue(["200+1", "200+2"])
    assert queue.ran == [("jobs 200 requeued", ("scontrol", "requeue", "200"))]
    assert queue.evictions.verdicts == {
        "200+1": verdict("requeued", "The whole heterogeneous job ended: also 200+0, 200+2."),
        "200+2": verdict("requeued", "The whole heterogeneous job ended: also 200+0, 200+1."),
    }
    partly = Queue([ended[0], *parts[1:]], [*ended[:2], parts[2]])
    partly.evictions.requeue(["200+1"])
    assert partly.ran == [("jobs 200 requeued", ("scontrol", "requeue", "200"))]
    assert partly.evictions.verdicts == {"200+1": verdict("kept", "Job 200+2 is RUNNING.")}


def pinned(address: str, number: int, **more: Any) -> Any:
    return job(address, number, "PENDING", required_nodes=["a"], **more)


def test_pending_jobs_lose_their_required_nodes_one_by_one() -> None:
    before = [pinned("8", 8), pinned("9", 9), pinned("100_[1-2]", 100), job("7", 7, required_nodes=["a"])]
    before += [pinned("10", 10), job("11", 11, "PENDING"), pinned("300_[?]", 300)]
    queue = Queue(before, [pinned("9", 9), pinned("10", 10)], answers=["", "", "refused"])
    queue.evictions.unpin(["8", "9", "10", "100_[1-2]", "7", "11", "12", "300_[?]"])
    assert queue.ran == [
        (f"job {one} unpinned", ("scontrol", "update", f"JobId={one}", "NodeList="))
        for one in ("10", "100_1", "100_2", "8", "9")
    ]
    assert queue.evictions.verdicts == {
        "10": verdict("kept", "Job 10 still names its nodes."),
        "100_[1-2]": verdict("unpinned"),
        "11": verdict("kept", "11 does not name exactly one job; there are 11."),
        "12": verdict("gone"),
        "300_[?]": verdict("kept", "300_[?] does not name exactly one job; there are 300_[?]."),
        "7": verdict("kept", "7 does not name exactly one job; there are 7."),
        "8": verdict("unpinned"),
        "9": verdict("kept", "Job 9 still names its nodes."),
    }


def test_the_first_answer_of_slurm_is_the_reason_of_a_job_that_stays() -> None:
    queue = Queue([pinned("100_[1-3]", 100)], [pinned("100_2", 102)], answers=["", "refused", "again"])
    queue.evictions.unpin(["100_[1-3]"])
    assert queue.evictions.verdicts == {"100_[1-3]": verdict("kept", "refused")}


def test_a_component_loses_its_required_nodes_by_its_own_id() -> None:
    parts = [pinned(f"200+{place}", 200 + place, het=200) for place in range(2)]
    queue = Queue(parts, parts[:1])
    queue.evictions.unpin(["200+1", "200+0"])
    assert [command[2] for _, command in queue.ran] == ["JobId=200", "JobId=201"]
    assert [one["did"] for one in queue.evictions.verdicts.values()] == ["kept", "unpinned"]


def test_a_large_array_loses_its_required_nodes_in_several_calls() -> None:
    queue = Queue([pinned("100_[1-300]", 100)])
    queue.evictions.unpin(["100_[1-300]"])
    assert [command[2] for _, command in queue.ran] == [f"JobId=100_{number}" for number in range(1, 201)]


# -- the module ----------------------------------------------------------------------------------------------


class Module:
    """AnsibleModule with its arguments given, which ends by raising."""

    made: dict[str, Any]
    params: dict[str, Any]
    check_mode = False

    def __init__(self, **made: Any) -> None:
        type(self).made = made

    def exit_json(self, **result: Any) -> None:
        raise SystemExit({"exit": result})

    def fail_json(self, **result: Any) -> None:
        raise SystemExit({"fail": result})


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def called(cluster: Cluster, locks: list[Any], *, dry: bool = False, **asked: Any) -> Any:
        @contextlib.contextmanager
        def host_lock(module: Any, doing: str, **more: Any) -> Iterator[bool]:
            assert isinstance(module, Module)
            locks.append((doing, more))
            yield True

        monkeypatch.setattr(slurm_nodes, "AnsibleModule", Module)
        monkeypatch.setattr(slurm_nodes, "host_lock", host_lock)
        monkeypatch.setattr(slurm_nodes, "nodes_command", lambda: ("sinfo",))
        monkeypatch.setattr(slurm_nodes, "look_at_nodes", cluster.seen)
        monkeypatch.setattr(slurm_nodes, "look", cluster.seen)
        monkeypatch.setattr(slurm_nodes, "run", cluster.run)
        monkeypatch.setattr(
            Module, "params", {kind: [] for kind in KINDS} | {"hold_down": False} | asked, raising=False
        )
        monkeypatch.setattr(Module, "check_mode", dry)
        with pytest.raises(SystemExit) as ended:
            slurm_nodes.main()
        return ended.value.code

    return called


LOCK = "changing nodes", {"changes": True, "begin": False}


def test_the_module_returns_what_it_changed(main: Callable[..., Any]) -> None:
    locks: list[Any] = []
    cluster = Cluster({"a": drained()}, {})
    seen: dict[str, Any] = {"nodes": {}, "jobs": [], "reservations": []}
    result = {"nodes": {"a": verdict("deleted")}, "jobs": {}, "drains": {}, "snapshot": seen}
    changes = ["nodes a deleted"]
    assert main(cluster, locks, delete=["a"]) == {"exit": {"changed": True, "changes": changes, **result}}
    assert locks == [LOCK]
    found = main(Cluster({}), locks, verify_delete=["a"])["exit"]
    assert found["changed"] is False and locks[1:] == [(LOCK[0], {"changes": False, "begin": False})]
    dry = main(Cluster({"a": drained()}), locks, dry=True, delete=["a"])["exit"]
    assert dry["nodes"] == {"a": verdict("kept", "Nothing was changed: this is a dry run.", "state_unknown")}


def test_a_silent_slurm_fails_the_module_with_the_states_of_daemons(main: Callable[..., Any]) -> None:
    error = {"code": "slurm_silent", "message": SILENT.format(when=""), "class": "retryable"}
    report = {"phase": "controller", "snapshot": {"nodes": None, "jobs": [], "reservations": []}}
    failed = main(Cluster(None), [], delete=["a"])
    assert failed == {"fail": {"msg": error["message"], "adapter_error": error, "member_report": report}}


def test_another_error_fails_the_module_without_a_report(main: Callable[..., Any]) -> None:
    failed = main(Cluster({}), [], delete=["a,b"])["fail"]
    assert failed["adapter_error"]["code"] == "node_name_refused" and failed["member_report"] is None
    assert failed["msg"] == failed["adapter_error"]["message"]


def test_the_arguments_of_the_module_are_the_documented_ones(main: Callable[..., Any]) -> None:
    main(Cluster({}), [])
    texts = {"type": "list", "elements": "str", "default": []}
    names = {"type": "list", "elements": "str", "required": True}
    orders = {"type": "list", "elements": "dict", "default": []}
    text = {"type": "str", "required": True}
    assert Module.made == {
        "argument_spec": {
            **CLAIM_ARGUMENT,
            "drain": orders | {"options": {"nodes": names, "reason": text}},
            "resume": orders | {"options": {"nodes": names, "owner": text}},
            "hold_down": {"type": "bool", "default": False},
            **dict.fromkeys(("requeue", "unpin", "cancel", "verify_delete", "delete"), texts),
        },
        "supports_check_mode": True,
    }
