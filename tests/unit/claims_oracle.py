"""Whether a play may change the hosts it names: an oracle of its own, asked by `settle` about every play there is."""

from runner.model.plan import Play
from runner.model.platform import Member, Operation
from runner.model.times import read_time
from runner.model.world import World

CONTROLLER_AND_WORKERS = {"controller", "worker"}
# Whose hosts each playbook changes, as the playbooks themselves show.
CHANGES = {
    "observe": set[str](),
    "drain_worker": {"controller"},
    "quiesce": {"controller"},
    "follow_attachments": CONTROLLER_AND_WORKERS,
    "follow": CONTROLLER_AND_WORKERS,
    "deploy": CONTROLLER_AND_WORKERS,
    "add_worker": CONTROLLER_AND_WORKERS,
    "remove_worker": CONTROLLER_AND_WORKERS,
    "stop": CONTROLLER_AND_WORKERS,
    "restart": CONTROLLER_AND_WORKERS,
    "upgrade": CONTROLLER_AND_WORKERS,
    "rollback": CONTROLLER_AND_WORKERS,
    "rotate": CONTROLLER_AND_WORKERS,
    "decommission": CONTROLLER_AND_WORKERS,
}


def changed(play: Play) -> list[Member]:
    return [one for one in play.members if one.component_key in CHANGES[play.playbook]]


def check_claimed(now: World, play: Play) -> None:
    """Each changed member is claimed by this runner, by itself or by its operation, and carries its number."""
    newest = {one.id: one for one in now.members}
    for member in changed(play):
        claimed = newest[member.id]
        fence = play.fences.get(member.id)
        assert fence and fence == claimed.adapter_detail.get("fence"), f"{play.playbook}: {member.id} has no number"
        by, until = claimed.adapter_detail.get("claimed_by"), read_time(claimed.adapter_detail.get("lease_expires_at"))
        lives = until is not None and until > now.now
        assert not (by and by != now.runner_id and lives), f"{play.playbook}: {by} holds {member.id}"
        assert (by == now.runner_id and lives) or _covered(now, play, claimed), (
            f"{play.playbook}: no runner holds {claimed}"
        )
    assert set(play.fences) <= {one.id for one in changed(play)}, "a play that only reads carries no number"


def _covered(now: World, play: Play, member: Member) -> bool:
    if any(_is_ours(now, one) for one in now.instance_operations):
        return True
    if now.instance.status == "deleting":
        keepers = [one for one in now.members if one.adapter_detail.get("claimed_by") == now.runner_id]
        return bool(keepers)
    notes = {member.adapter_detail.get("operation_id"), (member.adapter_detail.get("leave") or {}).get("operation_id")}
    shared = member.component_key == "controller" and play.playbook != "deploy"
    return any(
        _is_ours(now, one) and (shared or member.id in one.member_ids or str(one.id) in notes) for one in now.operations
    )


def _is_ours(now: World, operation: Operation) -> bool:
    until = operation.lease_expires_at
    return operation.claimed_by == now.runner_id and until is not None and until > now.now
