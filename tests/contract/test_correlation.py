"""What a request causes can be found by its own correlation id: in the audit, the events, the log and the records."""

import json
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from runner.cli import request_state
from tests.commands import ends
from tests.contract.stage import Point, Scenario, Stage
from tests.log_lines import named, read_lines
from tests.platform_process import Doc
from tests.runner_process import answer, gpuaas_slurm
from tests.waits import until

# Ids of work that no operation requests name the rule that asked for it.
OWN_ID = re.compile(r"[a-z0-9-]+-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
ON_WORKERS = ("add", "drain", "failed drain", "remove", "failed add")
VERBS = (*ON_WORKERS, "stop", "start", "upgrade", "decommission")
FAILED = ("failed drain", "failed add")
OF_OPERATIONS = ("updateMemberOperation", "updateInstanceOperation")
MACHINES = "createCredentialDelivery"


@dataclass(frozen=True)
class Asked:
    """One request, and where it left its correlation id. Spans belong here too, once there is a receiver for them."""

    operation: Doc  # as it was made; of the deploy, the instance
    rows: list[Doc]  # the runner's part of the audit, while it was carried out
    lines: list[Doc]  # what the runner logged meanwhile
    members: list[Doc]  # after it
    explained: list[Doc]  # what `explain` answered then

    @property
    def correlation_id(self) -> str:
        return str(self.operation["correlation_id"])

    def own(self, found: list[Doc]) -> list[Doc]:
        return [one for one in found if one.get("correlation_id") == self.correlation_id]


Done = dict[str, Asked]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with closing(Stage(tmp_path_factory.mktemp("correlation"))) as made:
        yield made


@pytest.fixture
def own_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A stage for one test alone."""
    with closing(Stage(tmp_path_factory.mktemp("own"))) as made:
        yield made


def ask(stage: Stage, verb: str) -> Doc:
    match verb:
        case "deploy":
            return stage.made
        case "add":
            return stage.ask(verb, allocations=(4,))
        case "failed add":
            stage.lose_host(5)
            return stage.ask("add", allocations=(5,))
        case "drain":
            stage.start_job(4)
            return stage.ask(verb, 4, deadline_seconds=0, on_deadline="cancel")
        case "failed drain":
            stage.start_job(2)
            return stage.ask("drain", 2, deadline_seconds=0)
        case "remove":
            return stage.ask(verb, 4)
        case "stop":
            return stage.ask_whole(verb, deadline_seconds=0, on_deadline="cancel")
    return stage.ask_whole(verb)


@pytest.fixture(scope="module")
def done(stage: Stage) -> Done:
    found: Done = {}
    for verb in ("deploy", *VERBS):
        before = len(stage.platform.control.audit())
        operation = ask(stage, verb)
        lines = read_lines(stage.settle(GPUAAS_MAX_ATTEMPTS="1"))
        rows = [row for row in stage.platform.control.audit()[before:] if row["actor_type"] == "service_account"]
        explained = answer(stage.variables, "explain", operation["correlation_id"])
        found[verb] = Asked(operation, rows, lines, stage.read("/members"), explained)
    return found


def ended(stage: Stage, asked: Asked) -> Doc:
    operations = [*stage.read("/member-operations"), *stage.read("/operations")]
    (found,) = (one for one in operations if one["id"] == asked.operation["id"])
    return dict(found)


@pytest.mark.parametrize("verb", VERBS)
def test_writes_of_an_operation_have_its_id_and_no_other_requests_id(done: Done, stage: Stage, verb: str) -> None:
    asked = done[verb]
    about = [row for row in asked.rows if row["action"] in OF_OPERATIONS]
    assert about and asked.own(about) == about
    assert {row["action"] for row in asked.own(asked.rows)} >= {"updateMember", MACHINES}
    others = {row["correlation_id"] for row in asked.rows} - {asked.correlation_id}
    assert all(OWN_ID.fullmatch(one) for one in others), others
    assert ended(stage, asked)["status"] == ("failed" if verb in FAILED else "succeeded")


@pytest.mark.parametrize("verb", VERBS)
def test_log_lines_of_an_operation_have_its_ids(done: Done, verb: str) -> None:
    asked = done[verb]
    own = asked.own(asked.lines)
    assert {line.get("operation_id") for line in own} == {asked.operation["id"]}
    assert {"claim", "play"} <= {line["event"] for line in own}
    assert any(line["event"].startswith("finish") for line in own)
    assert all("correlation_id" in line for line in asked.lines if "app_instance_id" in line)


@pytest.mark.parametrize("verb", ["deploy", *VERBS])
def test_what_has_the_id_of_a_request_is_complete_and_only_its_own(done: Done, stage: Stage, verb: str) -> None:
    asked = done[verb]
    plays = [line for line in asked.own(asked.lines) if line["event"] == "play"]
    assert plays and len([row for row in asked.own(asked.rows) if row["action"] == MACHINES]) == len(plays)
    for other in (done[name] for name in done if name != verb):
        assert asked.own(other.lines) == [] and asked.own(other.rows) == []
    events = {one["type"] for one in stage.read("/events") if one["correlation_id"] == asked.correlation_id}
    stated = {"deploy": {"apps.instance.requested", "apps.instance.running"}, "decommission": {"apps.instance.deleted"}}
    assert events >= stated.get(verb, set())


@pytest.mark.parametrize("verb", VERBS)
def test_plays_with_hosts_and_times_stand_in_the_result(done: Done, stage: Stage, verb: str) -> None:
    asked = done[verb]
    operation = ended(stage, asked)
    plays = operation["result"]["plays"]
    logged = [line["playbook"] for line in asked.own(asked.lines) if line["event"] == "play"]
    assert [one["playbook"] for one in plays for _ in range(one["runs"])] == logged
    for play in plays:
        times = (operation["created_at"], play["started_at"], play["ended_at"], operation["updated_at"])
        assert [one[:19] for one in times] == sorted(one[:19] for one in times)
        assert len(play["hosts"]) == play["hosts_count"] > 0 and play["attempt"] >= 1 and play["why"]
        for host in play["hosts"].values():
            times = (play["started_at"], host["first_at"], host["last_at"], play["ended_at"])
            assert list(times) == sorted(times) and host["outcome"]
    outcomes = {host["outcome"] for play in plays for host in play["hosts"].values()}
    assert outcomes == ({"ok", "host_unreachable"} if verb in ("failed add", "decommission") else {"ok"})


def test_five_questions_about_a_drain_that_failed_are_answered_by_its_own_id(
    done: Done, stage: Stage, tmp_path: Path
) -> None:
    asked = done["failed drain"]
    (then,) = asked.explained
    assert {"asked", "decided", "play", "member", "error", "ended"} <= {one["kind"] for one in then["story"]}
    log = tmp_path / "runner.log"
    log.write_text("".join(f"{json.dumps(line)}\n" for one in done.values() for line in one.lines))
    (explained,) = answer(stage.variables, "explain", asked.correlation_id, "--log", str(log))
    assert explained["instance"]["id"] == stage.made["id"]
    (member,) = explained["members"]
    assert member["name"].startswith("worker-") and member["host"] == "w2" and member["runtime"]["node_state"]
    assert [one["id"] for one in explained["operations"]] == [asked.operation["id"]]
    assert explained["correlation_ids"] == [asked.correlation_id]
    assert "drain_deadline" in explained["end"] and explained["next"] == request_state.next_step("drain_deadline")
    kinds = [one["kind"] for one in explained["story"]]
    assert (kinds[0], kinds[-1]) == ("asked", "ended") and {"decided", "play", "log"} < set(kinds)
    assert kinds.count("log") == len(asked.own(asked.lines)), "its lines, and no others"
    shown = gpuaas_slurm(stage.variables, "explain", asked.correlation_id, "--log", str(log))
    ends(shown, 0)
    assert "drain_worker.yml on 1 host" in shown.stdout and max(map(len, shown.stdout.splitlines())) <= 100


def test_routine_work_is_explained_by_its_own_id_and_a_killed_play_has_no_end(own_stage: Stage) -> None:
    own_stage.settle()

    def looks() -> list[Doc]:
        own_stage.settle(GPUAAS_OBSERVE_SECONDS="0")
        plays = own_stage.read()["status_detail"].get("own_plays", {"plays": []})["plays"]
        return [one for one in plays if one["playbook"] == "observe"]

    # A look in the same second as the one before has the same result, so nothing is reported.
    (look,) = until(looks, 30, "a routine look on record")
    (explained,) = answer(own_stage.variables, "explain", look["correlation_id"])
    assert [one["kind"] for one in explained["story"]] == ["decided", "play"]
    assert explained["story"][1]["play"] == look and explained["end"] == "observe: ok"
    own_stage.save("running")
    killed = Scenario("add", "running", lambda one: one.ask("add", allocations=(4,)), "succeeded")
    assert own_stage.play_out(killed, Point("in play", 2)).deaths == 1
    first, *_, last = own_stage.read("/member-operations")[-1]["result"]["plays"]
    assert first["playbook"] == last["playbook"] == "add_worker" and first["attempt"] < last["attempt"]
    assert "ended_at" not in first and last["result"] == "ok", "the play that was killed has no end"


@pytest.mark.parametrize("verb", ["add", "drain", "remove"])
def test_a_member_shows_the_id_of_the_work_on_it(done: Done, verb: str) -> None:
    asked = done[verb]
    (worker,) = (one for one in asked.members if one["correlation_id"] == done["add"].correlation_id)
    assert worker["adapter_detail"]["correlation_id"] == asked.correlation_id


# What each adds to the timeline, beside the types that the platform posts itself.
EVENTS = {
    "failed drain": ["apps.instance.operation_failed"],
    "failed add": ["apps.instance.operation_failed"],
    "stop": ["apps.instance.stopped"],
    "start": ["apps.instance.running"],
    "upgrade": ["apps.instance.upgraded"],
    "decommission": ["apps.instance.deleting", "apps.instance.deleted"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_events_of_an_operation_have_its_ids_and_are_posted_once(stage: Stage, done: Done, verb: str) -> None:
    operation = done[verb].operation
    own = [one for one in stage.read("/events") if one["correlation_id"] == operation["correlation_id"]]
    assert [one["type"] for one in own] == EVENTS.get(verb, [])
    assert {(one["data"]["operation_id"], one["data"]["verb"]) for one in own} <= {
        (operation["id"], operation["operation"])
    }
    assert all(one["data"]["versions"] for one in own)


@pytest.mark.parametrize("verb", VERBS)
def test_lines_about_an_instance_and_a_member_name_their_resource(stage: Stage, done: Done, verb: str) -> None:
    lines = done[verb].lines
    org, project, made = stage.made["org_id"], stage.made["project_id"], stage.made["id"]
    (play, *_) = named(lines, "play")
    assert play["resource_name"] == f"core42:aicloud:eu-1:{org}:{project}:gpuaas-slurm/app-instances:{made}"
    of_members = [one for one in lines if "member_id" in one]
    assert all(one["resource_name"].endswith(f"gpuaas-slurm/members:{one['member_id']}") for one in of_members)
    assert of_members or verb == "stop" or verb == "start" or verb == "upgrade"


def test_a_deploy_that_fails_and_a_type_that_is_refused_leave_lines_with_their_codes(own_stage: Stage) -> None:
    own_stage.break_controller()
    refusal = {"code": "validation_error", "message": "no such type"}
    own_stage.platform.control.inject_fault("status", "/events$", method="POST", status=422, body=refusal)
    lines = read_lines(own_stage.settle())
    own_stage.platform.control.clear_faults()
    (refused,) = named(lines, "event refused by the platform")
    assert (refused["error_code"], refused["level"]) == ("validation_error", "warning")
    assert own_stage.read()["status"] == "failed", "the report did not wait for the event"
    failed = [one for one in lines if one.get("error_code") == "disk_full"]
    assert {"report failed", "report failed/unhealthy"} <= {one["event"] for one in failed}
    assert {one["correlation_id"] for one in failed} == {own_stage.made["correlation_id"]}
    posted = [one["type"] for one in own_stage.read("/events")]
    assert sorted(posted) == ["apps.instance.failed", "apps.instance.requested"]


def test_a_routine_look_has_an_id_of_its_own(own_stage: Stage) -> None:
    own_stage.settle()
    before = len(own_stage.platform.control.audit())
    lines = read_lines(own_stage.settle(GPUAAS_OBSERVE_SECONDS="0"))
    rows = [row for row in own_stage.platform.control.audit()[before:] if row["actor_type"] == "service_account"]
    ids = {row["correlation_id"] for row in rows} | {line["correlation_id"] for line in lines if "play" in line}
    assert own_stage.made["correlation_id"] not in ids
    (own,) = {row["correlation_id"] for row in rows}
    assert own.startswith("refresh-an-old-observation-") and OWN_ID.fullmatch(own)
    marks = {one["adapter_detail"].get("correlation_id") for one in own_stage.read("/members")}
    assert own not in marks, "a look is not work on a member"
