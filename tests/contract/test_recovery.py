"""Recovery by commands: another access credential, and the retry of a failed deploy."""

import uuid

import pytest

from runner.loop import tick
from sandbox.fleet.keys import KeyPair
from tests.commands import ends
from tests.contract.simulated_hosts import Hosts, run_once, work
from tests.platform_process import Project
from tests.runner_process import answer, environment, gpuaas_slurm


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Hosts:
    """Simulated hosts; the ssh key is delivered for real."""
    made = Hosts()
    monkeypatch.setattr(tick, "play", made.play)
    return made


@pytest.fixture
def keyed(dialable: Project) -> Project:
    """A project whose credential holds a real key."""
    private = KeyPair.generate().private
    dialable.platform.control.put_credential(
        dialable.project_id, dialable.credential_id, username="ops", private_key=private
    )
    return dialable


def another(project: Project) -> str:
    made = str(uuid.uuid4())
    project.platform.control.put_credential(
        project.project_id, made, username="ops", private_key=KeyPair.generate().private
    )
    return made


def revoke(project: Project) -> None:
    project.platform.control.set_credential_status(project.project_id, project.credential_id, "revoked")


def run(project: Project) -> None:
    assert work(project, observe_seconds=0) == []


def delivered(project: Project, since: int) -> list[str]:
    rows = project.platform.control.requests(since)["requests"]
    return [row["path"].split("/")[-2] for row in rows if row["path"].endswith("/deliveries")]


def test_a_deploy_that_failed_by_its_credential_succeeds_with_another(keyed: Project, hosts: Hosts) -> None:
    revoke(keyed)
    made = keyed.deploy(workers=2)
    run(keyed)
    instance = keyed.shown(made)
    assert (instance["status"], instance["status_detail"]["reasons"][0]["code"]) == ("failed", "credential_unavailable")
    new, variables = another(keyed), environment(keyed)
    assert answer(variables, "configure", made["id"], "--access-credential", new)["access_credential_id"] == new
    asked = answer(variables, "op", "retry", made["id"])
    mark = keyed.platform.control.requests()["last"]

    run(keyed)

    assert keyed.shown(made)["status"] == "running" and set(delivered(keyed, mark)) == {new}
    assert {one["status"] for one in keyed.shown(made, "/members")} == {"ready"}
    (ended,) = keyed.shown(made, "/operations")
    assert (ended["id"], ended["status"]) == (asked["id"], "succeeded") and len(ended["result"]["members"]) == 2
    assert [play for _, play, ids in hosts.runs if ids] == ["deploy"], "what failed is played once"


def test_a_running_cluster_takes_another_credential_at_the_next_tick(keyed: Project, hosts: Hosts) -> None:
    made = keyed.deploy(workers=1)
    run(keyed)
    revoke(keyed)
    run(keyed)
    assert keyed.shown(made)["health"] == "unknown"
    new, before = another(keyed), keyed.shown(made)
    changed = answer(environment(keyed), "configure", made["id"], "--access-credential", new)
    assert (changed["config"], changed["app_version"]) == (before["config"], before["app_version"])
    mark = keyed.platform.control.requests()["last"]
    run(keyed)
    assert keyed.shown(made)["health"] == "healthy" and set(delivered(keyed, mark)) == {new}


def test_an_instance_that_is_deleting_takes_another_credential_and_nothing_else(keyed: Project) -> None:
    made, variables = keyed.deploy(workers=0), environment(keyed)
    assert keyed.operator.call("DELETE", f"{keyed.path}/app-instances/{made['id']}").status_code == 202
    new = another(keyed)
    assert answer(variables, "configure", made["id"], "--access-credential", new)["access_credential_id"] == new
    ends(gpuaas_slurm(variables, "configure", made["id"], "--slurm", "KillWait=9"), 2)


@pytest.mark.parametrize("what", ["unknown", "another project's", "no id"])
def test_a_credential_that_is_not_the_projects_is_refused(keyed: Project, what: str) -> None:
    made = keyed.deploy(workers=0)
    given = {
        "unknown": str(uuid.uuid4()),
        "another project's": keyed.platform.project().credential_id,
        "no id": "my-key",
    }[what]
    refused = gpuaas_slurm(environment(keyed), "configure", made["id"], "--access-credential", given)
    ends(refused, 2)
    assert "credential" in refused.stderr and "Traceback" not in refused.stderr
    assert keyed.shown(made)["access_credential_id"] == keyed.credential_id


def test_a_service_account_does_not_choose_the_credential(keyed: Project) -> None:
    made = keyed.deploy(workers=0)
    body = {"access_credential_id": another(keyed)}
    refused = keyed.adapter.patch(f"{keyed.path}/app-instances/{made['id']}", body)
    assert (refused.status_code, refused.json()["code"]) == (403, "ownership_required")


def test_a_retry_of_what_has_not_failed_is_refused(keyed: Project, hosts: Hosts) -> None:
    made, variables = keyed.deploy(workers=1), environment(keyed)
    run(keyed)
    played = len(hosts.runs)
    answer(variables, "op", "retry", made["id"])
    assert run_once(keyed).failed_operations == 1
    (ended,) = keyed.shown(made, "/operations")
    assert (ended["status"], ended["error"]["code"]) == ("failed", "instance_state")
    assert keyed.shown(made)["status"] == "running" and len(hosts.runs) == played
