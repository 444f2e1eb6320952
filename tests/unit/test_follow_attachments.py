"""The attachments of a shared runtime are carried out on the cluster and reported, each by itself.

Over 300 lines, because every part is tried on the same shared cluster.
"""

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml

from runner.model.attached import AttachedProject
from runner.model.plan import AdapterError, Play, Refuse, SetAttachment, SetInstance
from runner.model.platform import Unreadable
from runner.model.world import Outcome, World
from runner.slurm import attached
from runner.slurm.app import SLURM
from runner.slurm.decide import decide
from runner.slurm.decide.attachments import PLAYBOOK
from runner.slurm.host_vars import variables
from runner.slurm.snapshot import Snapshot
from runner.slurm.tenant.accounting_state import remembered
from tests.unit.fake_slurm import FakeNode, FakeSlurm
from tests.unit.lifecycle import playbooks, serving, tick
from tests.unit.worlds import (
    NOW,
    PROJECT,
    UNREACHABLE,
    add,
    after,
    allocation,
    deployed,
    entitled,
    instance,
    of_kind,
    settle,
)

PLAYBOOKS = Path(__file__).resolve().parents[2] / "playbooks"
A, B = UUID(int=0xA << 100), UUID(int=0xB << 100)
ALLOWED = {"submit": True, "partitions": ["main"]}
ANN = {"subject": "oidc|ann", "username": "ann", "uid": 20001}


def account(project: UUID) -> str:
    return f"p_{project.hex[:12]}"


def attachment(project: UUID = A, status: str = "requested", **changes: Any) -> AttachedProject:
    fields = {
        "id": UUID(int=project.int + 1),
        "project_id": project,
        "status": status,
        "app_policy": ALLOWED,
        "identities": [ANN],
        "created_at": NOW,
        "correlation_id": "attach-1",
    }
    return AttachedProject.model_validate(fields | changes)


@dataclass
class SharedSlurm(FakeSlurm):
    """A cluster that keeps what the play gave it: who may submit where."""

    admitted: dict[str, list[str]] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)
    users: dict[str, list[str]] = field(default_factory=dict)
    busy: list[str] = field(default_factory=list)
    fails: AdapterError | None = None
    closed_by_hand: list[str] = field(default_factory=list)
    # What Slurm keeps of each project's users; None if the look did not get it.
    remembered: dict[str, dict[str, str]] | None = field(default_factory=dict)

    def seen(self) -> Snapshot | None:
        shown = None if self.remembered is None else {name: [*kept.values()] for name, kept in self.remembered.items()}
        found = super().seen()
        return found and found.model_copy(update={"remembered": shown})

    def run(self, world: World, play: Play) -> World:
        if play.playbook != PLAYBOOK:
            return super().run(world, play)
        lead = play.members[0]
        if self.fails:
            return after(world, play, {lead.id: Outcome(error=self.fails)}, self.seen())
        given = play.terms["slurm_projects"]
        self.admitted = given["partitions"]
        self.open = {one["name"] for one in given["accounts"] if one["open"]}
        self.users = {one["name"]: one["users"] for one in given["accounts"]}
        for one in given["accounts"]:
            if self.remembered is not None:
                self.remembered.setdefault(one["name"], {}).update(remembered(one["memory"]))
        hosts = variables(world.instance, play.members, world.members, world.attachments).shared
        detail = {
            "projects_busy": list(self.busy),
            "projects_closed_by_hand": list(self.closed_by_hand),
            "projects_foreign": [],
            "projects_refused": [],
            "projects_unresolved": [],
            "users_version": hosts["slurm_users_version"],
        }
        outcomes = {one.id: Outcome("serving", {"users_version": detail["users_version"]}) for one in play.members[1:]}
        return after(world, play, {**outcomes, lead.id: Outcome("serving", detail)}, self.seen())

    def may_submit(self, project: UUID, partition: str = "main") -> bool:
        name = account(project)
        return name in self.open and name in self.admitted.get(partition, [])


def shared(*attachments: AttachedProject, **changes: Any) -> World:
    made = deployed(serving(2), **changes)
    runtime = made.instance.model_copy(
        update={"project_id": None, "owner_project_id": PROJECT, "control_plane_scope": "tenant"}
    )
    return made.later(instance=runtime, attachments=attachments)


