"""The Slurm app, as the core sees it."""

from collections.abc import Iterable, Mapping
from uuid import UUID

from runner.model.app import App, ReportReader, Variables
from runner.model.names import CONTROLLER
from runner.model.plan import Detail, Plan, Play
from runner.model.platform import AppInstance, Member, MemberStatus
from runner.slurm import desired_config, detail, host_vars
from runner.slurm.decide import decide
from runner.slurm.fitting import fitted
from runner.slurm.member_reports import MemberReports
from runner.slurm.node_names import names_on_record, node_name
from runner.slurm.world import World


class SlurmApp:
    final_phases = ("serving", "removed", "staged", "rotated")
    controller_variables = ("slurm_controller_host", "slurm_controller_addr")
    work_variable = "slurm_work"

    def decide(self, world: World) -> Plan:
        return decide(world)

    def look(self, world: World) -> Play | None:
        ready = [one for one in world.members if one.component_key == CONTROLLER and one.status == MemberStatus.READY]
        return Play("a person asked", "observe", tuple(ready)) if ready else None

    def has_new_config(self, instance: AppInstance) -> bool:
        dealt_with = (instance.status_detail or {}).get("wish")
        return dealt_with not in (None, desired_config.digest(instance))

    def full_detail(self, member: Member) -> Detail:
        return detail.filled(member)

    def fit_detail(self, component_key: str, detail: Detail) -> Detail:
        return fitted(component_key, detail)

    def report_readers(self, members: Iterable[Member], on_record: Iterable[Member]) -> Mapping[UUID, ReportReader]:
        taken = names_on_record(on_record)
        return {one.id: MemberReports(one.id, one.component_key, node_name(one), taken) for one in members}

    def variables(self, instance: AppInstance, members: Iterable[Member], on_record: Iterable[Member]) -> Variables:
        return host_vars.variables(instance, list(members), list(on_record))


SLURM: App = SlurmApp()
