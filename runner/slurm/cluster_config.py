"""The instance's `config`: the part of a cluster that a project may choose, read strictly."""

import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, ValidationError, field_validator

from runner.intent.errors import IntentError, first_problem
from runner.model.errors import RequestError
from runner.model.platform import AppInstance
from runner.slurm.users import MOST, User, check_unique

# Values of slurm.conf stay on their line: no comment, no second key, no escape, no template, no way up in a path.
_CONF_VALUE = re.compile(r"(?!-)(?!.*\.\.)[A-Za-z0-9_.,:;/@%+*=\[\]()-]{1,1024}")
_CONF_KEY = re.compile(r"[A-Za-z][A-Za-z0-9]{1,63}")
# What a project may choose. Everything else is set by the adapter, runs a program or writes a file on a host, or has
# not been requested yet; to allow one more setting, add it here.
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


class Config(BaseModel):
    """The instance's `config`: the part of a cluster that a project may choose."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cluster_name: str | None = Field(None, pattern=r"^[a-z][a-z0-9]{0,31}$")
    slurm: dict[str, StrictStr | Annotated[StrictInt, Field(ge=0, lt=2**63)]] = Field(default_factory=dict)
    users: list[User] = Field(default_factory=list, max_length=MOST)

    @field_validator("users")
    @classmethod
    def _distinct(cls, users: list[User]) -> list[User]:
        check_unique(users)
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


def read_config(instance: AppInstance) -> Config:
    try:
        return Config.model_validate(instance.config or {})
    except ValidationError as error:
        raise IntentError("config_invalid", f"config cannot be used: {first_problem(error)}") from None


def change_config(
    config: dict[str, Any], settings: dict[str, Any], unset: Sequence[str], users: list[dict[str, Any]] | None
) -> dict[str, Any]:
    """The whole `config` with these changes. The case of a setting's name is ignored, as in Slurm."""
    current: dict[str, Any] = config.get("slurm") or {}
    removed = {name.lower() for name in unset}
    kept = {key: value for key, value in current.items() if key.lower() not in removed}
    absent = [name for name in unset if name.lower() not in {key.lower() for key in current}]
    if absent:
        present = ", ".join(sorted(kept)) or "none"
        raise RequestError(f"{', '.join(absent)} is not set in the instance's config; these settings are: {present}")
    replaced = {key.lower() for key in settings}
    slurm = {key: value for key, value in kept.items() if key.lower() not in replaced} | settings
    return {**config, "slurm": slurm} | ({"users": users} if users is not None else {})


def cluster_name(instance: AppInstance, config: Config) -> str:
    return config.cluster_name or f"gs{instance.id.hex[:8]}"
