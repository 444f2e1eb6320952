"""Pages and filters."""

from tests.platform_process import Project


def operations(project: Project, count: int) -> tuple[str, list[str]]:
    base = f"{project.path}/app-instances/{project.deploy(workers=0)['id']}/operations"
    return base, [project.operator.post(base, {"operation": "stop"}).json()["id"] for _ in range(count)]


def test_pages_hold_everything_once_in_order(project: Project) -> None:
    base, made = operations(project, 5)
    seen, cursor, pages = [], "", 0
    while True:
        page = project.operator.get(f"{base}?limit=2{cursor}").json()
        seen += [item["id"] for item in page["items"]]
        pages += 1
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert (seen, pages) == (made, 3)


def test_list_that_changes_while_it_is_read_neither_skips_nor_repeats(project: Project) -> None:
    base, made = operations(project, 4)
    first = project.operator.get(f"{base}?limit=2").json()
    project.operator.patch(f"{base}/{made[0]}", {"status": "cancelled"})
    project.operator.patch(f"{base}/{made[3]}", {"status": "cancelled"})
    late = project.operator.post(base, {"operation": "start"}).json()["id"]
    rest = project.operator.get(f"{base}?limit=10&cursor={first['next_cursor']}").json()
    assert [item["id"] for item in first["items"] + rest["items"]] == [*made, late]


def test_cursor_of_other_filters_or_nonsense_is_refused(project: Project) -> None:
    base, _ = operations(project, 2)
    cursor = project.operator.get(f"{base}?limit=1").json()["next_cursor"]
    for query in (f"cursor={cursor}&status=accepted", "cursor=nonsense", "cursor=%00%ff", "cursor=é"):
        answer = project.operator.get(f"{base}?limit=1&{query}")
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


def test_status_filter_takes_a_comma_list(project: Project) -> None:
    base, made = operations(project, 3)
    project.operator.patch(f"{base}/{made[0]}", {"status": "cancelled"})
    lease = {"status": "running", "claimed_by": "a", "lease_expires_at": "2099-01-01T00:00:00Z"}
    project.adapter.patch(f"{base}/{made[1]}", lease)

    def ids(status: str) -> list[str]:
        return [item["id"] for item in project.operator.get(f"{base}?status={status}").json()["items"]]

    assert ids("accepted,running") == made[1:]
    assert ids("cancelled") == made[:1]
    assert ids("succeeded") == []
    assert project.operator.get(f"{base}?status=sideways").status_code == 400


def test_updated_since_shows_what_changed_since_in_any_zone(project: Project) -> None:
    base, made = operations(project, 2)
    later = project.operator.patch(f"{base}/{made[0]}", {"status": "cancelled"}).json()["updated_at"]
    found = project.operator.get(f"{base}?updated_since={later}").json()["items"]
    assert [item["id"] for item in found] == made[:1]
    elsewhere = later.replace("Z", "%2B00:00")
    assert len(project.operator.get(f"{base}?updated_since={elsewhere}").json()["items"]) == 1


def test_instances_are_found_by_app(project: Project) -> None:
    made = project.deploy()
    listing = f"{project.path}/app-instances"
    assert [i["id"] for i in project.adapter.get(f"{listing}?app_slug={made['app_slug']}").json()["items"]] == [
        made["id"]
    ]
    assert project.adapter.get(f"{listing}?app_slug=no-such-app").json()["items"] == []
    assert project.adapter.get(f"{listing}?status=running").json()["items"] == []


def test_allocations_are_found_by_status(project: Project) -> None:
    project.platform.control.set_allocation_status(project.project_id, project.allocation_ids[0], "released")
    listing = f"{project.path}/allocations"
    assert [
        a["id"] for a in project.adapter.get(f"{listing}?status=released").json()["items"]
    ] == project.allocation_ids[:1]
    assert len(project.adapter.get(f"{listing}?status=active").json()["items"]) == len(project.allocation_ids) - 1
