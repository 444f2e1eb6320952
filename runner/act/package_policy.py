"""Asks the platform where Slurm's packages may come from: for a tick, and for a command by hand.

`GPUAAS_ARTIFACT_POLICY=none` states that the platform has no such policy. The question is asked all the same, and a
platform that answers it proves the setting wrong: then nothing is done.
"""

import json
import os
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from runner import log
from runner.intent import package_source
from runner.intent.errors import IntentError
from runner.model.errors import PlatformError, RequestError
from runner.model.platform import AppInstance, Resolution
from runner.platform.client import Client
from runner.settings import Settings

SOURCE_VARIABLE = "GPUAAS_PACKAGE_SOURCE"
SOURCE_TERM = "slurm_package_source"
# The variable that playbooks and roles read, with the answer of policy as its value (roles/preflight/vars/main.yml).
SOURCE_READ = "preflight_package_source"
NOT_ASKED = "policy was not asked: run the play through gpuaas-slurm exec"


class PolicyPresent(PlatformError):
    """The setting says that there is no policy, and there is one."""


def ask(client: Client, settings: Settings, instance: AppInstance) -> Resolution:
    resolution = client.resolve_packages(instance)
    if settings.artifact_policy != "none":
        return resolution
    if resolution.decision != package_source.MISSING:
        raise PolicyPresent(
            "artifact_policy_present: GPUAAS_ARTIFACT_POLICY is none, but the platform has an artifact policy and"
            " answered. No host was touched. Unset GPUAAS_ARTIFACT_POLICY, so that the answer is obeyed",
            code="artifact_policy_present",
        )
    return Resolution(decision="allow")


def for_hand(
    client: Client, settings: Settings, instance: AppInstance, *, read_only: bool
) -> tuple[dict[str, str], UUID | None]:
    """The answer as environment for a person's command, and the credential of a private source.

    What is not a clear yes is a no, as in a tick: hosts that have Slurm are worked on, and nothing is installed.
    """
    if read_only:
        return _environment(instance, {"denied": "the command was to be read-only"}), None
    try:
        resolution = ask(client, settings, instance)
        source = package_source.read(resolution)
    except PolicyPresent:
        raise
    except PlatformError as error:
        log.get().warning("package policy could not be asked: nothing can be installed", problem=str(error))
        return _environment(instance, {"denied": f"policy could not be asked: {error.code}"}), None
    except IntentError as no:
        log.get().warning("package policy: nothing can be installed", code=no.code, problem=no.message)
        return _environment(instance, {"denied": f"rule {package_source.rule_of(resolution)}"}), None
    terms = source.terms() if source else None
    return _environment(instance, terms), source.credential_id if source else None


def refuse_override(command: Sequence[str]) -> None:
    """In Ansible a variable on the command line wins over any other; the answer of policy must not be given there."""
    for name in (SOURCE_TERM, SOURCE_READ):
        if any(name in word for word in command):
            raise RequestError(f"{name} is the answer of package policy and cannot be given by hand: leave it out")


def _environment(instance: AppInstance, source: dict[str, Any] | None) -> dict[str, str]:
    return {SOURCE_VARIABLE: json.dumps({"instance": str(instance.id), "source": source})}


def terms_by_hand(instance: AppInstance) -> dict[str, Any]:
    """Variables of one instance's hosts, from what `exec` put into the environment. Without it nothing is installed."""
    try:
        passed = json.loads(os.environ.get(SOURCE_VARIABLE) or "{}")
        if passed.get("instance") != str(instance.id):
            return {SOURCE_TERM: {"denied": NOT_ASKED}}
        source = passed["source"]
        if not isinstance(source, dict | None):
            raise TypeError
    except (ValueError, KeyError, TypeError, AttributeError):
        message = f"{SOURCE_VARIABLE} is not what gpuaas-slurm exec sets: unset it, and use exec"
        raise IntentError("package_source_invalid", message) from None
    return {SOURCE_TERM: source} if source else {}
