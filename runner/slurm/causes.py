"""What can be wrong with a running instance: each code with its health and class.

app/error_codes.yaml has the same values with what each means; tests/unit/test_error_codes.py compares both.
"""

from dataclasses import dataclass

from runner.model import records
from runner.model.plan import ErrorClass
from runner.model.platform import Health, Member, Unreadable


@dataclass(frozen=True)
class Cause:
    """What one code means for the instance, and whether the adapter may repair it."""

    health: Health
    klass: ErrorClass = "intervention"


_DRIFT: ErrorClass = "drift"
CAUSES: dict[str, Cause] = {
    "controller_unknown": Cause(Health.UNKNOWN, "retryable"),
    "munge_not_active": Cause(Health.UNHEALTHY, _DRIFT),
    "slurmctld_not_active": Cause(Health.UNHEALTHY, _DRIFT),
    "slurmctld_not_answering": Cause(Health.UNHEALTHY),
    "nodes_unknown": Cause(Health.UNKNOWN, "retryable"),
    "mariadb_not_active": Cause(Health.DEGRADED, _DRIFT),
    "slurmdbd_not_active": Cause(Health.DEGRADED, _DRIFT),
    "slurmdbd_not_answering": Cause(Health.DEGRADED),
    "no_submit_account": Cause(Health.UNHEALTHY),
    "config_unknown": Cause(Health.DEGRADED, _DRIFT),
    "config_refused": Cause(Health.DEGRADED),
    "config_invalid": Cause(Health.DEGRADED),
    "config_taken_back": Cause(Health.DEGRADED),
    "config_rolled_back": Cause(Health.DEGRADED),
    "config_changed": Cause(Health.DEGRADED, _DRIFT),
    "config_not_loaded": Cause(Health.DEGRADED, _DRIFT),
    "attachments_not_followed": Cause(Health.DEGRADED, "retryable"),
    "access_closed": Cause(Health.DEGRADED),
    "munge_key_exposed": Cause(Health.DEGRADED),
    "munge_vulnerable": Cause(Health.DEGRADED),
    "foreign_root_trusted": Cause(Health.HEALTHY),
    "disk_nearly_full": Cause(Health.DEGRADED),
    "clock_skew": Cause(Health.DEGRADED),
    "version_differs": Cause(Health.DEGRADED),
    "no_worker_serves": Cause(Health.UNHEALTHY),
    "no_partition_open": Cause(Health.UNHEALTHY),
    "partition_closed": Cause(Health.DEGRADED),
    "partitions_unknown": Cause(Health.UNKNOWN, "retryable"),
    "confinement_weaker": Cause(Health.DEGRADED),
    "worker_absent": Cause(Health.DEGRADED),
    "worker_down": Cause(Health.DEGRADED, _DRIFT),
    "worker_not_responding": Cause(Health.DEGRADED, _DRIFT),
    "worker_invalid": Cause(Health.DEGRADED),
    "worker_not_schedulable": Cause(Health.DEGRADED),
    "worker_drained": Cause(Health.DEGRADED),
    "worker_held_by_person": Cause(Health.HEALTHY),
    "worker_wrong_resources": Cause(Health.DEGRADED),
    "worker_version_unfit": Cause(Health.DEGRADED),
    "worker_clock_skew": Cause(Health.DEGRADED),
    # Shown under the member's own code: host_key_missing, host_key_contradicted and host_key_note_invalid as well.
    "host_key_mismatch": Cause(Health.DEGRADED),
    # A failed worker is shown under its own last error's code; this one stands for all of them.
    "worker_failed": Cause(Health.DEGRADED),
    "no_new_machines": Cause(Health.HEALTHY),
    "app_version_differs": Cause(Health.HEALTHY),
    "record_unreadable": Cause(Health.DEGRADED),
    records.UNREADABLE: Cause(Health.DEGRADED),
    records.NEWER: Cause(Health.DEGRADED),
}
UNREADABLE = "record_unreadable"
# What to do about a record or a note that cannot be read, by its code.
HINTS = {
    UNREADABLE: "Have the platform's operators correct or cancel the record; `op cancel` cannot find it",
    records.UNREADABLE: "Correct the note in status_detail, or set it to null if no operation is under way",
    records.NEWER: "A newer runner wrote it: let only runners of that version or later work on this project",
}
# With one of these a worker takes no job.
NOT_SERVING = (
    "worker_absent",
    "worker_down",
    "worker_not_responding",
    "worker_invalid",
    "worker_not_schedulable",
    "worker_drained",
    "worker_failed",
)


@dataclass(frozen=True)
class Finding:
    """One problem of a running instance, and the member or record it concerns."""

    code: str
    message: str
    member: Member | None = None
    shown_as: str | None = None
    record: Unreadable | None = None

    @property
    def cause(self) -> Cause:
        return CAUSES[self.code]

    @property
    def is_drift(self) -> bool:
        return self.cause.klass == _DRIFT
