"""A platform that misbehaves delays a deploy and changes nothing else about it. On one Debian only."""

import re

import pytest

from tests.commands import ends
from tests.e2e.cluster import deploy, fleet_named, happened_once
from tests.platform_process import Doc

pytestmark = pytest.mark.e2e


def test_a_deploy_survives_wrong_late_and_missing_answers_of_the_platform() -> None:
    with fleet_named("e2e-platform") as fleet:
        fleet.up(hosts=1, suite="bookworm", warm=True)
        cluster = deploy(fleet, "gs-1", "", "--same-node", GPUAAS_API_TIMEOUT_SECONDS="2")
        control, own = fleet.control(), re.escape(f"/app-instances/{cluster.instance_id}")
        last = control.requests()["last"]
        faults: list[tuple[str, str, Doc]] = [
            ("garbage", f"{own}$", {"method": "GET"}),
            ("status", f"{own}/member-operations$", {"method": "GET", "status": 500, "times": 2}),
            ("apply_then_drop", f"{own}/member-operations/", {"method": "PATCH"}),
            ("status", f"{own}/members$", {"method": "POST", "status": 429, "headers": {"Retry-After": "1"}}),
            ("apply_then_drop", f"{own}/members$", {"method": "POST"}),
            ("hang", f"{own}/members/", {"method": "PATCH", "seconds": 3}),
            ("drop", f"{own}/members/", {"method": "PATCH", "times": 2}),
            ("apply_then_drop", f"{own}/events$", {"method": "POST"}),
            ("status", f"{own}$", {"method": "PATCH", "status": 503}),
            ("truncate", f"{own}$", {"method": "PATCH"}),
        ]
        for action, path, options in faults:
            control.inject_fault(action, path, **options)
        try:
            ran = cluster.run()
        finally:
            control.clear_faults()
        ends(ran, 0)
        met = [one["fault"] for one in control.requests(since=last)["requests"] if one["fault"]]
        assert sorted(met) == sorted(action for action, _, options in faults for _ in range(options.get("times", 1)))
        happened_once(cluster, workers=1)
