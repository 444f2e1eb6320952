"""A host that serves an instance which is gone: the host cannot know, the platform does."""

from dataclasses import replace
from uuid import UUID

from runner import log
from runner.model.errors import NotFound, PlatformError
from runner.model.plan import AdapterError
from runner.model.platform import InstanceStatus
from runner.platform.client import Client
from runner.translate import RunResult

IN_USE, LEFT_OVER = "host_in_use", "host_left_over"
CLEAN_UP = "ansible-playbook -i 'HOST,' -u USER playbooks/clean_host.yml -e gpuaas_clean_instance={}"


def name_left_over_hosts(client: Client, story: RunResult) -> RunResult:
    """Turn `host_in_use` into `host_left_over` where the host's mark names an instance that is not in this project."""
    named = {one.error.instance for one in story.outcomes.values() if one.error and one.error.code == IN_USE} - {None}
    gone = {instance for instance in named if instance and _is_gone(client, instance)}
    return replace(
        story,
        outcomes={
            member_id: replace(known, error=_left_over(known.error))
            if known.error and known.error.code == IN_USE and known.error.instance in gone
            else known
            for member_id, known in story.outcomes.items()
        },
    )


def _is_gone(client: Client, instance: UUID) -> bool:
    try:
        return client.instance(instance).status == InstanceStatus.DELETED
    except NotFound:
        return True
    except PlatformError as error:
        log.get().warning("the instance that a host serves cannot be read", named=str(instance), problem=error.message)
        return False


def _left_over(error: AdapterError) -> AdapterError:
    message = (
        f"The host is marked for instance {error.instance}, which is deleted or not in this project. Nothing was"
        f" changed. If no other project has it either, clean the host with `{CLEAN_UP.format(error.instance)}`"
        " (docs/usage/hosts.md), then ask again."
    )
    return replace(error, code=LEFT_OVER, message=message)