@pytest.fixture
def slurm() -> SharedSlurm:
    return SharedSlurm(nodes={"w2": FakeNode()})


def ticks(now: World, slurm: SharedSlurm, count: int = 3) -> tuple[World, list[Any], list[Play]]:
    steps, plays = list[Any](), list[Play]()
    for _ in range(count):
        now, more, played = tick(now, slurm)
        steps, plays = steps + more, plays + played
    return now, steps, plays


def test_an_attached_project_becomes_active_once_it_may_submit(slurm: SharedSlurm) -> None:
    now, steps, plays = ticks(shared(attachment()), slurm)
    assert slurm.may_submit(A) and slurm.users == {account(A): ["ann"]}
    (one,) = now.attachments
    assert (one.status, one.health) == ("active", "healthy")
    assert one.adapter_detail["granted"] == {"submission": "open", "partitions": ["main"], "limits": {}}
    assert one.adapter_detail["account"] == account(A) and "oidc|ann" in one.adapter_detail["people"]
    assert playbooks(plays).count(PLAYBOOK) == 1, "carried out once"
    first = next(step for step in steps if isinstance(step, SetAttachment))
    assert steps.index(first) > 0 and first.rule == "follow the attachments"


def test_what_closes_is_carried_out_before_users_are_made() -> None:
    plays = yaml.safe_load((PLAYBOOKS / f"{PLAYBOOK}.yml").read_text())
    first, *later = [task for play in plays for task in play["tasks"]]
    assert first["slurm_projects"]["only_close"] is True, "no user of a project keeps a suspension from taking effect"
    opening = next(task["slurm_projects"] for task in later if "slurm_projects" in task)
    assert "only_close" not in opening
    same = ("owner", "cluster", "tenant", "accounts", "partitions")
    assert {name: first["slurm_projects"][name] for name in same} == {name: opening[name] for name in same}


def test_nothing_is_played_or_written_once_everything_is_as_asked(slurm: SharedSlurm) -> None:
    now, _, _ = ticks(shared(attachment()), slurm)
    assert not SLURM.has_new_attachments(now.instance, now.attachments), "an idle tick reads no members"
    _, steps, play = settle(now.later(now=now.now - timedelta(seconds=60)), decide)
    assert play is None and not of_kind(steps, SetAttachment)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"app_policy": {}}, "its policy does not allow it to submit"),
        ({"app_policy": {"submit": True}}, "its policy names no partition"),
        ({"app_policy": {"submit": "yes"}}, "app_policy cannot be used"),
        ({"status": "suspended"}, "its attachment is suspended"),
        ({"status": "detaching"}, "its attachment is detaching"),
        ({"status": "unheard-of"}, "not known to this version"),
    ],
)
def test_a_project_that_is_not_allowed_may_submit_nowhere(
    slurm: SharedSlurm, changes: dict[str, Any], why: str
) -> None:
    now, _, _ = ticks(shared(attachment(**changes), attachment(B, identities=[])), slurm)
    assert not slurm.may_submit(A) and slurm.may_submit(B)
    one = next(each for each in now.attachments if each.project_id == A)
    granted = one.adapter_detail["granted"]
    assert granted["submission"] == "closed" and why in granted["why_closed"] and one.access is None


def test_suspending_closes_one_project_and_leaves_the_others(slurm: SharedSlurm) -> None:
    now, _, _ = ticks(shared(attachment(), attachment(B, identities=[])), slurm)
    assert slurm.may_submit(A) and slurm.may_submit(B)
    first, second = now.attachments
    now, _, plays = ticks(now.later(attachments=(first.model_copy(update={"status": "suspended"}), second)), slurm)
    assert (slurm.may_submit(A), slurm.may_submit(B)) == (False, True)
    assert playbooks(plays).count(PLAYBOOK) == 1
    assert slurm.users[account(A)] == ["ann"], "its user keeps the association: running jobs go on"
    assert not {"deploy", "restart"} & set(playbooks(plays)), "no daemon is restarted"


