"""The verbs of `gpuaas-slurm shared`: what an administrator and a project request, and what they read."""

import json
import subprocess
from typing import Any

from tests.commands import ends
from tests.contract.shared_runtime import ANN, account, dialable, read, work
from tests.contract.simulated_hosts import Hosts
from tests.platform_process import Project
from tests.runner_process import COMMAND, gpuaas_slurm, inherited
from tests.tenant import Tenant, delivery, new_tenant, refusal


def administrator(tenant: Tenant, **changes: str) -> dict[str, str]:
    """The settings of the tenant's administrator, who names no runtime."""
    return {
        "GPUAAS_BASE_URL": tenant.platform.base_url,
        "GPUAAS_ORG_ID": tenant.org_id,
        "GPUAAS_OPERATOR_TOKEN": tenant.admin.token or "",
        **changes,
    }


def of_project(project: Project) -> dict[str, str]:
    return {
        "GPUAAS_BASE_URL": project.platform.base_url,
        "GPUAAS_PROJECT_ID": project.project_id,
        "GPUAAS_OPERATOR_TOKEN": project.operator_token,
    }


def output_of(variables: dict[str, str], *arguments: str, code: int = 0) -> str:
    done = gpuaas_slurm(variables, "shared", *arguments)
    ends(done, code)
    return done.stdout + done.stderr


def who(tenant: Tenant) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output_of(administrator(tenant), "who", "--json"))
    return found


def test_a_project_is_attached_allowed_limited_suspended_and_detached(running: Tenant, hosts: Hosts) -> None:
    admin, project = administrator(running), running.bare_project()
    running.platform.control.set_identities(project.project_id, [ANN])
    short = project.project_id[:13]
    shown = output_of(admin, "attach", project.project_id)
    assert f"project {running.owner.project_id} pays for 1 controller, 1 reserved worker" in shown
    assert "may not submit yet" in shown and "next: " in shown

    output_of(admin, "allow", short)
    output_of(admin, "limit", short, "--gpus", "4", "--jobs", "2")
    output_of(admin, "limit", short, "--jobs=-1")
    work(running)
    (row,) = who(running)["projects"]
    assert (row["submits"], row["partitions"], row["limits"]) == ("yes", "main", "gpus 4")
    assert (row["account"], hosts.may_submit(account(project))) == (account(project), True)
    bundle = json.loads(output_of(admin, "access", short, "--json")) if read(running)["access"] else None
    assert bundle is None or bundle["account"] == account(project)

    output_of(admin, "suspend", short)
    work(running)
    assert who(running)["projects"][0]["submits"] == "no" and not hosts.may_submit(account(project))
    output_of(admin, "resume", short)
    work(running)
    assert hosts.may_submit(account(project))
    output_of(admin, "deny", short)
    work(running)
    assert "does not allow" in who(running)["projects"][0]["why"]
    output_of(admin, "detach", short, "--cancel-jobs")
    work(running)
    assert who(running)["projects"][0]["status"] == "detached"


def test_jobs_lead_back_to_project_and_identity_after_a_rename_and_a_detach(running: Tenant) -> None:
    admin, project = administrator(running), running.bare_project()
    running.platform.control.set_identities(project.project_id, [ANN])
    output_of(admin, "attach", project.project_id)
    work(running)
    running.platform.control.set_identities(project.project_id, [{**ANN, "username": "anna"}])
    work(running)
    assert "cancelled at 20" in output_of(admin, "detach", project.project_id, "--deadline", "3600")
    (asked,) = running.items("attachments")
    assert asked["status"] == "detaching" and list(asked["detach_parameters"]) == ["cancel_jobs_at"]
    work(running)
    rows = f"JobID|Account|User|JobName\n7|{account(project)}|ann|a|b\n8|made_by_hand|eve|x\n"
    command = [COMMAND, "shared", "jobs"]
    done = subprocess.run(
        command, input=rows, env={**inherited(), **admin}, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout)
    assert (first["project_id"], first["subject"], first["JobName"]) == (project.project_id, "oidc|ann", "a|b")
    assert (second["project_id"], second["subject"]) == (None, None)


def test_the_common_commands_find_the_administrators_only_runtime(running: Tenant) -> None:
    admin, spare = administrator(running), running.owner.allocation_ids[2]
    for command in (("status",), ("get", "members"), ("get", "operations"), ("get", "allocations")):
        ends(gpuaas_slurm(admin, *command), 0)
    (worker,) = [one for one in running.items("workers") if one["component_key"] == "worker"]
    for verb, *options in (
        ("add", "--allocations", spare[:13]),
        ("drain", "--members", worker["id"][:8]),
        ("stop",),
    ):
        done = gpuaas_slurm(admin, "op", verb, running.runtime["id"][:8], *options, "--json")
        asked = json.loads(ends(done, 0).stdout)
        kind = "worker-operations" if options else "operations"
        assert read(running, f"{running.path}/{kind}/{asked['id']}")["operation"] == verb
    requested = [one for one in running.items("worker-operations") if one["operation"] == "add"]
    assert requested[-1]["allocation_ids"] == [spare]


