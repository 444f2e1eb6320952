"""Health of a running instance: one pure function from what was observed to a health status and its reasons.

Healthy: everything requested serves. Degraded: the cluster takes and runs jobs, but with less than it should have, or
not for long. Unhealthy: it takes or runs no jobs. Unknown: it could not be looked at. findings.py finds what is wrong,
causes.py has the codes. The table is in docs/usage/health.md.
"""

from collections.abc import Iterable, Sequence

from runner.model import limits
from runner.model.instance_notes import Reason
from runner.model.names import host_name
from runner.model.plan import stamp
from runner.model.platform import Health, Member, Unreadable
from runner.model.world import Policy
from runner.slurm import notes
from runner.slurm.causes import HINTS, Finding
from runner.slurm.findings import findings
from runner.slurm.snapshot import Snapshot

MESSAGE_CHARS = 400
WORST = (Health.HEALTHY, Health.DEGRADED, Health.UNHEALTHY, Health.UNKNOWN)


def health(
    snapshot: Snapshot | None,
    members: Sequence[Member],
    policy: Policy,
    unreadable: Iterable[Unreadable] = (),
    more: Iterable[Finding] = (),
) -> tuple[Health, list[Reason]]:
    """The health of a running instance, and its reasons, the worst first."""
    found = [*_unreadable(unreadable), *findings(snapshot, members, policy), *more]
    found = sorted(found, key=lambda one: -WORST.index(one.cause.health))
    worst = found[0].cause.health if found else Health.HEALTHY
    return worst, limits.fit_reasons([_reason(one, policy) for one in found])


def unreadable_reasons(unreadable: Iterable[Unreadable]) -> list[Reason]:
    """The reasons for records alone, for an instance whose runtime is not looked at."""
    return [_reason(one, Policy()) for one in _unreadable(unreadable)]


def _unreadable(unreadable: Iterable[Unreadable]) -> list[Finding]:
    return [
        Finding(one.code, f"{one}: nothing is changed until it can be read. {HINTS[one.code]}", record=one)
        for one in unreadable
    ]


def _reason(finding: Finding, policy: Policy) -> Reason:
    member = finding.member
    reason = Reason(
        code=finding.shown_as or finding.code,
        message=(finding.message + _tried(finding, policy))[:MESSAGE_CHARS],
        klass=finding.cause.klass,
        health=finding.cause.health.value,
    )
    if member:
        reason = reason.with_fields(member_id=str(member.id), host=host_name(member))
    if finding.record:
        reason = reason.with_fields(kind=finding.record.kind, id=finding.record.id)
    if member and finding.is_drift and (repair := notes.of(member).repair):
        reason = reason.with_fields(repair=repair.stored())
    return reason


def _tried(finding: Finding, policy: Policy) -> str:
    """Which repairs were tried against drift, and what comes next."""
    if not finding.is_drift or finding.member is None:
        return ""
    repair = notes.of(finding.member).repair
    if not policy.repair:
        return ". It is not repaired, since GPUAAS_REPAIR is false: repair it on the host"
    if repair is None:
        return ""
    tried = f"repair was tried {repair.count} of at most {policy.max_attempts} times: {repair.outcome}"
    if not repair.is_spent(policy.max_attempts):
        return f" ({tried}; the next try is due at {stamp(repair.next_at) if repair.next_at else 'the next tick'})"
    return f" ({tried}). Nothing more is tried: repair it on the host, as docs/usage/health.md says"