@pytest.mark.parametrize(
    "changes", [{"status": "suspended"}, {"status": "detaching"}, {"app_policy": {}}], ids=["suspend", "detach", "deny"]
)
def test_a_suspension_waits_for_no_worker_that_is_to_get_new_users(slurm: SharedSlurm, changes: dict[str, Any]) -> None:
    now, _, _ = ticks(shared(attachment(), attachment(B, identities=[])), slurm)
    first, second = now.attachments
    bob = {"subject": "oidc|bob", "username": "bob", "uid": 20002}
    more = first.model_copy(update={"identities": [ANN, bob]})
    worker = next(one for one in now.members if one.component_key == "worker")
    now = now.with_member(worker.written(worker.status, {"leave": {"format": 9}}))  # by a newer runner
    now, _, _ = ticks(now.later(attachments=(more, second)), slurm)
    assert slurm.may_submit(B) and slurm.users[account(A)] == ["ann"], "new users wait for the worker"
    second = now.attachments[1].model_copy(update=changes)
    now, _, plays = ticks(now.later(attachments=(now.attachments[0], second)), slurm)
    assert not slurm.may_submit(B) and slurm.may_submit(A)
    assert all(worker.id not in {one.id for one in play.members} for play in plays if play.playbook == PLAYBOOK)


@pytest.mark.parametrize("before", ["requested", "suspended"])
def test_a_detach_waits_for_jobs_and_then_is_reported(slurm: SharedSlurm, before: str) -> None:
    now, _, _ = ticks(shared(attachment(status=before)), slurm)
    slurm.busy = [account(A)]
    leaving = now.attachments[0].model_copy(update={"status": "detaching"})
    now, _, _ = ticks(now.later(attachments=(leaving,)), slurm)
    assert not slurm.may_submit(A) and now.attachments[0].status == "detaching"
    assert "jobs of the project" in str((now.attachments[0].status_detail or {})["waiting"])
    slurm.busy = []
    now, _, _ = ticks(now, slurm, 2)
    assert now.attachments[0].status == "detached", "looked at with each observation"
    final = now.attachments[0]
    now, steps, _ = ticks(now, slurm)
    assert not of_kind(steps, SetAttachment) and now.attachments == (final,)


def test_a_project_with_workers_in_the_cluster_is_not_detached(slurm: SharedSlurm) -> None:
    own = serving(3, source_project_id=A)
    slurm.nodes["w3"] = FakeNode()
    start = shared(attachment(status="detaching"))
    now, _, _ = ticks(start.with_member(own), slurm)
    assert now.attachments[0].status == "detaching"
    assert "contributed" in str((now.attachments[0].status_detail or {})["waiting"])


def test_an_error_is_tried_again_later_and_nothing_is_reported_as_done(slurm: SharedSlurm) -> None:
    slurm.fails = UNREACHABLE
    now, steps, _ = ticks(shared(attachment()), slurm, 1)
    assert now.attachments[0].status == "requested"
    assert [list(step.changes) for step in of_kind(steps, SetAttachment)] == [["adapter_detail"]], "its users alone"
    reasons = of_kind(steps, SetInstance)[-1].detail["reasons"]
    assert "attachments_not_followed" in [one["code"] for one in reasons]
    slurm.fails = None
    now, _, _ = ticks(now.later(now=now.now + timedelta(minutes=10)), slurm)
    assert now.attachments[0].status == "active" and slurm.may_submit(A)


def test_access_by_hand_is_closed_by_a_later_comparison_and_shown(slurm: SharedSlurm) -> None:
    now, _, _ = ticks(shared(attachment()), slurm)
    slurm.closed_by_hand = ["user bob was coordinator of p_x"]
    now, steps, plays = ticks(now.later(now=now.now + timedelta(minutes=10)), slurm, 1)
    assert PLAYBOOK in playbooks(plays) and len(plays[0].members) == 1, "on the controller alone"
    (reason,) = [one for one in of_kind(steps, SetInstance)[-1].detail["reasons"] if one["code"] == "access_closed"]
    assert "bob" in reason["message"]


