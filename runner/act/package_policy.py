"""Asks the platform where packages may come from: for a tick, and for a command by hand.

`GPUAAS_ARTIFACT_POLICY=none` states that the platform has no such policy. The platform is asked all the same: if it
answers, the setting is wrong and nothing is done.
"""

import json
import os
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from runner import log
from runner.intent import package_source
from runner.intent.errors import IntentError
from runner.model.app import App
from runner.model.errors import PlatformError, RequestError
from runner.model.platform import AppInstance, Resolution
from runner.platform.client import Client
from runner.settings import Settings

SOURCE_VARIABLE = "GPUAAS_PACKAGE_SOURCE"
NOT_ASKED = "package policy was not queried: run the play through gpuaas-slurm exec"


class PolicyPresent(PlatformError):
    """GPUAAS_ARTIFACT_POLICY is none, but the platform has a policy."""


def resolve(client: Client, settings: Settings, app: App, instance: AppInstance) -> Resolution:
    resolution = client.resolve_packages(instance, app.artifact)
    if settings.artifact_policy != "none":
        return resolution
    if resolution.decision != package_source.MISSING:
        raise PolicyPresent(
            "artifact_policy_present: GPUAAS_ARTIFACT_POLICY is none, but the platform has an artifact policy and"
            " answered. No host was touched. Unset GPUAAS_ARTIFACT_POLICY, so that the answer is obeyed",
            code="artifact_policy_present",
        )
    return Resolution(decision="allow")


def for_manual_command(
    client: Client, settings: Settings, app: App, instance: AppInstance, *, read_only: bool
) -> tuple[dict[str, str], UUID | None]:
    """The answer of policy as environment of a person's command, and the credential of a private source.

    Anything but a clear allow is treated as deny, as in a tick: plays may run, and they install nothing.
    """
    if read_only:
        return _environment(instance, {"denied": "exec --read-only installs nothing"}), None
    try:
        resolution = resolve(client, settings, app, instance)
        source = package_source.read(resolution)
    except PolicyPresent:
        raise
    except PlatformError as error:
        log.get().warning(
            "package policy could not be queried: nothing can be installed", error_code=error.code, problem=str(error)
        )
        return _environment(instance, {"denied": f"package policy could not be queried: {error.code}"}), None
    except IntentError as denial:
        log.get().warning("package policy: nothing can be installed", error_code=denial.code, problem=denial.message)
        return _environment(instance, {"denied": f"rule {package_source.rule_of(resolution)}"}), None
    terms = source.terms() if source else None
    return _environment(instance, terms), source.credential_id if source else None


def refuse_override(app: App, command: Sequence[str]) -> None:
    """Refuse a command that sets the answer of policy itself: Ansible prefers variables of the command line."""
    for name in app.package_source_variables:
        if any(name in word for word in command):
            raise RequestError(f"{name} is the answer of package policy and cannot be given by hand: leave it out")


def _environment(instance: AppInstance, source: dict[str, Any] | None) -> dict[str, str]:
    return {SOURCE_VARIABLE: json.dumps({"instance": str(instance.id), "source": source})}


def manual_terms(app: App, instance: AppInstance) -> dict[str, Any]:
    """Variables of an instance's hosts, from the environment that `exec` sets. Without it nothing is installed."""
    variable, _ = app.package_source_variables
    try:
        passed = json.loads(os.environ.get(SOURCE_VARIABLE) or "{}")
        if passed.get("instance") != str(instance.id):
            return {variable: {"denied": NOT_ASKED}}
        source = passed["source"]
        if not isinstance(source, dict | None):
            raise TypeError
    except (ValueError, KeyError, TypeError, AttributeError):
        message = f"{SOURCE_VARIABLE} is not what gpuaas-slurm exec sets: unset it, and use exec"
        raise IntentError("package_source_invalid", message) from None
    return {variable: source} if source else {}
