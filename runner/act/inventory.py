"""Builds the Ansible inventory of an instance. Pure; the same for the runner and for a person with ansible-playbook.

The values come from an API and decide which machines we connect to and what is written to config files, so each is
checked first. A value that does not pass is an error with a code.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from runner.intent.connection import read_target, ssh_options
from runner.intent.errors import IntentError
from runner.model.app import App
from runner.model.attached import AttachedProject
from runner.model.names import host_name, instance_group, touched
from runner.model.platform import Allocation, AppInstance, Member

MAX_GPUS = 1024


@dataclass(frozen=True)
class Agent:
    """An ssh-agent with one key: its socket, and type and body of the public key."""

    socket: str
    public_key: str


def host_vars(member: Member, allocation: Allocation, agent: Agent | None = None) -> dict[str, Any]:
    """The variables with which Ansible reaches a member's host; `agent` if the member has a credential of its own."""
    target = read_target(allocation, member)
    if allocation.gpus is not None and not 0 <= allocation.gpus <= MAX_GPUS:
        raise IntentError(
            "allocation_invalid",
            f"allocation {allocation.id}: gpus={allocation.gpus} is out of range (0 to {MAX_GPUS})",
        )
    ssh = " ".join(
        (
            *ssh_options(target, f"gpuaas-{allocation.id}"),
            "-o UpdateHostKeys=no -o PasswordAuthentication=no -o BatchMode=yes -o LogLevel=ERROR",
            # A host of another project is offered the key of that project, and no other.
            *([f"-o IdentityAgent={agent.socket} -o IdentityFile=none"] if agent else []),
        )
    )
    return {
        "ansible_host": target.host,
        "ansible_port": target.port,
        "ansible_user": target.username,
        "ansible_connection": "ssh",
        "ansible_become": True,
        "ansible_ssh_common_args": ssh,
        "gpuaas_member_id": str(member.id),
        "gpuaas_component_key": member.component_key,
        "gpuaas_allocation_id": str(allocation.id),
        "gpuaas_allocation_gpus": allocation.gpus,
        **({"gpuaas_source_project_id": str(member.source_project_id)} if member.source_project_id else {}),
        **({"gpuaas_login_key": agent.public_key} if agent else {}),
    }


def build(
    app: App,
    instance: AppInstance,
    members: Iterable[Member],
    allocations: Mapping[UUID, Allocation],
    work: Mapping[str, Any] | None = None,
    terms: Mapping[str, Any] | None = None,
    fences: Mapping[UUID, int] | None = None,
    first: Container[UUID] = (),
    on_record: Iterable[Member] | None = None,
    correlation: Mapping[UUID, str] | None = None,
    attachments: Sequence[AttachedProject] | None = None,
    agents: Mapping[UUID, Agent] | None = None,
) -> tuple[dict[str, Any], dict[UUID, IntentError]]:
    """The instance's inventory, and the error of each member that cannot be in it.

    `members` are those of one play, `on_record` all members of the instance. `fences` has the number of each member
    whose host may be changed (runner/model/claims.py), `first` the members whose hosts have nothing of this instance,
    `correlation` the correlation id of what is done to each; without it, the deploy's holds for all. `attachments` are
    those of a shared runtime, None if the list is not complete. `agents` has the key of each credential that belongs to
    single members; None for a person who has keys of an own.
    """
    hosts: dict[str, dict[str, Any]] = {}
    groups: dict[str, list[str]] = {key: [] for key in app.components.keys}
    problems: dict[UUID, IntentError] = {}
    members = list(members)
    recorded = members if on_record is None else list(on_record)
    touched_allocations = touched(recorded)
    variables_of_app = app.variables(instance, members, recorded, attachments)
    shared: dict[str, Any] = {
        "gpuaas_app_instance_id": str(instance.id),
        **({"gpuaas_project_id": str(instance.project_id)} if instance.project_id else {}),
        "gpuaas_correlation_id": instance.correlation_id,
        **variables_of_app.shared,
        **(terms or {}),
    }
    for member in sorted(members, key=lambda one: (one.component_key, str(one.id))):
        try:
            if member.component_key not in groups:
                choices = ", ".join(groups)
                raise IntentError(
                    "component_unknown",
                    f"component {member.component_key!r} of member {member.id} is not one of this app's ({choices})",
                )
            variables = host_vars(member, _active_allocation(member, allocations), _agent_of(member, agents))
            if variables["ansible_user"] in variables_of_app.reserved_logins:
                raise IntentError(
                    "config_invalid",
                    f"config cannot be used: {variables['ansible_user']} is the login user of allocation"
                    f" {member.allocation_id}, and may not be a declared user",
                )
        except IntentError as problem:
            problems[member.id] = problem
            continue
        variables |= variables_of_app.of_member.get(member.id, {})
        if correlation:
            variables["gpuaas_correlation_id"] = correlation[member.id]
        variables["gpuaas_host_touched"] = member.allocation_id in touched_allocations
        if fences and member.id in fences:
            variables |= {"gpuaas_fence": fences[member.id], "gpuaas_first_play": member.id in first}
        name = host_name(member)
        hosts[name] = variables
        groups[member.component_key].append(name)
        if app.components.is_lead(member):
            shared |= dict(zip(app.lead_variables, (name, variables["ansible_host"]), strict=True))
            if work:
                variables[app.work_variable] = dict(work)
    children: dict[str, Any] = {key: {"hosts": {name: {} for name in names}} for key, names in groups.items()}
    own = {"hosts": {name: {} for name in hosts}, "vars": shared}
    return {"all": {"hosts": hosts, "children": {**children, instance_group(instance): own}}}, problems


def _agent_of(member: Member, agents: Mapping[UUID, Agent] | None) -> Agent | None:
    """The agent of the member's own credential; None if it is opened by the instance's."""
    if member.access_credential_id is None or agents is None:
        return None
    if member.access_credential_id not in agents:
        message = f"credential {member.access_credential_id}, which opens this host, was not delivered"
        raise IntentError("own_credential_unavailable", message)
    return agents[member.access_credential_id]


def _active_allocation(member: Member, allocations: Mapping[UUID, Allocation]) -> Allocation:
    allocation = allocations.get(member.allocation_id) if member.allocation_id else None
    if allocation is None:
        raise IntentError("record_unreadable", f"allocation {member.allocation_id} could not be read")
    if allocation.status != "active":
        raise IntentError("allocation_not_active", f"allocation {allocation.id} is {allocation.status}, not active")
    return allocation
