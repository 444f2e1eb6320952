"""The reports of one member of a play, checked against our own records. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from runner.model.app import Report
from runner.model.host_data import TEXT_BYTES, plain, printable
from runner.slurm.components import CONTROLLER
from runner.slurm.reports import read_detail
from runner.slurm.snapshot import Snapshot, read_snapshot


@dataclass(frozen=True)
class MemberReports:
    """Reads what a host reports for its own member; only the controller's member reports the cluster."""

    id: UUID
    component: str
    node_name: str | None = None
    taken: Mapping[str, UUID] = field(default_factory=dict)  # node names on record, and whose they are

    def accepts(self, action: str) -> bool:
        """A report of the plugin member_report, or of slurm_nodes on the controller when it fails."""
        return action == "member_report" or (action == "slurm_nodes" and self.component == CONTROLLER)

    def read(self, report: Mapping[str, Any], at: datetime | None) -> Report:
        detail, dropped = read_detail(self.component, report.get("detail"))
        name = detail.get("worker_hostname")
        if name is not None and not self._may_be_called(name):
            del detail["worker_hostname"]
            dropped.append("worker_hostname")
        snapshot = report.get("snapshot")
        if snapshot is not None and self.component != CONTROLLER:
            snapshot = None
            dropped.append("snapshot")
        phase = report.get("phase")
        phase = printable(phase, TEXT_BYTES) if phase is not None else None
        return Report(phase, detail, _snapshot(snapshot, at), tuple(dropped))

    def _may_be_called(self, name: object) -> bool:
        """A worker that has a name keeps it, and none gets the name of another member."""
        if self.node_name:
            return name == self.node_name
        return not isinstance(name, str) or self.taken.get(name, self.id) == self.id


def _snapshot(reported: Any, at: datetime | None) -> Snapshot | None:
    """None for a snapshot that cannot be read: an error here would end the Ansible run."""
    if reported is None:
        return None
    try:
        snapshot = read_snapshot(plain(reported))
        return snapshot.timed(at) if snapshot and at else snapshot
    except (TypeError, ValueError, OverflowError):
        return None
