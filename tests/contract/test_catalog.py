"""The app in the catalog: versions are published once, chosen at a deploy, and an instance moves between them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.simulated_hosts import Hosts, work
from tests.platform_process import Doc, Project, our_manifest
from tests.runner_process import answer, environment, gpuaas_slurm

OURS = our_manifest()["version"]
OTHER = "9.0.0"


@pytest.fixture
def slug(request: pytest.FixtureRequest) -> str:
    """An app of its own for each test: a version stays in the catalog."""
    return f"app-{abs(hash(request.node.name)) % 10**9}"


@pytest.fixture
def variables(dialable: Project, slug: str) -> dict[str, str]:
    return environment(dialable, GPUAAS_APP_SLUG=slug)


def manifest(tmp_path: Path, slug: str, version: str = OURS, **changes: Any) -> str:
    path = tmp_path / f"{version}.yaml"
    path.write_text(yaml.safe_dump(our_manifest() | {"app_slug": slug, "version": version} | changes))
    return str(path)


def published(variables: dict[str, str], path: str) -> Doc:
    found: Doc = answer(variables, "app", "publish", "--manifest", path)
    return found


def with_colour(schema: Doc) -> Doc:
    """The deploy's input of a version that takes one more field."""
    grown: Doc = json.loads(json.dumps(schema))
    grown["properties"]["config"]["properties"]["colour"] = {"enum": ["red", "blue"]}
    return grown


def test_a_version_is_published_once_and_the_same_again_changes_nothing(
    dialable: Project, variables: dict[str, str], slug: str, tmp_path: Path
) -> None:
    path = manifest(tmp_path, slug)
    first, again = published(variables, path), published(variables, path)
    assert (first["valid"], first["published"], again["published"]) == (True, True, False)
    seen = dialable.operator.get(f"/apps/{slug}").json()
    assert (seen["version"], seen["versions"]) == (OURS, [OURS])


def test_another_content_of_a_published_version_is_refused(
    dialable: Project, variables: dict[str, str], slug: str, tmp_path: Path
) -> None:
    published(variables, manifest(tmp_path, slug))
    before = dialable.operator.get(f"/apps/{slug}").json()
    refused = gpuaas_slurm(
        variables, "app", "publish", "--manifest", manifest(tmp_path, slug, display_name="Changed"), "--json"
    )
    assert refused.returncode == 1
    body = json.loads(refused.stdout)
    assert (body["published"], len(body["problems"])) == (False, 1) and "raise `version`" in body["problems"][0]
    assert dialable.operator.get(f"/apps/{slug}").json() == before


def test_a_manifest_with_problems_is_not_sent(
    dialable: Project, variables: dict[str, str], slug: str, tmp_path: Path
) -> None:
    mark = dialable.platform.control.requests()["last"]
    path = manifest(tmp_path, slug, first_member={"component_key": "captain", "allocation_from": "config.ship"})
    for command in ("validate", "publish"):
        ended = gpuaas_slurm(variables, "app", command, "--manifest", path)
        assert ended.returncode == 1 and "component 'captain' is not in member_operations" in ended.stderr
    assert dialable.platform.control.requests(mark)["requests"] == []


def test_without_the_catalogs_key_nothing_is_published(dialable: Project, slug: str, tmp_path: Path) -> None:
    token = dialable.platform.control.operator_token(dialable.project_id, "reader", ["scheduler.catalog.read"])
    own = environment(dialable, GPUAAS_OPERATOR_TOKEN=token)
    refused = gpuaas_slurm(own, "app", "publish", "--manifest", manifest(tmp_path, slug))
    assert refused.returncode == 2 and "catalog.publish" in refused.stderr
    assert dialable.operator.get(f"/apps/{slug}").json()["code"] == "app_not_found"


def test_the_platform_itself_refuses_a_malformed_version_and_one_of_another_app(dialable: Project, slug: str) -> None:
    body = our_manifest() | {"app_slug": slug}
    for wrong, path in ((body | {"first_member": {}}, slug), (body, "another-app"), ({"app_slug": slug}, slug)):
        assert dialable.operator.post(f"/apps/{path}/versions", wrong).status_code == 400
    assert dialable.operator.get(f"/apps/{slug}").json()["code"] == "app_not_found"


def test_the_newest_version_is_the_highest_and_all_can_be_deployed(
    dialable: Project, variables: dict[str, str], slug: str, tmp_path: Path
) -> None:
    for version in ("1.9.0", "1.10.0", "1.9.1"):
        published(variables, manifest(tmp_path, slug, version))
    listed = answer(variables, "app", "list")
    assert (listed["version"], listed["versions"]) == ("1.10.0", ["1.9.0", "1.9.1", "1.10.0"])
    assert f"{slug} 1.9.1" in gpuaas_slurm(variables, "app", "list").stdout.splitlines()
    made = answer(variables, "deploy", "--controller", dialable.allocation_ids[0], "--app-version", "1.9.1")
    assert made["app_version"] == "1.9.1"


