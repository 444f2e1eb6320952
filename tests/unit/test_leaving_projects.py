"""Projects that leave a shared runtime, a runtime that is taken down under them, and what a project reads meanwhile."""

from datetime import timedelta
from typing import Any

import pytest

from runner.cli.access import project_lines
from runner.model.plan import AdapterError, Refuse, SetAttachment, SetInstance
from runner.model.platform import Unreadable
from runner.model.times import stamp
from runner.slurm import attached, attachment_bundle
from runner.slurm.decide.attachments import PLAYBOOK
from tests.unit.fake_slurm import FakeNode
from tests.unit.lifecycle import ask_whole, asked_of, playbooks
from tests.unit.teardown import decommission
from tests.unit.test_follow_attachments import ALLOWED, A, B, SharedSlurm, account, attachment, shared, ticks
from tests.unit.worlds import NOW, of_kind


@pytest.fixture
def slurm() -> SharedSlurm:
    return SharedSlurm(nodes={"w2": FakeNode()})


@pytest.mark.parametrize("status", ["requested", "active", "suspended", "unheard-of"])
def test_a_cluster_with_projects_on_it_is_not_taken_down(slurm: SharedSlurm, status: str) -> None:
    now, steps, plays = ticks(asked_of(shared(attachment(status=status)), decommission()), slurm)
    (refused,) = of_kind(steps, Refuse)
    assert (refused.code, str(A) in refused.why) == ("projects_attached", True)
    assert now.instance.status == "running" and "decommission" not in playbooks(plays)


def test_a_cluster_is_not_taken_down_while_its_projects_are_not_known(slurm: SharedSlurm) -> None:
    unread = Unreadable("attachment", str(A), "it is not an object")
    _, steps, _ = ticks(asked_of(shared(unreadable_attachments=(unread,)), decommission()), slurm)
    assert [one.code for one in of_kind(steps, Refuse)] == ["projects_attached"]


def test_projects_that_leave_are_detached_with_the_cluster(slurm: SharedSlurm) -> None:
    """A cluster that is broken does not say when their jobs have ended, and they must not hold it without end."""
    leaving = attachment(status="detaching")
    slurm.fails = AdapterError("accounting_unreachable", "slurmdbd does not answer", "retryable")
    now, steps, _ = ticks(asked_of(shared(leaving, attachment(B, status="detached")), decommission()), slurm)
    assert now.instance.status == "deleted" and not of_kind(steps, Refuse)
    assert [(one.status, one.access) for one in now.attachments] == [("detached", None), ("detached", None)]
    (last,) = [step for step in of_kind(steps, SetAttachment) if step.changes["status"] == "detached"]
    assert steps.index(last) < steps.index(of_kind(steps, SetInstance)[-1])


@pytest.mark.parametrize(("limits", "minutes"), [({}, 10), ({"wall_minutes": 5}, 5), ({"wall_minutes": 600}, 10)])
def test_the_commands_of_a_projects_bundle_are_within_its_limits(limits: dict[str, int], minutes: int) -> None:
    access = {"cluster_name": "gs", "controller": {"host": "10.0.0.1", "port": 2222}, "ssh": {"known_hosts": "h k"}}
    now = shared(attachment(status="active", app_policy={**ALLOWED, "limits": limits}))
    asked = attached.projects(now.instance, now.members, now.attachments, in_slurm={})
    found = attachment_bundle.bundle(now.instance.model_copy(update={"access": access}), asked, now.attachments[0])
    assert found is not None and found["ssh"]["command"] == "ssh -p 2222 ann@10.0.0.1"
    options = f"--account={account(A)} --partition=main --time={minutes}"
    assert found["submit"] == {"batch": f"sbatch {options} --wrap=hostname", "interactive": f"srun {options} hostname"}
    shown = project_lines(found)
    assert f"  batch: {found['submit']['batch']}" in shown and "  ann  oidc|ann" in shown
    assert attachment_bundle.bundle(now.instance, asked, now.attachments[0]) is None


def test_a_detach_with_a_deadline_cancels_jobs_when_it_has_passed(slurm: SharedSlurm) -> None:
    slurm.busy = [account(A)]
    terms = {"cancel_jobs_at": stamp(NOW + timedelta(hours=1))}
    now, _, plays = ticks(shared(attachment(status="detaching", detach_parameters=terms)), slurm)
    assert {str(play.terms["slurm_projects_cancelled"]) for play in plays if play.playbook == PLAYBOOK} == {"[]"}
    assert terms["cancel_jobs_at"] in str((now.attachments[0].status_detail or {})["waiting"])
    now, _, plays = ticks(now.later(now=NOW + timedelta(hours=1)), slurm)
    assert next(play.terms["slurm_projects_cancelled"] for play in plays if play.playbook == PLAYBOOK) == [account(A)]
    assert now.attachments[0].status == "detaching", "until they have ended"


@pytest.mark.parametrize("terms", [{"cancel_jobs_at": "soon"}, {"cancel_jobs_at": 5}, {"jobs": "cancel"}])
def test_terms_of_a_detach_that_cannot_be_read_cancel_no_job(slurm: SharedSlurm, terms: dict[str, Any]) -> None:
    slurm.busy = [account(A)]
    now, _, plays = ticks(shared(attachment(status="detaching", detach_parameters=terms)), slurm)
    assert {str(play.terms["slurm_projects_cancelled"]) for play in plays if play.playbook == PLAYBOOK} == {"[]"}
    assert "None is cancelled: detach_parameters" in str((now.attachments[0].status_detail or {})["waiting"])


def test_projects_of_a_stopped_cluster_are_not_called_healthy_until_it_serves_again(slurm: SharedSlurm) -> None:
    now, _, _ = ticks(shared(attachment(), attachment(B, status="detached")), slurm)
    assert now.attachments[0].health == "healthy"
    now, _, _ = ticks(asked_of(now, ask_whole("stop")), slurm)
    one, gone = now.attachments
    assert (now.instance.status, one.status, one.health) == ("stopped", "active", "unknown")
    assert (one.status_detail or {})["waiting"] == "the cluster to serve: it is stopped" and gone.health is None
    now, steps, _ = ticks(now, slurm, 1)
    assert not of_kind(steps, SetAttachment), "written once"
    now, _, _ = ticks(asked_of(now, ask_whole("start")), slurm)
    one = now.attachments[0]
    assert (now.instance.status, one.health, (one.status_detail or {})["waiting"]) == ("running", "healthy", None)
