"""What all steps of one smoke run share: its identities, its allocations, and what it has requested so far."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from runner.model.errors import RequestError
from runner.model.gaps import Gaps
from runner.model.platform import OPEN, AppInstance, InstanceStatus, Operation
from runner.platform.client import Client
from runner.settings import Settings
from runner.smoke.audit import Mutation
from runner.smoke.plan import correlation_id, instance_name


class CheckFailed(Exception):
    """Something is not as a step requires it. `code` is for reports."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class NotApplicable(Exception):
    """A step cannot be done on this platform; the message says why."""


@dataclass
class Run:
    """`operator` requests, `runner` does the work. `asked` has the operation of each step that requested one."""

    run_id: str
    operator: Client
    runner: Client
    settings: Settings
    allocations: Sequence[UUID]
    gaps: Gaps
    found: AppInstance | None = None
    asked: dict[str, Operation] = field(default_factory=dict)

    @property
    def instance(self) -> AppInstance:
        assert self.found is not None
        return self.found

    def mutations(self, deploy_step: str) -> list[Mutation]:
        """What this run has requested, in all of its processes. A runner's claim and result are lines of their own."""
        found = []
        if self.found:
            found.append(Mutation(deploy_step, str(self.found.id), self.found.correlation_id))
        for step, one in self.asked.items():
            latest = self.operator.operation_again(self.instance.id, one)
            least = 1 if latest.status in OPEN else 2
            found.append(Mutation(step, str(one.id), one.correlation_id, least))
        return found

    def find(self, deploy_step: str) -> AppInstance | None:
        """The instance that this run made before it was killed, by its correlation id."""
        listed = self.operator.instances(app_slug=self.settings.app_slug)
        name, own = instance_name(self.run_id), correlation_id(self.run_id, deploy_step)
        found = next((one for one in listed if one.correlation_id == own), None)
        alive = [one for one in listed if one.status != InstanceStatus.DELETED]
        if found is None and (other := next((one for one in alive if one.name == name), None)):
            raise RequestError(
                f"instance {other.id} is called {name} and does not have this run's correlation id {own}: nothing shows"
                f" that a smoke run made it. If one did, remove it: gpuaas-slurm op decommission {other.id}"
            )
        return found
