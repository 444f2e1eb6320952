"""`explain` answers from the API alone, by the correlation id that every requester gets."""

from runner.cli import request_state
from tests.commands import ends
from tests.platform_process import Platform, Project
from tests.runner_process import answer, environment, gpuaas_slurm


def test_a_request_is_explained_by_its_correlation_id(platform: Platform, project: Project) -> None:
    made = project.deploy()
    variables = environment(project)
    # The allocations cannot be dialled, so the deploy fails before any host is touched.
    ends(gpuaas_slurm(variables, "run"), 1)
    (explained,) = answer(variables, "explain", made["correlation_id"])
    assert explained["instance"]["id"] == made["id"]
    assert (explained["instance"]["status"], explained["instance"]["health"]) == ("failed", "unhealthy")
    assert made["correlation_id"] in explained["correlation_ids"]
    assert {one["operation"] for one in explained["operations"]} == {"add"}
    assert {one["status"] for one in explained["operations"]} == {"failed"}
    controller = next(one for one in explained["members"] if one["name"].startswith("controller-"))
    assert controller["error"]["code"] == explained["instance"]["reasons"][0]["code"]
    assert {one["type"] for one in explained["events"]} >= {"apps.instance.failed"}
    shown = gpuaas_slurm(variables, "explain", made["correlation_id"][:12])
    ends(shown, 0)
    for word in ("correlation ", "instance ", "operation ", "member ", "runtime ", controller["error"]["code"]):
        assert word in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 100
    assert explained["next"] == request_state.next_step(controller["error"]["code"])
    times = [one["at"][:19] for one in explained["story"] if one["at"]]
    assert times == sorted(times) and explained["story"][0]["kind"] == "asked"


def test_a_later_request_is_explained_by_its_own_id_with_its_own_members(platform: Platform, project: Project) -> None:
    made = project.deploy()
    variables = environment(project)
    asked = answer(variables, "op", "add", made["id"], "--allocations", project.allocation_ids[-1])
    (explained,) = answer(variables, "explain", asked["correlation_id"])
    assert explained["instance"]["id"] == made["id"]
    assert asked["id"] in {one["id"] for one in explained["operations"]}


def test_explain_of_an_unknown_id_is_an_error(project: Project) -> None:
    project.deploy()
    done = gpuaas_slurm(environment(project), "explain", "no-such-correlation")
    ends(done, 2)
    assert "no-such-correlation" in done.stderr
