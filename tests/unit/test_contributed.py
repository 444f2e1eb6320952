"""Workers that a project contributes: their partition, the key that opens them, and the key that they could read.

Over 300 lines, because each case is a contribution to the same shared cluster.
"""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from runner.act import inventory
from runner.act.inventory import Agent
from runner.model.plan import AdapterError, NewMember, Play, Refuse, Step
from runner.model.platform import Member, MemberStatus
from runner.model.world import Outcome, Policy, World
from runner.slurm import attached, desired_config
from runner.slurm.app import SLURM
from runner.slurm.attached import feature_of
from runner.slurm.decide import decide
from runner.slurm.findings import findings
from runner.slurm.host_vars import variables
from runner.slurm.notes import WorkerNotes
from tests.unit.fake_slurm import FakeNode
from tests.unit.lifecycle import ask, ask_whole, playbooks, serving, the, tick
from tests.unit.test_follow_attachments import A, B, SharedSlurm, account, attachment, shared
from tests.unit.worlds import NOW, PROJECT, add, after, allocation, entitled, of_kind, settle

OWN = {"submit": True, "partitions": ["own"]}
CREDENTIAL = UUID(int=0xCC)
REFUSED = AdapterError("config_refused", "fatal: no such thing", "intervention")


@dataclass
class Contributing(SharedSlurm):
    """A shared cluster whose slurm.conf has the partitions that the play gave it."""

    configured: list[str] = field(default_factory=lambda: ["main"])
    refuses: AdapterError | None = None
    joined_without_partition: list[str] = field(default_factory=list)

    def run(self, world: World, play: Play) -> World:
        lead = play.members[0]
        if play.playbook == "deploy":
            if self.refuses:
                return after(world, play, {lead.id: Outcome("controller", {}, self.refuses)}, None)
            shown = variables(world.instance, play.members, world.members, world.attachments).shared
            self.configured = [one["name"] for one in shown["slurmctld_partitions"]]
            live = {"applied_config": shown["slurm_desired_config"]}
            return after(world, play, {lead.id: Outcome("baseline", live)}, self.seen())
        if play.playbook == "follow_attachments":
            listed = play.terms["slurm_projects"]["partitions"]
            assert set(listed) <= set(self.configured), "Slurm has no such partition"
        if play.playbook == "add_worker":
            features = [one for one in map(feature_of, play.members) if one]
            self.joined_without_partition += [one for one in features if one not in self.configured]
        return super().run(world, play)


@pytest.fixture
def slurm() -> Contributing:
    return Contributing(nodes={"w2": FakeNode()})


def served(*attachments: Any, **changes: Any) -> World:
    """A shared cluster that has what is asked for."""
    now = shared(*attachments, **changes)
    now = now.later(instance=now.instance.model_copy(update={"config": {"cluster_name": "gs0"}}))  # the fake's
    lead = next(one for one in now.members if one.component_key == "controller")
    applied = {"applied_config": desired_config.digest(now.instance)}
    return now.with_member(lead.written(lead.status, applied))


def contributing(policy: dict[str, Any] = OWN, **changes: Any) -> Any:
    return attachment(status="active", may_contribute=True, app_policy=policy, **changes)


def asked(now: World, *numbers: int, project: UUID = A) -> World:
    places = {one.id: one for one in (allocation(number, project_id=project) for number in numbers)}
    made = add(*numbers, source_project_id=project)
    given = {**now.allocations, **places}
    return now.later(operations=(*now.operations, made), allocations=given, entitlements=entitled(PROJECT, A, B))


def ticks(now: World, slurm: Contributing, count: int = 4) -> tuple[World, list[Step], list[Play]]:
    steps, plays = list[Step](), list[Play]()
    for _ in range(count):
        now, more, played = tick(now, slurm)
        steps, plays = steps + more, plays + played
    return now, steps, plays


def workers_of(now: World, project: UUID = A) -> list[Member]:
    return [one for one in now.members if one.source_project_id == project]


def codes(now: World) -> list[str]:
    return [one["code"] for one in (now.instance.status_detail or {})["reasons"]]


