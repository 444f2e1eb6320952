"""Allocations to inventory: pure, and the same for the runner and for a person with ansible-playbook.

Everything here comes from an API and is about to decide whom we connect to and what lands in a config file,
so each value is checked by type first, and what does not pass is an error with a code.
"""

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, ValidationError, field_validator

from runner import hostkeys, people, wish
from runner.dial import FAMILY, HOSTNAME, USE_IPV4, is_dialable, is_ipv6
from runner.intent import IntentError as IntentError
from runner.people import Person
from runner.platform.models import Allocation, AppInstance, Member, MemberStatus

CONTROLLER = "controller"
WORKER = "worker"

_USERNAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
# Values of slurm.conf stay on their line: no comment, no second key, no escape, no template, no way up in a path.
_CONF_VALUE = re.compile(r"(?!-)(?!.*\.\.)[A-Za-z0-9_.,:;/@%+*=\[\]()-]{1,1024}")
MAX_GPUS = 1024
_CONF_KEY = re.compile(r"[A-Za-z][A-Za-z0-9]{1,63}")
# What a project may choose. Everything else is the adapter's own, runs a program or writes a file on a host, or is
# nobody's wish so far; a new wish costs a word here.
CHOOSABLE = frozenset(
    """
    acctgathernodefreq batchstarttimeout completewait debugflags defcpupergpu defmempercpu defmempergpu defmempernode
    disablerootjobs enforcepartlimits fairsharedampeningfactor firstjobid groupupdateforce groupupdatetime
    inactivelimit jobacctgatherfrequency jobrequeue killonbadexit killwait launchparameters maxarraysize maxjobcount
    maxjobid maxmempercpu maxmempernode maxstepcount maxtaskspernode messagetimeout minjobage mpidefault mpiparams
    overtimelimit preemptexempttime preemptmode preempttype prioritycalcperiod prioritydecayhalflife
    priorityfavorsmall priorityflags prioritymaxage prioritytype priorityusageresetperiod priorityweightage
    priorityweightassoc priorityweightfairshare priorityweightjobsize priorityweightpartition priorityweightqos
    priorityweighttres privatedata propagateresourcelimits propagateresourcelimitsexcept requeueexit requeueexithold
    resvoverrun schedulerparameters schedulertimeslice schedulertype selecttypeparameters slurmctlddebug
    slurmctldtimeout slurmddebug slurmdtimeout tcptimeout unkillablesteptimeout vsizefactor waittime
    """.split()  # noqa: SIM905 - a list of ninety strings reads worse
)


class Placement(BaseModel):
    """placement_intent, read strictly: the two modes are explicit and nothing is inferred."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    mode: str
    controller_allocation_id: UUID
    worker_allocation_ids: list[UUID] = Field(default_factory=list)

    @property
    def same_node(self) -> bool:
        return self.mode == "same_node"


class Config(BaseModel):
    """The instance's `config`: the part of a cluster that a project may choose."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cluster_name: str | None = Field(None, pattern=r"^[a-z][a-z0-9]{0,31}$")
    slurm: dict[str, StrictStr | Annotated[StrictInt, Field(ge=0, lt=2**63)]] = Field(default_factory=dict)
    users: list[Person] = Field(default_factory=list, max_length=people.MOST)

    @field_validator("users")
    @classmethod
    def _distinct(cls, users: list[Person]) -> list[Person]:
        people.check_unique(users)
        return users

    @field_validator("slurm")
    @classmethod
    def _safe(cls, settings: dict[str, str | int]) -> dict[str, str | int]:
        if len({key.lower() for key in settings}) != len(settings):
            raise ValueError("a setting is given twice, in different spelling")
        for key, value in settings.items():
            if not _CONF_KEY.fullmatch(key):
                raise ValueError(f"{key!r} is not the name of a slurm.conf setting")
            if key.lower() not in CHOOSABLE:
                raise ValueError(f"{key} is not a setting that a project may choose")
            if isinstance(value, str) and not _CONF_VALUE.fullmatch(value):
                raise ValueError(f"the value of {key} has characters that do not belong in slurm.conf")
        return settings


def read_placement(instance: AppInstance) -> Placement:
    try:
        placement = Placement.model_validate(instance.placement_intent)
    except ValidationError as error:
        raise IntentError("placement_invalid", f"placement_intent cannot be used: {first_problem(error)}") from None
    if placement.mode not in ("same_node", "split"):
        raise IntentError("placement_invalid", f"placement mode {placement.mode!r} is neither same_node nor split")
    shared = placement.controller_allocation_id in placement.worker_allocation_ids
    if placement.same_node and not shared:
        raise IntentError(
            "placement_invalid", "same_node placement must name the controller's allocation among the workers"
        )
    if shared and not placement.same_node:
        raise IntentError(
            "placement_invalid", "split placement names the controller's allocation as a worker: ask for same_node"
        )
    return placement


