"""Recognizes hosts that are marked for a deleted instance. Only the platform knows which instances are deleted."""

from dataclasses import replace
from uuid import UUID

from runner import log
from runner.model.errors import NotFound, PlatformError
from runner.model.plan import AdapterError
from runner.model.platform import InstanceStatus
from runner.model.world import Outcome
from runner.observe.other_instances import WAIT_SECONDS
from runner.platform.client import Client
from runner.translate import RunResult

IN_USE, LEFT_OVER = "host_in_use", "host_left_over"
CLEAN_UP = "ansible-playbook -i 'HOST,' -u USER playbooks/clean_host.yml -e gpuaas_clean_instance={}"


def name_left_over_hosts(client: Client, result: RunResult) -> RunResult:
    """Turn `host_in_use` into `host_left_over` where the host's mark names an instance that is not in this project."""
    marked = {one.error.instance for one in result.outcomes.values() if one.error and one.error.code == IN_USE}
    gone = {instance for instance in marked if instance and _is_gone(client, instance)}

    def renamed(outcome: Outcome) -> Outcome:
        error = outcome.error
        if not error or error.code != IN_USE or error.instance not in gone:
            return outcome
        return replace(outcome, error=_left_over(error))

    return replace(result, outcomes={member_id: renamed(one) for member_id, one in result.outcomes.items()})


def _is_gone(client: Client, instance: UUID) -> bool:
    if not client.scope.may_know(instance):
        return False
    try:
        with client.clone(patience=0, timeout=WAIT_SECONDS) as client:
            return client.instance(instance).status == InstanceStatus.DELETED
    except NotFound:
        return True
    except PlatformError as error:
        log.get().warning(
            "instance that a host is marked for not readable",
            marked_for=str(instance),
            error_code=error.code,
            problem=error.message,
        )
        return False


def _left_over(error: AdapterError) -> AdapterError:
    message = (
        f"The host is marked for instance {error.instance}, which is deleted or not in this project. Nothing was"
        f" changed. If no other project has it either, clean the host with `{CLEAN_UP.format(error.instance)}`"
        " (docs/usage/hosts.md), then request it again."
    )
    return replace(error, code=LEFT_OVER, message=message)
