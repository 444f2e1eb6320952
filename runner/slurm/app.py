"""The Slurm app, as the core sees it."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from uuid import UUID

from runner.model.app import App, ReportReader, RuntimeSecret, Variables
from runner.model.attached import AttachedProject
from runner.model.plan import Detail, Plan, Play
from runner.model.platform import AppInstance, Member
from runner.slurm import attached, desired_config, detail, host_vars, notes
from runner.slurm.components import COMPONENTS
from runner.slurm.controller import ready_controllers
from runner.slurm.decide import decide
from runner.slurm.decide.guards import packages
from runner.slurm.fitting import fitted
from runner.slurm.member_reports import MemberReports
from runner.slurm.metrics import SlurmMetrics
from runner.slurm.node_names import names_on_record, node_name
from runner.slurm.settings import SlurmSettings
from runner.slurm.world import World


class SlurmApp:
    bundle = None
    components = COMPONENTS
    settings = SlurmSettings
    artifact = "slurm"
    package_source_variables = (packages.SOURCE_VARIABLE, "preflight_package_source")
    runtime_secrets: Mapping[str, RuntimeSecret] = MappingProxyType(
        {
            # munge accepts up to 1024 bytes; its own tools generate 128.
            "munge_key": RuntimeSecret(128, replaceable=True),
            # HS256: as long as the digest, as in Slurm's own instructions.
            "jwt_key": RuntimeSecret(32),
            "slurmdbd_password": RuntimeSecret(32, "urlsafe"),
        }
    )
    final_phases = ("serving", "removed", "staged", "rotated")
    lead_variables = ("slurm_controller_host", "slurm_controller_addr")
    work_variable = "slurm_work"
    metrics = SlurmMetrics()

    def decide(self, world: World) -> Plan:
        return decide(world)

    def look(self, world: World) -> Play | None:
        ready = ready_controllers(world.members)
        return Play("an operator requested it", "observe", tuple(ready)) if ready else None

    def hostname(self, member: Member) -> str | None:
        return node_name(member)

    def has_new_config(self, instance: AppInstance) -> bool:
        noted = notes.instance(instance)
        return noted.config_digest not in (None, desired_config.digest_with(instance, noted.contributors or ()))

    def has_new_attachments(self, instance: AppInstance, attachments: Sequence[AttachedProject]) -> bool:
        return instance.is_shared and notes.instance(instance).attachments_digest != attached.digest(attachments)

    def full_detail(self, member: Member) -> Detail:
        return detail.filled(member)

    def fit_detail(self, component_key: str, detail: Detail) -> Detail:
        return fitted(component_key, detail)

    def report_readers(self, members: Iterable[Member], on_record: Iterable[Member]) -> Mapping[UUID, ReportReader]:
        taken = names_on_record(on_record)
        return {one.id: MemberReports(one.id, one.component_key, node_name(one), taken) for one in members}

    def variables(
        self,
        instance: AppInstance,
        members: Iterable[Member],
        on_record: Iterable[Member],
        attachments: Sequence[AttachedProject] | None = None,
    ) -> Variables:
        return host_vars.variables(instance, list(members), list(on_record), attachments)


SLURM: App = SlurmApp()