def read_config(instance: AppInstance) -> Config:
    try:
        return Config.model_validate(instance.config or {})
    except ValidationError as error:
        raise IntentError("config_invalid", f"config cannot be used: {first_problem(error)}") from None


def cluster_name(instance: AppInstance, config: Config) -> str:
    return config.cluster_name or f"gs{instance.id.hex[:8]}"


@dataclass(frozen=True)
class Target:
    """Where and as whom to connect, and the one key the host must show."""

    host: str
    port: int
    username: str
    key_type: str
    key_body: str


def read_target(allocation: Allocation, member: Member) -> Target:
    """Where the member is and the key it must show, or IntentError with what is wrong."""
    host, port, username = read_address(allocation)
    return Target(host, port, username, *hostkeys.key_of(allocation, member))


def read_address(allocation: Allocation) -> tuple[str, int, str]:
    """The allocation's connection, or IntentError with the field that is wrong."""
    raw = allocation.connection or {}
    host = raw.get("host")
    if not isinstance(host, str) or not is_dialable(host):
        raise _bad(allocation, f"host {host!r} is not a host name or an address one may dial")
    if is_ipv6(host):
        raise IntentError(FAMILY, f"allocation {allocation.id}: host {host} is an IPv6 address. {USE_IPV4}")
    port = raw.get("port", 22)
    if not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 65536:
        raise _bad(allocation, f"port {port!r} is not a port")
    username = raw.get("username")
    if not isinstance(username, str) or not _USERNAME.fullmatch(username):
        raise _bad(allocation, f"username {username!r} is not a Unix user name")
    return host, port, username


def _bad(allocation: Allocation, what: str) -> IntentError:
    return IntentError("connection_invalid", f"allocation {allocation.id}: {what}. Correct the allocation's connection")


def host_name(member: Member) -> str:
    """The inventory name of a member: short enough to type, and made of nothing the API could have chosen freely."""
    return f"{member.component_key}-{member.id.hex[:8]}"


def instance_group(instance: AppInstance) -> str:
    return f"instance_{str(instance.id).replace('-', '_')}"


def node_name(member: Member) -> str | None:
    """The name Slurm knows the member by, if it is one: it was told by a host and will be given to the controller."""
    known = member.adapter_detail.get("worker_hostname")
    return known if isinstance(known, str) and HOSTNAME.fullmatch(known) else None


def names_on_record(members: Iterable[Member]) -> dict[str, UUID]:
    """Which member has which node, by the records."""
    return {name: one.id for one in members if one.status != MemberStatus.DELETED and (name := node_name(one))}


def nodes_on_record(members: list[Member], on_record: Iterable[Member] | None) -> dict[str, Any]:
    """For plays with a worker whose node has no name on record yet: the names that its host may not give."""
    if all(member.component_key != WORKER or node_name(member) for member in members):
        return {}
    names = names_on_record(members if on_record is None else on_record)
    return {"slurm_nodes_on_record": {name: str(member_id) for name, member_id in names.items()}}


