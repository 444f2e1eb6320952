"""What a request causes can be found by its own correlation id: in the audit, the events, the log and the records."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.stage import Stage
from tests.log_lines import named, read_lines
from tests.platform_process import Doc

# Ids of work that no operation requests name the rule that asked for it.
OWN_ID = re.compile(r"[a-z0-9-]+-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
VERBS = ("add", "drain", "remove", "stop", "start", "upgrade", "decommission")
OF_OPERATIONS = ("updateMemberOperation", "updateInstanceOperation")

# By verb: the operation as it was made, the runner's audit rows and log lines, and the members after it.
Done = dict[str, tuple[Doc, list[Doc], list[Doc], list[Doc]]]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(tmp_path_factory.mktemp("correlation"))
    made.settle()
    yield made
    made.close()


@pytest.fixture(scope="module")
def done(stage: Stage) -> Done:
    found: Done = {}
    for verb in VERBS:
        before = len(stage.platform.control.audit())
        match verb:
            case "add":
                operation = stage.ask(verb, allocations=(4,))
            case "drain" | "remove":
                operation = stage.ask(verb, 4)
            case _:
                operation = stage.ask_whole(verb)
        lines = read_lines(stage.settle())
        rows = [row for row in stage.platform.control.audit()[before:] if row["actor_type"] == "service_account"]
        found[verb] = operation, rows, lines, stage.read("/members")
    return found


@pytest.mark.parametrize("verb", VERBS)
def test_writes_of_an_operation_have_its_id_and_no_other_requests_id(done: Done, verb: str) -> None:
    operation, rows, _, _ = done[verb]
    own = [row for row in rows if row["correlation_id"] == operation["correlation_id"]]
    about = [row for row in rows if row["action"] in OF_OPERATIONS]
    assert about and {row["correlation_id"] for row in about} == {operation["correlation_id"]}
    assert {row["action"] for row in own} >= {"updateMember"}
    others = {row["correlation_id"] for row in rows} - {operation["correlation_id"]}
    assert all(OWN_ID.fullmatch(one) for one in others), others


@pytest.mark.parametrize("verb", VERBS)
def test_log_lines_of_an_operation_have_its_ids(done: Done, verb: str) -> None:
    operation, _, lines, _ = done[verb]
    own = [line for line in lines if line.get("correlation_id") == operation["correlation_id"]]
    assert {line.get("operation_id") for line in own} == {operation["id"]}
    assert {"claim", "play"} <= {line["event"] for line in own}
    assert any(line["event"].startswith("finish") for line in own)
    assert all("correlation_id" in line for line in lines if "app_instance_id" in line)


@pytest.mark.parametrize("verb", ["add", "drain", "remove"])
def test_a_member_shows_the_id_of_the_work_on_it(done: Done, verb: str) -> None:
    operation, _, _, members = done[verb]
    (worker,) = (one for one in members if one["correlation_id"] == done["add"][0]["correlation_id"])
    assert worker["adapter_detail"]["correlation_id"] == operation["correlation_id"]


# What each adds to the timeline, beside the types that the platform posts itself.
EVENTS = {
    "stop": ["apps.instance.stopped"],
    "start": ["apps.instance.running"],
    "upgrade": ["apps.instance.upgraded"],
    "decommission": ["apps.instance.deleting", "apps.instance.deleted"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_events_of_an_operation_have_its_ids_and_are_posted_once(stage: Stage, done: Done, verb: str) -> None:
    operation, _, _, _ = done[verb]
    own = [one for one in stage.read("/events") if one["correlation_id"] == operation["correlation_id"]]
    assert [one["type"] for one in own] == EVENTS.get(verb, [])
    assert {(one["data"]["operation_id"], one["data"]["verb"]) for one in own} <= {(operation["id"], verb)}
    assert all(one["data"]["versions"] for one in own)


@pytest.mark.parametrize("verb", VERBS)
def test_lines_about_an_instance_and_a_member_name_their_resource(stage: Stage, done: Done, verb: str) -> None:
    _, _, lines, _ = done[verb]
    org, project, made = stage.made["org_id"], stage.made["project_id"], stage.made["id"]
    (play, *_) = named(lines, "play")
    assert play["resource_name"] == f"core42:aicloud:eu-1:{org}:{project}:gpuaas-slurm/app-instances:{made}"
    of_members = [one for one in lines if "member_id" in one]
    assert all(one["resource_name"].endswith(f"gpuaas-slurm/members:{one['member_id']}") for one in of_members)
    assert of_members or verb == "stop" or verb == "start" or verb == "upgrade"


def test_a_deploy_that_fails_and_a_type_that_is_refused_leave_lines_with_their_codes(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "fails")
    try:
        stage.break_controller()
        refusal = {"code": "validation_error", "message": "no such type"}
        stage.platform.control.inject_fault("status", "/events$", method="POST", status=422, body=refusal)
        lines = read_lines(stage.settle())
        stage.platform.control.clear_faults()
        (refused,) = named(lines, "event refused by the platform")
        assert (refused["error_code"], refused["level"]) == ("validation_error", "warning")
        assert stage.read()["status"] == "failed", "the report did not wait for the event"
        failed = [one for one in lines if one.get("error_code") == "disk_full"]
        assert {"report failed", "report failed/unhealthy"} <= {one["event"] for one in failed}
        assert {one["correlation_id"] for one in failed} == {stage.made["correlation_id"]}
        posted = [one["type"] for one in stage.read("/events")]
        assert sorted(posted) == ["apps.instance.failed", "apps.instance.requested"]
    finally:
        stage.close()


def test_a_routine_look_has_an_id_of_its_own(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "look")
    try:
        stage.settle()
        before = len(stage.platform.control.audit())
        lines = read_lines(stage.settle(GPUAAS_OBSERVE_SECONDS="0"))
        rows = [row for row in stage.platform.control.audit()[before:] if row["actor_type"] == "service_account"]
        ids = {row["correlation_id"] for row in rows} | {line["correlation_id"] for line in lines if "play" in line}
        assert stage.made["correlation_id"] not in ids
        (own,) = {row["correlation_id"] for row in rows}
        assert own.startswith("refresh-an-old-observation-") and OWN_ID.fullmatch(own)
        marks = {one["adapter_detail"].get("correlation_id") for one in stage.read("/members")}
        assert own not in marks, "a look is not work on a member"
    finally:
        stage.close()
