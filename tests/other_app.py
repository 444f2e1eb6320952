"""A made-up app for the core: a studio with one director, and painters that the operation `hire` brings in."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

from pydantic import BaseModel, Field

from runner.model.app import App, Report, ReportReader, RuntimeSecret, Variables
from runner.model.attached import AttachedProject
from runner.model.components import Components
from runner.model.neighbours import unjoined
from runner.model.plan import Claim, Detail, Finish, NewMember, Plan, Play, SetInstance, SetMember, Step
from runner.model.platform import UNFINISHED, AppInstance, Member, MemberStatus, OperationStatus
from runner.model.world import World

UNCLAIMED: Detail = {"claimed_by": None, "lease_expires_at": None}


class StudioSettings(BaseModel):
    varnish_seconds: int = Field(default=7, ge=1)


@dataclass(frozen=True)
class StudioReports:
    id: UUID

    def accepts(self, action: str) -> bool:
        return action == "member_report"

    def read(self, report: Mapping[str, Any], at: datetime | None) -> Report:
        return Report(phase=str(report["phase"]), detail={"easel": str(report["easel"])})


class StudioMetrics:
    families: ClassVar[Mapping[str, str]] = {"studio_pictures": "Pictures on the wall"}
    verbs = ("hire",)
    playbooks = ("paint",)

    def cluster(self, instance: AppInstance) -> str:
        return instance.name or "studio"

    def members(self, instance: AppInstance) -> Mapping[str, int]:
        return {}

    def samples(self, snapshot: Any) -> Mapping[str, float]:
        return {"studio_pictures": float(snapshot)}

    def record_samples(self, world: World) -> Mapping[str, float]:
        return {}


class Studio:
    bundle = None
    metrics = StudioMetrics()
    components = Components(lead="director", others=("painter",), joining=("hire",))
    settings = StudioSettings
    artifact = "studio"
    package_source_variables = ("studio_package_source", "studio_source")
    runtime_secrets: ClassVar[Mapping[str, RuntimeSecret]] = {}
    final_phases = ("painting",)
    lead_variables = ("studio_director", "studio_director_address")
    work_variable = "studio_work"

    def hostname(self, member: Member) -> str | None:
        return member.adapter_detail.get("easel")

    def decide(self, world: World) -> Plan:
        """Claim, create, play, conclude: the first of these that has something to do."""
        for find in (self._operations, self._conclusions, self._bring_up, self._ends):
            if steps := find(world):
                return Plan(tuple(steps))
        return Plan()

    def _operations(self, world: World) -> list[Step]:
        accepted = [one for one in world.operations if one.status == OperationStatus.ACCEPTED]
        return [Claim("asked for", one) for one in accepted] or [
            NewMember("hired", one, "painter", allocation, {"operation_id": str(one.id)})
            for one in world.operations
            for allocation in unjoined(one, world.members, self.components)
        ]

    def _conclusions(self, world: World) -> list[Step]:
        found = [(one, outcome) for one in world.members if (outcome := world.outcomes.get(one.id))]
        return [
            SetMember(
                "the play ended",
                member,
                MemberStatus.FAILED if outcome.error else MemberStatus.READY,
                {**outcome.detail, **UNCLAIMED, "phase": outcome.phase},
            )
            for member, outcome in found
        ]

    def _bring_up(self, world: World) -> list[Step]:
        coming = [one for one in world.members if one.status in UNFINISHED]
        unclaimed = [one for one in coming if one.id not in world.fences]
        play = Play("asked for", "paint", world.members, work={"varnish": world.policy.app}, fences=world.fences)
        return [Claim("it comes up", one) for one in unclaimed] or ([play] if coming else [])

    def _ends(self, world: World) -> list[Step]:
        steps: list[Step] = [Finish("hired", one, OperationStatus.SUCCEEDED, {}) for one in world.operations]
        if world.instance.status != "running":
            steps.append(SetInstance("the studio is open", "running", "healthy", {}))
        return steps

    def look(self, world: World) -> Play | None:
        return None

    def has_new_config(self, instance: AppInstance) -> bool:
        return False

    def has_new_attachments(self, instance: AppInstance, attachments: Sequence[AttachedProject]) -> bool:
        return False

    def full_detail(self, member: Member) -> Detail:
        return {"easel": None, **member.adapter_detail}

    def fit_detail(self, component_key: str, detail: Detail) -> Detail:
        return detail

    def report_readers(self, members: Iterable[Member], on_record: Iterable[Member]) -> Mapping[UUID, ReportReader]:
        return {one.id: StudioReports(one.id) for one in members}

    def variables(
        self,
        instance: AppInstance,
        members: Iterable[Member],
        on_record: Iterable[Member],
        attachments: Sequence[AttachedProject] | None = None,
    ) -> Variables:
        return Variables(shared={"studio_palette": (instance.config or {}).get("palette")}, of_member={})


STUDIO: App = Studio()