def test_a_mistake_is_answered_with_what_to_do(running: Tenant, project: Project) -> None:
    admin = administrator(running)
    for arguments, words in (
        (("allow", "0000"), "Choose one of: none"),
        (("attach", "short"), "pass the whole id"),
        (("attach", running.owner.project_id, "--trusted-contributor"), "--may-contribute"),
        (("limit", "0000"), "no limit is given"),
        (("detach", "0000", "--cancel-jobs", "--deadline", "5"), "leave --deadline out"),
        (("allow", "0000", "--partition", "gold"), "use main or own"),
    ):
        assert words in output_of(admin, *arguments, code=2), arguments
    assert "for the tenant's administrator: set GPUAAS_ORG_ID" in output_of(of_project(project), "who", code=2)
    ids = ("--org", running.org_id, "--runtime", running.runtime["id"])
    asked = ("contribute", "--allocations", running.runtime["id"], "--access-credential", running.runtime["id"], *ids)
    assert "for a project: set GPUAAS_PROJECT_ID" in output_of(admin, *asked, code=2)
    done = gpuaas_slurm(admin, "run")
    assert done.returncode == 2 and "GPUAAS_SHARED_RUNTIME_ID: is not set" in done.stderr


def test_only_the_tenants_administrator_uses_the_commands_of_one(running: Tenant) -> None:
    project, other = running.project(), new_tenant(running.platform, deployed=False)
    running.attach(project)
    before = running.items("attachments")
    ids = {"GPUAAS_SHARED_RUNTIME_ID": running.runtime["id"]}
    for token in (project.operator_token, other.admin.token, running.operator.token, running.owner.operator_token):
        caller = administrator(running, **ids, GPUAAS_OPERATOR_TOKEN=token or "")
        for command in (
            ("attach", running.bare_project().project_id),
            ("allow", project.project_id),
            ("limit", project.project_id, "--gpus", "1"),
            ("suspend", project.project_id),
            ("detach", project.project_id, "--cancel-jobs"),
        ):
            since = running.platform.control.requests()["last"]
            output_of(caller, *command, code=2)
            last = running.platform.control.requests(since=since)["requests"][-1]
            assert last["status"] in (403, 409), (command, last)
    assert running.items("attachments") == before


def test_a_project_contributes_a_worker_and_withdraws_it(running: Tenant, hosts: Hosts) -> None:
    project = running.project(allocations=1)
    dialable(project, first=90)
    admin, ids = administrator(running), ("--org", running.org_id, "--runtime", running.runtime["id"])
    asked = ("contribute", "--allocations", *project.allocation_ids, "--access-credential", project.credential_id, *ids)
    shown = output_of(admin, "attach", project.project_id, "--may-contribute")
    assert "munge key" in shown
    work(running)
    eligible = json.loads(output_of(admin, "allocations", "--json"))
    assert project.project_id in {one["project_id"] for one in eligible}
    requested = output_of(of_project(project), *asked)
    assert "munge key" in requested and f"project {project.project_id} goes on paying" in requested
    work(running)
    (ended,) = [one for one in running.items("worker-operations") if one["source_project_id"] == project.project_id]
    assert (ended["status"], ended["access_credential_id"]) == ("succeeded", project.credential_id)
    (worker,) = [one for one in running.items("workers") if one["source_project_id"] == project.project_id]
    assert worker["status"] == "ready"
    work(running)
    assert account(project) in hosts.projects["partitions"], "its partition is known, and closed"
    assert not hosts.may_submit(account(project), account(project)), "no policy lets them in"
    paid = {one["project_id"]: one for one in who(running)["charges"]}
    assert paid[project.project_id]["contributed_workers"] == 1

    output_of(of_project(project), "withdraw", "--members", worker["id"], *ids)
    work(running)
    (gone,) = [one for one in running.items("workers") if one["source_project_id"] == project.project_id]
    assert gone["status"] == "deleted"
    assert refusal(delivery(running, project.credential_id)) == (404, "access_credential_not_found")


def test_a_shared_cluster_is_requested_and_a_second_one_is_refused(running: Tenant) -> None:
    fresh = new_tenant(running.platform, deployed=False)
    owner = fresh.owner
    asked = (
        *("deploy", "--owner", owner.project_id, "--controller", owner.allocation_ids[0]),
        *("--workers", owner.allocation_ids[1], "--access-credential", owner.credential_id),
    )
    shown = output_of(administrator(fresh), *asked)
    assert f"project {owner.project_id} pays for 1 controller and 1 reserved worker" in shown
    assert "a second one is refused" in output_of(administrator(fresh), *asked, code=2)
