"""Desired configurations by property: changed, refused, killed or unreachable, tick after tick."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from runner.act import inventory
from runner.model.plan import AdapterError, Play
from runner.model.world import Outcome, World
from runner.slurm import desired_config
from runner.slurm.app import SLURM
from runner.slurm.decide import decide
from tests.unit.test_desired_config import digest_of, running, the_controller
from tests.unit.worlds import after, settle, snapshot

GOOD: list[dict[str, Any]] = [{}, {"slurm": {"MinJobAge": 1}}, {"slurm": {"MinJobAge": 2}}]
BAD: dict[str, Any] = {"slurm": {"PriorityType": "priority/nonsense"}}
UNREADABLE: dict[str, Any] = {"slurm": {"Epilog": "/x"}}
NAME = "gs00000000"
CONFIGS = [*GOOD, BAD, UNREADABLE]


@dataclass
class Host:
    """What slurm_config does, with a run that may be cut off before or after it took effect."""

    live: str = digest_of({})
    tried: list[str] = field(default_factory=list)

    def run(self, now: World, play: Play, fate: str) -> World:
        if play.playbook == "observe":
            return after(now, play, {}, snapshot({}, cluster_name=NAME))
        assert play.playbook == "deploy"
        hosts, _ = inventory.build(SLURM, now.instance, play.members, now.allocations)
        (asked,) = [group["vars"] for group in hosts["all"]["children"].values() if "vars" in group]
        key = play.members[0].id
        if fate == "away":
            return after(now, play, {key: Outcome(error=AdapterError("host_unreachable", "no", "retryable"))}, None)
        if not asked["slurm_config_keep"]:
            self.tried.append(asked["slurm_desired_config"])
            if asked["slurm_desired_config"] == digest_of(BAD):
                refused = Outcome(error=AdapterError("config_refused", "Slurm's message"))
                return after(now, play, {} if fate == "killed" else {key: refused}, None)
            self.live = asked["slurm_desired_config"]
        if fate == "killed":
            return after(now, play, {}, None)
        return after(
            now, play, {key: Outcome("baseline", {"applied_config": self.live})}, snapshot({}, cluster_name=NAME)
        )


def tick(now: World, host: Host, fate: str) -> World:
    for _ in range(8):
        now, _, play = settle(now, decide)
        if play is None:
            break
        now = host.run(now, play, fate)
    else:
        raise AssertionError("plays without end")
    return now.later(now=now.now + timedelta(minutes=20), played=frozenset(), outcomes={}, snapshot=None)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(CONFIGS), st.sampled_from(["well", "well", "killed", "away"])), max_size=8))
def test_the_record_shows_the_live_config_and_a_settled_one_is_not_tried_again(
    history: list[tuple[dict[str, Any], str]],
) -> None:
    host, now = Host(), running({})
    for config, fate in history:
        now = now.later(instance=now.instance.model_copy(update={"config": config}))
        now = tick(now, host, fate)
    for _ in range(2):
        now = tick(now, host, "well")
    seen, wanted = the_controller(now), desired_config.digest(now.instance)
    assert desired_config.live(seen) == host.live
    assert desired_config.on_trial(seen) is None
    if now.instance.config in GOOD:
        assert (host.live, desired_config.refused(seen), now.instance.health) == (wanted, None, "healthy")
    else:
        refused = desired_config.refused(seen)
        assert refused and refused.digest == wanted
        assert now.instance.health == "degraded"
    tried = list(host.tried)
    for _ in range(3):
        now = tick(now, host, "well")
    assert host.tried == tried, "what is settled is left alone"
    assert digest_of(UNREADABLE) not in host.tried
