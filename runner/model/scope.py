"""What one runner serves: the instances of a project, or one shared runtime of a tenant. Pure."""

from dataclasses import dataclass
from uuid import UUID

from runner.model.platform import Allocation, AppInstance
from runner.model.records import Detail


@dataclass(frozen=True)
class ProjectScope:
    """Every instance of our app in one project."""

    project_id: UUID

    def __str__(self) -> str:
        return f"project {self.project_id}"

    @property
    def ids(self) -> Detail:
        """The ids that are on each log line."""
        return {"project_id": str(self.project_id)}

    def has_instance(self, instance: AppInstance) -> bool:
        return instance.project_id == self.project_id

    def may_know(self, instance_id: UUID) -> bool:  # noqa: ARG002 - the project's list has every id
        """Whether 404 for this instance means that it does not exist here."""
        return True

    def has_allocation(self, allocation: Allocation) -> bool:
        """Whether the record may be one of ours. A record without a project is."""
        return allocation.project_id in (None, self.project_id)


@dataclass(frozen=True)
class RuntimeScope:
    """One shared runtime. It is read and written as an instance that has no project."""

    org_id: UUID
    runtime_id: UUID

    def __str__(self) -> str:
        return f"shared runtime {self.runtime_id}"

    @property
    def ids(self) -> Detail:
        return {"org_id": str(self.org_id)}

    def has_instance(self, instance: AppInstance) -> bool:
        is_ours = (instance.id, instance.org_id) == (self.runtime_id, self.org_id)
        return is_ours and instance.project_id is None

    def may_know(self, instance_id: UUID) -> bool:
        """The operator's token opens no other runtime and no project."""
        return instance_id == self.runtime_id

    def has_allocation(self, allocation: Allocation) -> bool:  # noqa: ARG002
        """The runtime's own list has allocations of several projects."""
        return True


@dataclass(frozen=True)
class TenantScope:
    """A tenant without a chosen runtime: a person lists or creates runtimes. No runner works on it."""

    org_id: UUID

    def __str__(self) -> str:
        return f"tenant {self.org_id}"

    @property
    def ids(self) -> Detail:
        return {"org_id": str(self.org_id)}

    def has_instance(self, instance: AppInstance) -> bool:
        return instance.org_id == self.org_id and instance.project_id is None

    def may_know(self, instance_id: UUID) -> bool:  # noqa: ARG002
        return True

    def has_allocation(self, allocation: Allocation) -> bool:  # noqa: ARG002
        return True


Scope = ProjectScope | RuntimeScope | TenantScope
