"""Whatever happens during a teardown: no job is ended that the terms keep, and the instance is gone in the end."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.fake_slurm import FakeNode, FakeSlurm
from tests.unit.lifecycle import serving, tick
from tests.unit.teardown import decommission, deleting, running

TERMS: list[dict[str, Any]] = [
    {},
    {"deadline_seconds": 90, "on_deadline": "cancel"},
    {"deadline_seconds": 90},
    {"abandon_unreachable": True, "host_patience_seconds": 90},
    {"host_patience_seconds": 0},
]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_no_worker_is_cleaned_under_a_job_that_the_terms_keep(data: st.DataObject) -> None:
    members = [serving(number) for number in (2, 3)]
    slurm = FakeSlurm({f"w{number}": FakeNode() for number in (2, 3)})
    now = running(*members)
    now = deleting(now) if data.draw(st.booleans()) else now.later(instance_operations=(decommission(),))
    may_end_jobs = False
    for age in range(data.draw(st.integers(1, 6))):
        for fake in slurm.nodes.values():
            happening = data.draw(st.sampled_from(["nothing", "job starts", "jobs end", "person resumes"]))
            if happening == "job starts" and fake.reason is None:
                fake.jobs.add(age + 1)
            elif happening == "jobs end":
                fake.jobs.clear()
            elif happening == "person resumes":
                fake.reason = None
        slurm.answers = data.draw(st.integers(0, 2)) > 0
        slurm.hosts_down = set(data.draw(st.lists(st.sampled_from(["ctl", "w2", "w3"]), max_size=2)))
        if now.instance_operations and data.draw(st.integers(0, 3)) == 0:
            now = now.later(instance_operations=now.instance_operations[1:])  # a person cancels one
        if now.instance.status != "deleted" and data.draw(st.integers(0, 2)) == 0:
            terms = data.draw(st.sampled_from(TERMS))
            may_end_jobs = may_end_jobs or terms.get("on_deadline") == "cancel"
            now = now.later(instance_operations=(*now.instance_operations, decommission(age=age, **terms)))
        had = {name: set(fake.jobs) for name, fake in slurm.nodes.items()}
        now, _, plays = tick(now, slurm)
        if not may_end_jobs:
            assert slurm.cleaned_with_jobs == [] and not any(play.work.get("cancel") for play in plays)
            assert all(had[name] <= fake.jobs for name, fake in slurm.nodes.items())
            assert all(not jobs for name, jobs in had.items() if name not in slurm.nodes)
    slurm.answers, slurm.hosts_down = True, set()
    for fake in slurm.nodes.values():
        fake.jobs.clear()
    for _ in range(4):
        if now.instance.status in ("deleting", "running"):
            now = now if now.instance_operations else deleting(now)
            now, _, _ = tick(now, slurm, seconds=700)
    assert now.instance.status == "deleted" and now.instance_operations == ()
    assert {member.status for member in now.members} == {"deleted"}
