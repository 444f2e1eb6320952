"""The web farm, as the core sees it: everything that runner/model/app.py asks an app for."""

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

from pydantic import BaseModel, Field

from examples.web_farm.components import COMPONENTS, WEB
from examples.web_farm.decide import decide
from examples.web_farm.plays import SOURCE_VARIABLE, look
from examples.web_farm.reports import FarmReports
from runner.model.app import App, ReportReader, RuntimeSecret, Variables
from runner.model.attached import AttachedProject
from runner.model.plan import Detail, Plan, Play
from runner.model.platform import AppInstance, Member, MemberStatus
from runner.model.world import World

HERE = Path(__file__).resolve().parent


class FarmSettings(BaseModel):
    """The farm has no setting of its own, only another default for one of the runner's."""

    app_slug: str = Field("web-farm", pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")


class FarmMetrics:
    families: ClassVar[Mapping[str, str]] = {"web_farm_webs_answering": "Web members that answer the balancer"}
    verbs = ("add", "remove", "decommission")
    playbooks = ("converge", "remove", "decommission", "observe")

    def cluster(self, instance: AppInstance) -> str:
        return instance.name or str(instance.id)

    def members(self, instance: AppInstance) -> Mapping[str, int]:
        return {}

    def samples(self, snapshot: Any) -> Mapping[str, float]:
        return {"web_farm_webs_answering": float(sum(status == 200 for status in snapshot.values()))}

    def record_samples(self, world: World) -> Mapping[str, float]:
        return {}


class WebFarm:
    bundle = str(HERE)
    components = COMPONENTS
    settings = FarmSettings
    artifact = "web-farm"
    package_source_variables = (SOURCE_VARIABLE, "farm_source")
    runtime_secrets: ClassVar[Mapping[str, RuntimeSecret]] = {}
    final_phases = ("serving", "removed")
    lead_variables = ("farm_balancer_host", "farm_balancer_addr")
    work_variable = "farm_work"
    metrics = FarmMetrics()

    def decide(self, world: World) -> Plan:
        return decide(world)

    def look(self, world: World) -> Play | None:
        return look(world)

    def hostname(self, member: Member) -> str | None:
        return None

    def has_new_config(self, instance: AppInstance) -> bool:
        return False

    def has_new_attachments(self, instance: AppInstance, attachments: Sequence[AttachedProject]) -> bool:
        return False

    def full_detail(self, member: Member) -> Detail:
        return {
            "role": member.component_key,
            "phase": "requested",
            "last_adapter_error": None,
            "config_version": None,
            **({"answers": None} if member.component_key == WEB else {}),
            **member.adapter_detail,
        }

    def fit_detail(self, component_key: str, detail: Detail) -> Detail:
        return detail

    def report_readers(self, members: Iterable[Member], on_record: Iterable[Member]) -> Mapping[UUID, ReportReader]:
        addresses = sum(one.status != MemberStatus.DELETED for one in on_record)
        return {one.id: FarmReports(one.id, one.component_key, addresses) for one in members}

    def variables(
        self,
        instance: AppInstance,
        members: Iterable[Member],
        on_record: Iterable[Member],
        attachments: Sequence[AttachedProject] | None = None,
    ) -> Variables:
        # Ansible would evaluate a template in a variable of the inventory; in base64 the text is nothing but text.
        page = str((instance.config or {}).get("page", "")).encode()
        return Variables(shared={"farm_page_base64": b64encode(page).decode()}, of_member={})


WEB_FARM: App = WebFarm()
