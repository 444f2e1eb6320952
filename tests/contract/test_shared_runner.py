"""The runner serves a shared runtime of the sandbox platform as it serves an instance, with simulated hosts."""

from typing import Any

from runner.loop import run as loop
from runner.platform.client import Client
from runner.slurm.app import SLURM
from tests.contract.shared_runtime import ALLOWED, ANN, account, change, dialable, read, work
from tests.contract.simulated_hosts import Hosts
from tests.platform_process import Doc, Platform
from tests.runner_process import settings
from tests.tenant import Tenant, new_tenant


def test_a_shared_runtime_is_deployed_by_the_same_code_as_an_instance(running: Tenant, hosts: Hosts) -> None:
    shown = read(running)
    assert (shown["status"], shown["health"]) == ("running", "healthy")
    assert [one["status"] for one in running.items("workers")] == ["ready", "ready"]
    assert [one["status"] for one in running.items("worker-operations")] == ["succeeded"]
    assert [one["type"] for one in running.items("events")][-1] == "apps.instance.running"
    assert [playbook for _, playbook in hosts.order] == ["deploy", "follow_attachments"]
    assert hosts.misnumbered() == [] and hosts.overlaps == []


def requests_of(tenant: Tenant, **changes: Any) -> list[Doc]:
    """The requests of one run."""
    control = tenant.platform.control
    before = control.requests()["last"]
    work(tenant, **changes)
    found: list[Doc] = control.requests(since=before)["requests"]
    return [row for row in found if not row["path"].startswith("/sandbox/")]


def test_the_runner_calls_nothing_outside_of_its_runtime(running: Tenant) -> None:
    running.attach(running.bare_project(), active=False)
    rows = requests_of(running, observe_seconds=0)
    tokens = [row for row in rows if row["path"].endswith("/auth/shared-runtime-operator/token")]
    assert len(tokens) == 1
    assert [row["path"] for row in rows if row not in tokens and running.path not in row["path"]] == []


def test_attach_allow_suspend_and_detach_follow_the_attachment(running: Tenant, hosts: Hosts) -> None:
    project = running.bare_project()
    running.platform.control.set_identities(project.project_id, [ANN])
    path = running.attach(project, active=False)
    work(running)
    shown = read(running, path)
    assert (shown["status"], shown["adapter_detail"]["granted"]["submission"]) == ("active", "closed")
    assert not hosts.may_submit(account(project)), "attached is not allowed"

    change(running, path, app_policy=ALLOWED)
    work(running)
    assert hosts.may_submit(account(project)) and read(running, path)["health"] == "healthy"
    assert hosts.projects["accounts"][0]["users"] == ["ann"]
    done = hosts.followed

    change(running, path, status="suspended")
    work(running)
    assert not hosts.may_submit(account(project)) and hosts.followed == done + 1

    hosts.busy_accounts = [account(project)]
    change(running, path, status="detaching")
    work(running)
    assert "jobs of the project" in read(running, path)["status_detail"]["waiting"]
    assert read(running, path)["status"] == "detaching"


def test_an_idle_tick_costs_one_request_more_than_a_projects(running: Tenant) -> None:
    running.attach(running.bare_project(), active=False)
    work(running)
    rows = requests_of(running)
    assert [row["template"].rpartition("/")[2] for row in rows] == [
        "token",
        "{shared_runtime_id}",
        "worker-operations",
        "operations",
        "attachments",
    ]


def test_a_runner_of_one_runtime_touches_no_other(running: Tenant, platform: Platform, hosts: Hosts) -> None:
    other = new_tenant(platform, deployed=False)
    dialable(other.owner, first=50)
    other.deploy(workers=1)
    plays = len(hosts.order)
    work(running)
    assert read(other)["status"] == "requested" and len(hosts.order) == plays


def test_runners_of_two_tenants_and_of_a_project_stay_on_their_own_paths(
    running: Tenant, platform: Platform, hosts: Hosts
) -> None:
    other, beside = new_tenant(platform, deployed=False), running.project()
    dialable(other.owner, first=50)
    other.deploy(workers=1)
    dialable(beside, first=100)
    instance = beside.deploy(workers=1)
    for tenant in (running, other):
        tenant.attach(tenant.bare_project(), active=False)
        assert foreign(requests_of(tenant, observe_seconds=0), tenant.path) == []
    before, own = platform.control.requests()["last"], settings(beside)
    with Client(own) as client:
        assert loop.run(client, own, SLURM).problems == []
    assert foreign(platform.control.requests(since=before)["requests"], beside.path) == []
    assert [read(one)["status"] for one in (running, other)] == ["running", "running"]
    assert beside.shown(instance)["status"] == "running" and hosts.overlaps == []


def foreign(rows: list[Doc], own: str) -> list[str]:
    """Paths of requests that are neither a login nor below the runner's own path; Vault's have its role's limits."""
    paths = [row["path"] for row in rows]
    assert any(own in path for path in paths)
    return [path for path in paths if own not in path and "/auth/" not in path and not path.startswith("/v1/")]


def test_a_project_that_leaves_the_tenant_is_closed_and_detached_after_its_jobs(running: Tenant, hosts: Hosts) -> None:
    leaves, stays = running.bare_project(), running.bare_project()
    running.platform.control.set_identities(leaves.project_id, [ANN])
    paths = [running.attach(one, active=False, app_policy=ALLOWED) for one in (leaves, stays)]
    work(running)
    assert hosts.may_submit(account(leaves)) and hosts.may_submit(account(stays))
    hosts.busy_accounts = [account(leaves)]
    running.platform.control.leave_tenant(leaves.project_id)
    work(running)
    assert (hosts.may_submit(account(leaves)), hosts.may_submit(account(stays))) == (False, True)
    assert read(running, paths[0])["status_detail"]["waiting"] == "jobs of the project that have not ended"
    hosts.busy_accounts = []
    work(running, observe_seconds=0)
    assert [read(running, path)["status"] for path in paths] == ["detached", "active"]
    assert [one["type"] for one in running.items("events")][-1] == "apps.attachment.detached"


def test_a_runtime_is_not_decommissioned_under_its_projects(running: Tenant) -> None:
    project = running.bare_project()
    running.attach(project, active=False)
    work(running)
    asked = running.admin.post(f"{running.path}/operations", {"operation": "decommission"}).json()
    work(running)
    shown = read(running, f"{running.path}/operations/{asked['id']}")
    assert (shown["status"], shown["error"]["code"]) == ("failed", "projects_attached")
    assert project.project_id in shown["error"]["message"] and read(running)["status"] == "running"
