"""Who may use an app, and where: as the platform keeps it. What the adapter makes of it: test_placement_policy.py."""

import pytest

from tests.platform_process import ApiClient, Project, our_manifest, person_keys
from tests.tenant import Tenant, refusal

SLUG = our_manifest()["app_slug"]
UNLIMITED = {"regions": None, "skus": None}


@pytest.fixture
def administrator(project: Project) -> Tenant:
    token = project.platform.control.administrator_token(project.org_id, "admin", person_keys())
    return Tenant(project.platform, project, ApiClient(project.platform.base_url, token))


def statuses(project: Project) -> dict[str, str]:
    listed = project.adapter.get(f"{project.path}/entitlements").json()["items"]
    return {one["app_slug"]: one["status"] for one in listed}


def test_a_new_project_may_use_every_app_without_limits(project: Project) -> None:
    assert statuses(project)[SLUG] == "enabled"
    (one,) = project.operator.get(f"{project.path}/entitlements?app_slug={SLUG}").json()["items"]
    assert (one["project_id"], one["policy"]) == (project.project_id, UNLIMITED)
    assert project.deploy()["effective_policy"] == UNLIMITED


def test_an_administrator_disables_an_app_and_a_deploy_is_refused(project: Project, administrator: Tenant) -> None:
    path, body = f"/orgs/{project.org_id}/entitlements", {"project_id": project.project_id, "app_slug": SLUG}
    off = administrator.admin.post(path, {**body, "status": "disabled"})
    assert (off.status_code, off.json()["status"]) == (200, "disabled")
    with pytest.raises(AssertionError, match="entitlement_required"):
        project.deploy()
    assert administrator.admin.post(path, {**body, "status": "enabled"}).json()["id"] == off.json()["id"]
    assert project.deploy()["status"] == "requested"


def test_only_an_administrator_of_its_tenant_changes_an_entitlement(project: Project, administrator: Tenant) -> None:
    other = project.platform.project()
    path = f"/orgs/{project.org_id}/entitlements"
    body = {"project_id": other.project_id, "app_slug": SLUG, "status": "disabled"}
    for caller in (project.operator, project.adapter, administrator.admin):
        assert refusal(caller.post(path, body)) == (403, "ownership_required")
    assert statuses(other)[SLUG] == "enabled"


def test_each_level_only_narrows_the_effective_policy(project: Project) -> None:
    control, made = project.platform.control, project.deploy()
    before = project.shown(made)

    def project_allows(regions: list[str] | None) -> None:
        control.put_entitlement(project.project_id, SLUG, "enabled", {"regions": regions, "skus": ["big"]})

    control.restrict(project.org_id, regions=["north", "south"])
    project_allows(["south", "west"])
    seen = project.shown(made)
    assert seen["effective_policy"] == {"regions": ["south"], "skus": ["big"]}, "west is not the project's to allow"
    assert seen["etag"] != before["etag"], "a conditional read sees the change"
    control.restrict(project.org_id, regions=["north"])
    assert project.shown(made)["effective_policy"]["regions"] == [], (
        "nothing is left, which is not the same as no limit"
    )
    project_allows(None)
    assert project.shown(made)["effective_policy"] == {"regions": ["north"], "skus": ["big"]}
    assert project.platform.project().deploy()["effective_policy"] == UNLIMITED, "other tenants are not restricted"


def test_a_runtimes_operator_reads_the_entitlements_of_the_projects_on_it(tenant: Tenant) -> None:
    attached = tenant.bare_project()
    tenant.attach(attached)
    tenant.bare_project()
    listed = tenant.items("entitlements", tenant.operator)
    assert {one["project_id"] for one in listed} == {tenant.owner.project_id, attached.project_id}
    assert {one["app_slug"] for one in listed} == {SLUG}