def test_the_partition_is_live_and_closed_before_the_first_worker_joins(slurm: Contributing) -> None:
    now, steps, plays = ticks(asked(served(contributing()), 3), slurm)
    order = [one for one in playbooks(plays) if one in ("deploy", "follow_attachments", "add_worker")]
    assert order.index("deploy") < order.index("add_worker") and slurm.joined_without_partition == []
    assert slurm.configured == ["main", account(A)]
    assert slurm.may_submit(A, account(A)) and not slurm.may_submit(A)
    (worker,) = workers_of(now)
    assert (worker.status, feature_of(worker)) == ("ready", account(A))
    assert ["act as any user" in one.why for one in of_kind(steps, NewMember)] == [True]
    assert now.instance.health == "healthy"


def test_a_second_worker_of_the_project_changes_no_configuration(slurm: Contributing) -> None:
    now, _, _ = ticks(asked(served(contributing()), 3), slurm)
    now, _, plays = ticks(asked(now, 4), slurm)
    assert "deploy" not in playbooks(plays)
    assert [one.status for one in workers_of(now)] == ["ready", "ready"]


def test_without_the_partition_no_worker_joins_and_the_reason_is_named(slurm: Contributing) -> None:
    slurm.refuses = REFUSED
    now, _, plays = ticks(asked(served(contributing()), 3), slurm)
    assert "add_worker" not in playbooks(plays)
    (worker,) = workers_of(now)
    assert (worker.status, worker.notes.error_code) == ("failed", "own_partition_refused")
    assert not slurm.may_submit(A, account(A))


def test_the_partition_outlives_the_last_worker_and_is_closed(slurm: Contributing) -> None:
    now, _, _ = ticks(asked(served(contributing()), 3), slurm)
    (worker,) = workers_of(now)
    now, _, plays = ticks(now.later(operations=(ask("remove", worker, source_project_id=A),)), slurm)
    assert the(now, worker).status == "deleted"
    assert slurm.configured == ["main", account(A)] and slurm.admitted[account(A)] == []
    assert "deploy" not in playbooks(plays), "what waits in the partition must not be ended"
    now, _, plays = ticks(asked(now, 3), slurm)
    assert slurm.may_submit(A, account(A)) and "deploy" not in playbooks(plays)


def test_the_configuration_settles_and_is_not_taken_for_a_new_one(slurm: Contributing) -> None:
    now, _, _ = ticks(asked(served(contributing()), 3), slurm)
    assert not SLURM.has_new_config(now.instance)
    now, _, plays = ticks(now, slurm, 2)
    assert "deploy" not in playbooks(plays)
    assert (now.instance.status_detail or {})["contributors"] == [str(A)]


def test_another_projects_contribution_adds_its_own_partition(slurm: Contributing) -> None:
    both = (contributing(), attachment(B, status="active", may_contribute=True, app_policy=OWN, identities=[]))
    now, _, _ = ticks(asked(served(*both), 3), slurm)
    now, _, _ = ticks(asked(now, 4, project=B), slurm)
    assert slurm.configured == ["main", account(A), account(B)]
    assert not slurm.may_submit(A, account(B)) and not slurm.may_submit(B, account(A))
    assert [feature_of(one) for one in workers_of(now, B)] == [account(B)]


# -- the key that a project could read -------------------------------------------------------------------------------


def test_after_a_withdrawal_health_names_the_key_until_it_is_rotated(slurm: Contributing) -> None:
    now, _, _ = ticks(asked(served(contributing()), 3), slurm)
    (worker,) = workers_of(now)
    now = now.with_member(worker.written(worker.status, {"host_touched": True}))
    now, _, _ = ticks(now.later(operations=(ask("remove", worker, source_project_id=A),)), slurm)
    assert the(now, worker).status == "deleted"
    assert "munge_key_exposed" in codes(now) and now.instance.health == "degraded"
    now, _, _ = ticks(now.later(instance_operations=(ask_whole("rotate_credentials"),)), slurm)
    assert "munge_key_exposed" not in codes(now) and now.instance.health == "healthy"


def test_a_worker_that_leaves_after_the_rotation_exposes_the_new_key(slurm: Contributing) -> None:
    now, _, _ = ticks(asked(served(contributing()), 3, 4), slurm)
    first, second = (the(now, one).written("ready", {"host_touched": True}) for one in workers_of(now))
    now = now.with_member(first).with_member(second)
    now, _, _ = ticks(now.later(operations=(ask("remove", first, source_project_id=A),)), slurm)
    now, _, _ = ticks(now.later(instance_operations=(ask_whole("rotate_credentials"),)), slurm)
    assert "munge_key_exposed" not in codes(now)
    now, _, _ = ticks(now.later(operations=(ask("remove", the(now, second), source_project_id=A),)), slurm)
    assert "munge_key_exposed" in codes(now)