def test_while_a_record_cannot_be_read_no_one_is_let_in_who_was_not_before(slurm: SharedSlurm) -> None:
    now, _, _ = ticks(shared(attachment()), slurm)
    bob = {"subject": "oidc|bob", "username": "bob", "uid": 20002}
    more = now.attachments[0].model_copy(update={"identities": [ANN, bob]})
    bad = Unreadable("attachment", str(UUID(int=77)), "project_id: Field required")
    later = now.later(attachments=(more, attachment(B, identities=[])), unreadable_attachments=(bad,))
    then, steps, _ = ticks(later.later(now=later.now + timedelta(minutes=10)), slurm)
    assert (slurm.may_submit(A), slurm.may_submit(B)) == (True, False)
    assert slurm.users[account(A)] == ["ann"]
    assert "record_unreadable" in [one["code"] for one in of_kind(steps, SetInstance)[-1].detail["reasons"]]
    assert SLURM.has_new_attachments(then.instance, then.attachments), "it is not shown as carried out"
    slurm_now, _, _ = ticks(then.later(unreadable_attachments=()), slurm)
    assert slurm.may_submit(B) and slurm.users[account(A)] == ["ann", "bob"]
    assert all(one.status == "active" for one in slurm_now.attachments)


def test_notes_of_a_newer_runner_are_left_alone_and_let_no_one_in(slurm: SharedSlurm) -> None:
    newer = attachment(adapter_detail={"granted": {"format": 9}})
    now, steps, _ = ticks(shared(newer), slurm)
    assert not slurm.may_submit(A) and not of_kind(steps, SetAttachment)
    assert now.attachments == (newer,)


def test_a_project_cluster_has_no_variable_and_no_play_of_a_shared_one(slurm: SharedSlurm) -> None:
    own = deployed(serving(2))
    assert not {"slurm_shared", "slurmctld_partitions"} & set(variables(own.instance, own.members, own.members).shared)
    _, _, plays = ticks(own, slurm)
    assert PLAYBOOK not in playbooks(plays)
    assert not SLURM.has_new_attachments(instance(status="running"), ())


def test_a_list_that_is_not_known_locks_no_user_out() -> None:
    now = shared(attachment())
    unknown = variables(now.instance, now.members, now.members, None).shared
    assert unknown["slurm_shared"] is True and "slurm_users" not in unknown
    unnamed = variables(now.instance, now.members, now.members, now.attachments).shared
    assert "slurm_users" not in unnamed, "its notes may be lost"
    noted = attachment(adapter_detail={"account": account(A), "people": {"oidc|ann": "ann:20001:20001"}})
    newer = attachment(B, adapter_detail={"granted": {"format": 9}})
    assert "slurm_users" not in variables(now.instance, now.members, now.members, (noted, newer)).shared
    bob = attachment(B, identities=[{"subject": "oidc|bob", "username": "bob"}], adapter_detail={"people": {}})
    listed = variables(now.instance, now.members, now.members, (noted, bob)).shared
    assert [one["name"] for one in listed["slurm_users"]] == ["ann"]


def test_the_digest_of_what_is_asked_ignores_what_the_adapter_writes() -> None:
    asked = attachment()
    done = asked.model_copy(update={"status": "active", "health": "healthy", "adapter_detail": {"account": "p_0"}})
    assert attached.digest([asked, attachment(B)]) == attached.digest([attachment(B), done])
    assert attached.digest([asked]) != attached.digest([asked.model_copy(update={"status": "suspended"})])


def without_notes(now: World) -> World:
    """A platform that has lost what the runner kept on each attachment."""
    return now.later(attachments=tuple(one.model_copy(update={"adapter_detail": {}}) for one in now.attachments))


def test_a_new_identity_gets_a_user_after_a_look_and_its_note_comes_before_the_play(slurm: SharedSlurm) -> None:
    _, steps, plays = ticks(shared(attachment()), slurm, 1)
    assert playbooks(plays) == ["observe", PLAYBOOK]
    noted = next(step for step in steps if isinstance(step, SetAttachment))
    assert noted.changes["adapter_detail"]["people"] == {"oidc|ann": "ann:20001:20001"}
    assert plays[1].terms["slurm_projects"]["accounts"][0]["users"] == ["ann"]


def test_lost_notes_come_back_from_slurm_and_change_nothing_on_the_cluster(slurm: SharedSlurm) -> None:
    now, _, _ = ticks(shared(attachment()), slurm)
    renamed = now.attachments[0].model_copy(update={"identities": [{"subject": "oidc|ann", "username": "anna"}]})
    now, _, _ = ticks(now.later(attachments=(renamed,)), slurm)
    before, users = now.attachments, dict(slurm.users)
    now, _, plays = ticks(without_notes(now), slurm)
    assert PLAYBOOK not in playbooks(plays) and slurm.users == users
    assert now.attachments == before