def host_vars(member: Member, allocation: Allocation) -> dict[str, Any]:
    target = read_target(allocation, member)
    if allocation.gpus is not None and not 0 <= allocation.gpus <= MAX_GPUS:
        raise IntentError(
            "allocation_invalid", f"allocation {allocation.id}: {allocation.gpus} GPUs is no number of them"
        )
    ssh = " ".join(
        (
            *ssh_options(target, f"gpuaas-{allocation.id}"),
            "-o UpdateHostKeys=no -o PasswordAuthentication=no -o BatchMode=yes -o LogLevel=ERROR",
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
        **({"slurm_node_name": named} if (named := node_name(member)) else {}),
    }


def ssh_options(target: Target, alias: str) -> list[str]:
    """The one key the host must show is given by a command that prints it: there is no known_hosts to keep or lose."""
    return [
        "-o UserKnownHostsFile=/dev/null -o GlobalKnownHostsFile=/dev/null -o StrictHostKeyChecking=yes",
        f"-o HostKeyAlias={alias} -o HostKeyAlgorithms={_algorithms(target.key_type)}",
        f"-o KnownHostsCommand='/bin/echo {alias} {target.key_type} {target.key_body}'",
    ]


def _algorithms(key_type: str) -> str:
    return "rsa-sha2-512,rsa-sha2-256" if key_type == "ssh-rsa" else key_type


def touched(members: Iterable[Member]) -> set[UUID | None]:
    """Allocations whose hosts a member of the instance has changed and not been cleaned from."""
    return {
        member.allocation_id
        for member in members
        if member.adapter_detail.get("host_touched") and not member.adapter_detail.get("host_cleaned")
    }


def build(
    instance: AppInstance,
    members: Iterable[Member],
    allocations: Mapping[UUID, Allocation],
    work: Mapping[str, Any] | None = None,
    terms: Mapping[str, Any] | None = None,
    fences: Mapping[UUID, int] | None = None,
    first: Container[UUID] = (),
    on_record: Iterable[Member] | None = None,
) -> tuple[dict[str, Any], dict[UUID, IntentError]]:
    """The instance's inventory, and for each member that cannot be in it the reason.

    `fences` has the number of each member whose host may be changed (runner/claims.py), `first` those whose hosts have
    nothing of this instance yet; `on_record`: all members of the instance, where `members` are only those of one play.
    """
    hosts: dict[str, dict[str, Any]] = {}
    groups: dict[str, list[str]] = {CONTROLLER: [], WORKER: []}
    problems: dict[UUID, IntentError] = {}
    users: dict[str, Any] = {"slurm_people_version": ""}
    members = list(members)
    known = touched(members if on_record is None else on_record)
    controller = next((member for member in members if member.component_key == CONTROLLER), None)
    keep = controller is not None and wish.is_kept_back(instance, controller)
    wished = wish.digest(instance)
    try:
        config = read_config(instance)
        # Left out where they cannot be read: a list of nobody would shut everybody out.
        users = people.variables(config.users) | {"slurm_people_version": wish.people(instance)}
    except IntentError:
        # A deploy is refused then; a cluster that runs keeps what it has, and its workers come and go.
        config, keep = Config.model_validate({}), True
    if keep:
        wished = (wish.live(controller) if controller else None) or ""
    shared: dict[str, Any] = {
        "gpuaas_app_instance_id": str(instance.id),
        "gpuaas_project_id": str(instance.project_id),
        "gpuaas_correlation_id": instance.correlation_id,
        "slurm_cluster_name": cluster_name(instance, config),
        "slurm_config": {key: str(value) for key, value in sorted(config.slurm.items())},
        **users,
        # A play that comes for another reason renders neither what was refused nor what is not on trial yet.
        "slurm_config_keep": keep,
        "slurm_wish": wished,
        **nodes_on_record(members, on_record),
        **(terms or {}),
    }
    for member in sorted(members, key=lambda one: (one.component_key, str(one.id))):
        if member.component_key not in groups:
            continue
        allocation = allocations.get(member.allocation_id) if member.allocation_id else None
        try:
            if allocation is None:
                raise IntentError("record_unreadable", f"allocation {member.allocation_id} could not be read")
            if allocation.status != "active":
                raise IntentError(
                    "allocation_not_active", f"allocation {allocation.id} is {allocation.status}, not active"
                )
            variables = host_vars(member, allocation)
            if variables["ansible_user"] in {user.name for user in config.users}:
                raise IntentError(
                    "config_invalid",
                    f"config cannot be used: {variables['ansible_user']} is the login user of allocation"
                    f" {allocation.id}, and may not be a declared user",
                )
        except IntentError as problem:
            problems[member.id] = problem
            continue
        variables["gpuaas_host_touched"] = member.allocation_id in known
        if fences and member.id in fences:
            variables |= {"gpuaas_fence": fences[member.id], "gpuaas_first_play": member.id in first}
        name = host_name(member)
        hosts[name] = variables
        groups[member.component_key].append(name)
        if member.component_key == CONTROLLER:
            shared["slurm_controller_host"] = name
            shared["slurm_controller_addr"] = variables["ansible_host"]
            if work:
                variables["slurm_work"] = dict(work)
    children: dict[str, Any] = {key: {"hosts": {name: {} for name in names}} for key, names in groups.items()}
    own = {"hosts": {name: {} for name in hosts}, "vars": shared}
    return {"all": {"hosts": hosts, "children": {**children, instance_group(instance): own}}}, problems


def first_problem(error: ValidationError) -> str:
    problem = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(str(part) for part in problem["loc"])
    return f"{where}: {problem['msg']}" if where else problem["msg"]