@pytest.mark.parametrize(
    ("source", "touched", "shown"), [(A, True, True), (A, False, False), (None, True, False)], ids=str
)
def test_only_a_contributed_host_that_had_the_key_exposes_it(
    slurm: Contributing, source: UUID | None, touched: bool, shown: bool
) -> None:
    own = serving(3, source_project_id=source, adapter_detail={"host_touched": touched})
    slurm.nodes["w3"] = FakeNode()
    now = served(contributing()).with_member(own)
    now, _, _ = ticks(now.later(operations=(ask("remove", own, source_project_id=source),)), slurm)
    assert the(now, own).status == "deleted"
    assert (WorkerNotes.read(the(now, own).adapter_detail).munge_key_left_at is not None) is shown
    assert ("munge_key_exposed" in codes(now)) is shown


def test_a_failed_host_that_had_the_key_exposes_it_also_after_another_attempt(
    slurm: Contributing,
) -> None:
    failed = serving(3, source_project_id=A, status="failed", adapter_detail={"host_touched": True})
    now = asked(served(contributing()).with_member(failed), 3)

    class Refusing(Contributing):
        def _on_host(self, play: Play, member: Member) -> Outcome:
            refused = AdapterError("foreign_root_access", "others can become root", "intervention")
            return Outcome(error=refused) if member.source_project_id else super()._on_host(play, member)

    refusing = Refusing(nodes=slurm.nodes)
    now, _, _ = ticks(now, refusing)
    (again,) = [one for one in workers_of(now) if one.status != "deleted"]
    assert again.id != failed.id and again.status == "failed"
    assert "munge_key_exposed" not in codes(now), "its machine is not given back yet"
    slurm.configured = refusing.configured
    now, _, _ = ticks(now.later(operations=(ask("remove", again, source_project_id=A),)), slurm)
    assert the(now, again).status == "deleted" and "munge_key_exposed" in codes(now)


@pytest.mark.parametrize("source", [None, B])
def test_a_project_takes_out_no_worker_that_it_did_not_contribute(slurm: Contributing, source: UUID | None) -> None:
    own = serving(3, source_project_id=source)
    slurm.nodes["w3"] = FakeNode()
    now = served(contributing()).with_member(own)
    now, steps, _ = ticks(now.later(operations=(ask("remove", own, source_project_id=A),)), slurm)
    assert [one.code for one in of_kind(steps, Refuse)] == ["allocation_not_contributed"]
    assert the(now, own).status == "ready"


# -- the credential that opens the host ------------------------------------------------------------------------------

UNDELIVERED = AdapterError("own_credential_unavailable", "it was revoked", "intervention")


def test_a_worker_whose_credential_is_gone_leaves_without_its_host_in_the_end(slurm: Contributing) -> None:
    own = serving(3, source_project_id=A, status="deleting", adapter_detail={"host_touched": True})
    slurm.nodes["w3"] = FakeNode()
    now = served(contributing()).with_member(own)
    removal = ask("remove", own, source_project_id=A, parameters={"host_patience_seconds": 60})

    class Undelivered(Contributing):
        def _on_host(self, play: Play, member: Member) -> Outcome:
            return Outcome(error=UNDELIVERED) if member.source_project_id else super()._on_host(play, member)

    closed = Undelivered(nodes=slurm.nodes)
    now = now.with_member(own.written("ready", {}))
    now, _, _ = ticks(now.later(operations=(removal,)), closed, 1)
    assert the(now, own).status == "deleting" and the(now, own).notes.error_code == UNDELIVERED.code
    now, _, _ = ticks(now.later(now=now.now + timedelta(minutes=3)), closed, 3)
    left = the(now, own)
    assert left.status == "deleted" and left.adapter_detail["host_left"] == "its credential was not delivered"
    assert "munge_key_exposed" in codes(now), "the key is still on that host"


