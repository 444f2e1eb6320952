"""`gaps` walks over the API with the runner's identity and shows what differs; a runner logs each gap once."""

import json
from pathlib import Path
from typing import Any

import pytest

from runner.platform.evidence import GAP_LINE
from tests.commands import ends
from tests.log_lines import named, read_lines
from tests.other_contract import other_platform
from tests.platform_process import Platform, Project, action_keys
from tests.runner_process import answer, environment, gpuaas_slurm


def met(project: Project, code: int, **variables: str) -> list[dict[str, Any]]:
    done = gpuaas_slurm(environment(project, **variables), "gaps", "--json")
    ends(done, code)
    found: list[dict[str, Any]] = json.loads(done.stdout)["met"]
    return found


def test_a_platform_that_keeps_to_the_contract_has_no_gap_and_nothing_is_written(project: Project) -> None:
    project.deploy()
    mark = project.platform.control.requests()["last"]
    assert met(project, 0) == []
    rows = project.platform.control.requests(mark)["requests"]
    assert {row["method"] for row in rows if "/auth/" not in row["path"]} == {"GET"}
    assert {row["principal"] for row in rows} == {project.service_account["service_account_id"], None}
    read = {row["template"] for row in rows}
    below = "/projects/{project_id}/app-instances/{app_instance_id}"
    assert read >= {below, f"{below}/members/{{member_id}}", f"{below}/member-operations/{{operation_id}}"}
    assert read >= {f"{below}/events", f"{below}/operations", "/projects/{project_id}/allocations/{allocation_id}"}


def test_what_differs_is_shown_by_call_and_kind(project: Project) -> None:
    project.deploy()
    control = project.platform.control
    control.inject_fault("strip_etags", "/members$", times=100)
    control.inject_fault("status", "/events$", status=404, body={"code": "route_not_found"})
    control.inject_fault("garbage", "/operations$", times=100)
    found = {(one["call"], one["kind"]) for one in met(project, 1, GPUAAS_API_PATIENCE_SECONDS="0")}
    below = "/projects/{id}/app-instances/{id}"
    assert found == {
        (f"GET {below}/members", "platform_primitive"),
        (f"GET {below}/events", "read_surface"),
        (f"GET {below}/operations", "read_surface"),
    }
    shown = gpuaas_slurm(environment(project, GPUAAS_API_PATIENCE_SECONDS="0"), "gaps")
    ends(shown, 1)
    assert "met now: 2" in shown.stdout, "the fault of the events is over"


def test_a_right_that_is_missing_is_a_gap_and_an_absent_platform_an_error(platform: Platform) -> None:
    keys = [key for key in action_keys("service_account") if key != "scheduler.node.read"]
    project = platform.project(adapter_keys=keys)
    project.deploy()
    found = met(project, 1)
    assert {(one["kind"], one["pilot"]) for one in found} == {("permission", "action_key")}
    gone = gpuaas_slurm(environment(project, GPUAAS_BASE_URL="http://127.0.0.1:9"), "gaps")
    ends(gone, 2)
    assert "no answer" in gone.stderr and "environment" in gone.stdout and "Traceback" not in gone.stderr


def test_known_gaps_need_no_settings() -> None:
    found = answer({}, "gaps", "--known")
    assert len(found["known"]) >= 10 and found["met"] == []


def test_a_runner_logs_a_gap_once_however_often_it_meets_it(project: Project) -> None:
    project.deploy()
    project.platform.control.set_allocation_status(project.project_id, project.allocation_ids[0], "released")
    project.platform.control.inject_fault("strip_etags", "/members", times=1000)
    done = gpuaas_slurm(environment(project, GPUAAS_LOG_FORMAT="json"), "run")
    lines = named(read_lines(done.stderr), GAP_LINE)
    calls = [line["call"] for line in lines]
    assert calls and len(calls) == len(set(calls))
    assert {line["level"] for line in lines} == {"warning"}


@pytest.mark.parametrize("mapped", [True, False])
def test_a_mapping_file_makes_a_gap_a_name(project: Project, tmp_path: Path, mapped: bool) -> None:
    project.deploy()
    with other_platform(project.platform.base_url) as other:
        variables = other.variables(project, tmp_path)
        if mapped:
            assert met(project, 0, **variables) == []
        else:
            variables |= {"GPUAAS_CONTRACT": str(tmp_path / "empty.toml")}
            (tmp_path / "empty.toml").write_text("")
            (gap,) = met(project, 2, **variables)
            assert (gap["call"], gap["kind"]) == ("POST /auth/service-account/token", "platform_primitive")


def test_commands_of_a_person_work_under_another_contract(project: Project, tmp_path: Path) -> None:
    with other_platform(project.platform.base_url) as other:
        variables = environment(project, **other.variables(project, tmp_path))
        first, second = project.allocation_ids[:2]
        made = answer(variables, "deploy", "--controller", first, "--workers", second, "--name", "mine")
        assert project.shown(made)["placement_intent"]["worker_allocation_ids"] == [second]
        (listed,) = answer(variables, "get", "instances")
        assert (listed["id"], listed["app_slug"]) == (made["id"], project.shown(made)["app_slug"])
        (member,) = answer(variables, "get", "members")
        asked = answer(variables, "op", "drain", "mine", "--members", member["id"], "-p", "reason=disk")
        assert (asked["operation"], asked["member_ids"]) == ("drain", [member["id"]])
        wrong = gpuaas_slurm(variables, "status", "--instance", "nowhere")
        ends(wrong, 2)
        assert all("/platform/v2/" not in call and "auth" not in call for call in other.asked)
