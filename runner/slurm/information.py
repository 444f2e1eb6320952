"""What an operator should know of a cluster that lacks nothing: reasons of health that do not lower it. Pure."""

import re

from runner.intent import placement_policy
from runner.intent.errors import IntentError
from runner.model.host_data import printable
from runner.slurm.causes import Finding
from runner.slurm.world import World

VERSION_BYTES = 64


def findings(world: World) -> list[Finding]:
    return [*_entitlement(world), *_version(world)]


def _entitlement(world: World) -> list[Finding]:
    """A cluster whose project may no longer use the app runs on; it gets no new machines."""
    instance = world.instance
    if world.entitlements is None or world.entitlements.held:
        return []
    try:
        project = instance.project_id or instance.owner_project_id
        placement_policy.check_entitled(world.entitlements, [project], instance.app_slug)
    except IntentError as problem:
        return [Finding("no_new_machines", f"what runs continues, without new machines: {problem.message}")]
    return []


def _version(world: World) -> list[Finding]:
    ours, asked = world.policy.adapter_version, world.instance.app_version
    if ours in (None, asked) or asked is None:
        return []
    order = {True: "newer than", False: "older than", None: "not"}[_is_newer(ours or "", asked)]
    return [
        Finding(
            "app_version_differs",
            f"the runner that reports this is version {ours}, {order} the instance's app_version"
            f" {printable(asked, VERSION_BYTES)}. The cluster is served all the same: see docs/usage/app.md",
        )
    ]


def _is_newer(ours: str, asked: str) -> bool | None:
    """None if either is not of the form 1.2.3, so that their order is not known."""
    both = [re.fullmatch(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})", one, re.ASCII) for one in (ours, asked)]
    numbers = [tuple(map(int, one.groups())) for one in both if one]
    return numbers[0] > numbers[1] if len(numbers) == 2 else None