def test_a_deploy_of_a_version_that_is_not_offered_lists_those_that_are(
    dialable: Project, variables: dict[str, str], slug: str, tmp_path: Path
) -> None:
    published(variables, manifest(tmp_path, slug, OTHER))
    refused = gpuaas_slurm(variables, "deploy", "--controller", dialable.allocation_ids[0])
    assert refused.returncode == 2 and f"has no version {OURS} of {slug}" in refused.stderr and OTHER in refused.stderr


def test_a_deploy_takes_its_credential_and_service_account_as_options(dialable: Project) -> None:
    variables = environment(dialable)
    account, credential = variables.pop("GPUAAS_SERVICE_ACCOUNT_ID"), variables.pop("GPUAAS_ACCESS_CREDENTIAL_ID")
    deploy = ("deploy", "--controller", dialable.allocation_ids[0])
    missing = gpuaas_slurm(variables, *deploy)
    assert missing.returncode == 2 and "--access-credential" in missing.stderr
    odd = gpuaas_slurm(variables, *deploy, "--access-credential", "mine")
    assert odd.returncode == 2 and "'mine' is not the id of an access credential" in odd.stderr
    made = answer(variables, *deploy, "--access-credential", credential, "--operator-account", account)
    seen = dialable.shown(made)
    assert (seen["access_credential_id"], seen["operator_service_account_id"]) == (credential, account)


def test_an_instance_moves_to_another_version_and_back(
    dialable: Project, hosts: Hosts, variables: dict[str, str], slug: str, tmp_path: Path
) -> None:
    schema = our_manifest()["deploy_input"]
    published(variables, manifest(tmp_path, slug))
    published(variables, manifest(tmp_path, slug, OTHER, deploy_input=with_colour(schema)))
    made = answer(variables, "deploy", "--controller", dialable.allocation_ids[0], "--app-version", OURS)

    def tick() -> Doc:
        for _ in range(2):
            assert work(dialable, app_slug=slug, observe_seconds=0) == []
        found: Doc = dialable.shown(made)
        return found

    def reasons(instance: Doc) -> list[str]:
        return [one["code"] for one in instance["status_detail"]["reasons"]]

    before = tick()
    assert (before["status"], before["health"], reasons(before)) == ("running", "healthy", [])
    hosts.runs.clear()
    assert answer(variables, "configure", made["id"], "--app-version", OTHER)["app_version"] == OTHER
    moved = tick()
    assert (moved["status"], moved["health"], reasons(moved)) == ("running", "healthy", ["app_version_differs"])
    (reason,) = moved["status_detail"]["reasons"]
    assert f"version {OURS}, older than the instance's app_version {OTHER}" in reason["message"]
    assert moved["status_detail"]["config_digest"] != before["status_detail"]["config_digest"], (
        "it was tried and loaded"
    )
    assert {playbook for _, playbook, _ in hosts.runs} == {"deploy", "observe"}, "Slurm's packages stay as they are"

    assert answer(variables, "configure", made["id"], "--app-version", OURS)["app_version"] == OURS
    back = tick()
    assert (back["health"], reasons(back)) == ("healthy", [])
    assert back["status_detail"]["config_digest"] == before["status_detail"]["config_digest"]
    assert dialable.shown(made, "/operations") == [], "a move needs no operation"


def test_a_version_that_does_not_take_the_instances_input_is_refused(
    dialable: Project, variables: dict[str, str], slug: str, tmp_path: Path
) -> None:
    grown = with_colour(our_manifest()["deploy_input"])
    published(variables, manifest(tmp_path, slug))
    published(variables, manifest(tmp_path, slug, OTHER, deploy_input=grown))
    made = dialable.operator.post(
        f"{dialable.path}/app-instances",
        {
            "app_slug": slug,
            "app_version": OTHER,
            "placement_intent": {
                "mode": "split",
                "controller_allocation_id": dialable.allocation_ids[0],
                "worker_allocation_ids": [],
            },
            "config": {"colour": "red"},
            "access_credential_id": dialable.credential_id,
        },
    ).json()
    refused = gpuaas_slurm(variables, "configure", made["id"], "--app-version", OURS)
    assert refused.returncode == 2 and "does not accept this input" in refused.stderr
    missing = gpuaas_slurm(variables, "configure", made["id"], "--app-version", "8.0.0")
    assert missing.returncode == 2 and f"It offers: {OURS}, {OTHER}" in missing.stderr
    assert dialable.shown(made)["app_version"] == OTHER