def test_a_removed_identity_whose_notes_are_lost_keeps_its_name(slurm: SharedSlurm) -> None:
    now, _, _ = ticks(shared(attachment()), slurm)
    gone = now.attachments[0].model_copy(update={"identities": []})
    now, _, _ = ticks(now.later(attachments=(gone,)), slurm)
    assert slurm.users == {account(A): []}
    thief = {"subject": "oidc|eve", "username": "ann"}
    now, _, _ = ticks(without_notes(now), slurm)
    now, _, _ = ticks(now.later(attachments=(*now.attachments, attachment(B, identities=[thief]))), slurm)
    assert slurm.users[account(B)] == []
    for _ in range(2):  # the reason stays in ticks that do not look at the cluster
        reasons = (now.attachments[1].status_detail or {})["reasons"]
        assert [one["code"] for one in reasons] == ["identity_conflict"]
        now, _, plays = ticks(now, slurm, 1)
        assert PLAYBOOK not in playbooks(plays)


def test_while_slurm_does_not_say_which_users_there_were_closing_goes_on(slurm: SharedSlurm) -> None:
    now, _, _ = ticks(shared(attachment()), slurm)
    slurm.remembered = None
    suspended = now.attachments[0].model_copy(update={"status": "suspended"})
    bob = {"subject": "oidc|bob", "username": "bob"}
    then, _, _ = ticks(now.later(attachments=(suspended, attachment(B, identities=[bob]))), slurm)
    assert not slurm.may_submit(A) and slurm.users == {account(A): ["ann"], account(B): []}
    assert SLURM.has_new_attachments(then.instance, then.attachments), "it is not shown as carried out"
    assert then.attachments[1].status == "requested"
    slurm.remembered = {}
    then, _, _ = ticks(then, slurm)
    assert slurm.users[account(B)] == ["bob"] and then.attachments[1].status == "active"


def test_a_project_that_was_detached_and_is_attached_again_may_submit(slurm: SharedSlurm) -> None:
    now, _, _ = ticks(shared(attachment()), slurm)
    now, _, _ = ticks(now.later(attachments=(now.attachments[0].model_copy(update={"status": "detaching"}),)), slurm)
    assert now.attachments[0].status == "detached"
    second = attachment(id=UUID(int=99), created_at=NOW + timedelta(days=1))
    now, _, _ = ticks(now.later(attachments=(*now.attachments, second)), slurm)
    assert slurm.may_submit(A) and [one.status for one in now.attachments] == ["detached", "active"]
    assert slurm.users == {account(A): ["ann"]}


CONTRIBUTION = {"source_project_id": A}


@pytest.mark.parametrize(
    ("asked", "given", "codes"),
    [
        (CONTRIBUTION, {"status": "active", "may_contribute": True}, []),
        (CONTRIBUTION, {"status": "active"}, ["contribution_not_allowed"]),
        (CONTRIBUTION, {"status": "suspended", "may_contribute": True}, ["contribution_not_allowed"]),
        ({}, {"status": "active", "may_contribute": True}, ["allocation_not_contributed"]),
    ],
)
def test_a_worker_of_another_project_needs_its_request_and_the_tenants_consent(
    asked: dict[str, Any], given: dict[str, Any], codes: list[str]
) -> None:
    theirs = allocation(3, project_id=A)
    now = shared(attachment(**given), operations=(add(3, **asked),), entitlements=entitled(PROJECT, A))
    _, steps, _ = settle(now.later(allocations={**now.allocations, theirs.id: theirs}), decide)
    assert [one.code for one in of_kind(steps, Refuse)] == codes


def test_a_contributed_worker_needs_an_entitlement_of_its_own_project() -> None:
    theirs, asked = allocation(3, project_id=A), add(3, **CONTRIBUTION)
    now = shared(attachment(status="active", may_contribute=True), operations=(asked,), entitlements=entitled(PROJECT))
    _, steps, _ = settle(now.later(allocations={**now.allocations, theirs.id: theirs}), decide)
    (refused,) = of_kind(steps, Refuse)
    assert refused.code == "not_entitled" and str(A) in refused.why
