"""The interface between the core and an app. Everything above receives the app as an argument."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol
from uuid import UUID

from pydantic import BaseModel

from runner.model.attached import AttachedProject
from runner.model.components import Components
from runner.model.metrics import AppMetrics
from runner.model.plan import Detail, Plan, Play
from runner.model.platform import AppInstance, Member
from runner.model.world import World


@dataclass(frozen=True)
class Report:
    """A play's report about its member, with only the values that passed the checks."""

    phase: str | None = None
    detail: Detail = field(default_factory=dict)
    snapshot: Any = None
    dropped: tuple[str, ...] = ()  # keys that failed the checks


class ReportReader(Protocol):
    """Reads the reports of one member of a run. Reports come from a host, so they are checked against our records."""

    @property
    def id(self) -> UUID: ...

    def accepts(self, action: str) -> bool:
        """Whether a result of this Ansible action can be a report of this member."""

    def read(self, report: Mapping[str, Any], at: datetime | None) -> Report:
        """The checked report. It never raises, whatever the host sent. `at`: when it came, by the runner's clock."""


@dataclass(frozen=True)
class Variables:
    """Variables of the app's plays, beside how to reach each host."""

    shared: Detail
    of_member: Mapping[UUID, Detail]
    # Users that the app makes on hosts: none of them may be the user that we log in as.
    reserved_logins: frozenset[str] = frozenset()


@dataclass(frozen=True)
class RuntimeSecret:
    """How a runtime secret is generated, and whether it can be replaced while the app runs."""

    random_bytes: int
    encoding: Literal["base64", "urlsafe"] = "base64"
    replaceable: bool = False


class App(Protocol):
    @property
    def bundle(self) -> str | None:
        """The directory with the app's ansible.cfg and playbooks/; None: the one that comes with this package."""

    @property
    def components(self) -> Components:
        """The kinds of member, and the one that leads."""

    @property
    def settings(self) -> type[BaseModel]:
        """The app's own settings. They are read like the runner's, and are in `World.policy.app`."""

    @property
    def artifact(self) -> str:
        """What the app's packages are called where package policy is asked about them."""

    @property
    def package_source_variables(self) -> tuple[str, str]:
        """The variable that carries the answer of package policy into a play, and the one that roles read."""

    @property
    def runtime_secrets(self) -> Mapping[str, RuntimeSecret]:
        """Every runtime secret of an instance, by name."""

    @property
    def final_phases(self) -> Collection[str]:
        """Phases after which a member has nothing more to do in a play."""

    @property
    def lead_variables(self) -> tuple[str, str]:
        """Variables of every host: the lead's name in the inventory, and its address."""

    @property
    def work_variable(self) -> str:
        """The variable of the lead's host that holds the work of a play."""

    @property
    def metrics(self) -> AppMetrics:
        """What the app adds to the metrics of the core."""

    def decide(self, world: World) -> Plan:
        """What to do next. Pure."""

    def look(self, world: World) -> Play | None:
        """A read-only play that brings a snapshot; None if nothing can be looked at."""

    def hostname(self, member: Member) -> str | None:
        """The host's own name, if it is on record: people may call a member by it."""

    def has_new_config(self, instance: AppInstance) -> bool:
        """Whether a configuration is asked for that was neither applied nor refused."""

    def has_new_attachments(self, instance: AppInstance, attachments: Sequence[AttachedProject]) -> bool:
        """Whether what is asked for the projects on a shared runtime differs from what was last carried out."""

    def full_detail(self, member: Member) -> Detail:
        """adapter_detail with every documented field; null where nothing is known."""

    def fit_detail(self, component_key: str, detail: Detail) -> Detail:
        """adapter_detail, cut to what the platform takes."""

    def report_readers(self, members: Iterable[Member], on_record: Iterable[Member]) -> Mapping[UUID, ReportReader]:
        """A reader for each member of a play; `on_record` are all members of the instance."""

    def variables(
        self,
        instance: AppInstance,
        members: Iterable[Member],
        on_record: Iterable[Member],
        attachments: Sequence[AttachedProject] | None = None,
    ) -> Variables:
        """Variables of a play on these members. `attachments` of a shared runtime; None where they are not known."""