def test_an_identity_with_the_name_of_a_login_keeps_no_play_from_the_host() -> None:
    people = [{"subject": "s", "username": "login"}]
    now = served(contributing(identities=people, adapter_detail={"people": {"s": "login:20009:20009"}}))
    places = {
        key: one.model_copy(update={"connection": {**(one.connection or {}), "username": "login"}})
        for key, one in now.allocations.items()
    }
    built, problems = inventory.build(SLURM, now.instance, now.members, places, attachments=now.attachments)
    assert problems == {} and "login" in str(built)


def test_each_host_is_offered_the_key_of_its_own_credential_only() -> None:
    own = serving(3, source_project_id=A, access_credential_id=CREDENTIAL)
    now = served(contributing()).with_member(own)
    agents = {CREDENTIAL: Agent("/run/agent-0.sock", "ssh-ed25519 AAAA")}
    tree, problems = inventory.build(
        SLURM, now.instance, now.members, {**now.allocations, allocation(3).id: allocation(3)}, agents=agents
    )
    assert problems == {}
    options = {name: one["ansible_ssh_common_args"] for name, one in tree["all"]["hosts"].items()}
    with_agent = [name for name, text in options.items() if "IdentityAgent=/run/agent-0.sock" in text]
    assert with_agent == [f"worker-{own.id.hex[:8]}"]
    assert "IdentityFile=none" in options[with_agent[0]]
    host = tree["all"]["hosts"][with_agent[0]]
    assert (host["gpuaas_source_project_id"], host["gpuaas_login_key"]) == (str(A), "ssh-ed25519 AAAA")
    assert (host["slurmd_feature"], host["slurm_trusted_contributor"]) == (account(A), False)


def test_a_host_whose_credential_was_not_delivered_is_not_dialled_at_all() -> None:
    own = serving(3, source_project_id=A, access_credential_id=CREDENTIAL)
    now = served(contributing()).with_member(own)
    tree, problems = inventory.build(
        SLURM, now.instance, now.members, {**now.allocations, allocation(3).id: allocation(3)}, agents={}
    )
    assert {one.code for one in problems.values()} == {"own_credential_unavailable"} and set(problems) == {own.id}
    assert len(tree["all"]["hosts"]) == 2, "the others go on"


@pytest.mark.parametrize(
    ("changes", "trusted"),
    [
        ({"trusted_contributor": True}, True),
        ({"trusted_contributor": False}, False),
        ({"trusted_contributor": True, "may_contribute": False}, True),
        ({"trusted_contributor": True, "status": "suspended"}, True),
        ({"trusted_contributor": True, "status": "detached"}, False),
        ({"trusted_contributor": True, "status": "paused"}, False),
    ],
    ids=str,
)
def test_a_trusted_projects_hosts_are_trusted_until_it_is_detached(changes: dict[str, Any], trusted: bool) -> None:
    given = attachment(**{"status": "active", "may_contribute": True, **changes})
    own = serving(3, source_project_id=A)
    assert attached.is_trusted(own, [given]) is trusted
    assert not attached.is_trusted(serving(3, source_project_id=B), [given])


# -- what health says of a host ---------------------------------------------------------------------------------------


def shown_of(member: Member) -> dict[str, str]:
    slurm = Contributing(nodes={"w3": FakeNode()})
    lead = next(one for one in served().members if one.component_key == "controller")
    return {one.code: one.message for one in findings(slurm.seen(), [lead, member], Policy())}


def test_a_vulnerable_munge_is_named_in_the_health_of_any_cluster() -> None:
    old = serving(3, adapter_detail={"munge_version": "0.5.15-2", "munge_vulnerable": True})
    assert "0.5.15-2" in shown_of(old)["munge_vulnerable"]
    assert shown_of(serving(3, adapter_detail={"munge_vulnerable": False})) == {}


def test_ways_to_root_of_a_trusted_host_are_listed() -> None:
    own = serving(3, source_project_id=A, adapter_detail={"foreign_root": ["user toor has uid 0"]})
    assert "toor" in shown_of(own)["foreign_root_trusted"]
    gone = own.model_copy(update={"status": MemberStatus.FAILED})
    assert "foreign_root_trusted" not in shown_of(gone)


def test_a_plan_says_that_root_on_the_worker_is_the_whole_cluster() -> None:
    _, steps, _ = settle(asked(served(contributing()), 3).later(now=NOW), decide)
    (made,) = of_kind(steps, NewMember)
    assert str(A) in made.why and "any user of the cluster" in made.why
