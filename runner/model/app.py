"""What the core needs to know of an app. It is passed to the loop; runner/slurm/app.py is the one we have."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from runner.model.plan import Detail, Plan, Play
from runner.model.platform import AppInstance, Member
from runner.model.world import World


@dataclass(frozen=True)
class Report:
    """What a play's report says of its member, as far as it may be believed."""

    phase: str | None = None
    detail: Detail = field(default_factory=dict)
    snapshot: Any = None
    dropped: tuple[str, ...] = ()  # keys that were not believed


class ReportReader(Protocol):
    """Reads the reports of one member of a run. Reports come from a host, so they are checked against our records."""

    @property
    def id(self) -> UUID: ...

    def accepts(self, action: str) -> bool:
        """Whether a result of this Ansible action can be a report of this member."""

    def read(self, report: Mapping[str, Any], at: datetime | None) -> Report:
        """The report, for which no answer of a host may raise an error. `at`: when it came, by our own clock."""


@dataclass(frozen=True)
class Variables:
    """What the app's plays are told, beside how to reach each host."""

    shared: Detail
    of_member: Mapping[UUID, Detail]
    # Users that the app makes on hosts: none of them may be the user that we log in as.
    reserved_logins: frozenset[str] = frozenset()


class App(Protocol):
    @property
    def final_phases(self) -> Collection[str]:
        """Phases after which a member has nothing more to do in a play."""

    @property
    def controller_variables(self) -> tuple[str, str]:
        """Variables that tell every host the controller's name in the inventory, and its address."""

    @property
    def work_variable(self) -> str:
        """The variable of the controller's host that holds the work of a play."""

    def decide(self, world: World) -> Plan:
        """What to do next. Pure."""

    def look(self, world: World) -> Play | None:
        """A read-only play that brings a snapshot; None if nothing can be looked at."""

    def has_new_config(self, instance: AppInstance) -> bool:
        """Whether a configuration is asked for that was neither applied nor refused."""

    def full_detail(self, member: Member) -> Detail:
        """adapter_detail with every documented field; null where nothing is known."""

    def fit_detail(self, component_key: str, detail: Detail) -> Detail:
        """adapter_detail, cut to what the platform takes."""

    def report_readers(self, members: Iterable[Member], on_record: Iterable[Member]) -> Mapping[UUID, ReportReader]:
        """A reader for each member of a play; `on_record` are all members of the instance."""

    def variables(self, instance: AppInstance, members: Iterable[Member], on_record: Iterable[Member]) -> Variables:
        """What a play on these members is told."""
