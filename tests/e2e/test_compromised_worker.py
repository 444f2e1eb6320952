"""A compromised worker: whoever has root on its host answers Ansible what they like, and harms no other member.

The host's Python is wrapped, so that every module's answer is changed on its way. One cluster, in order: an honest
worker that is drained, one that forges answers from its join to its removal, and one with the honest worker's name.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from runner.slurm import reports
from runner.slurm.detail import blank
from sandbox.fleet.hosts import HostSpec
from tests.commands import ends
from tests.e2e.cluster import Cluster, deploy, fleet_named, until
from tests.forged_answers import EVERY_FORGERY
from tests.platform_process import Doc
from tests.runner_process import answer

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("scenario")]

SUITE = "bookworm"
CONTROLLER, VICTIM, ATTACKER, IMPOSTOR = "controller", "victim", "attacker", "impostor"
COUNT = "/var/tmp/forged"  # how many answers were changed: a byte each
WRAPPER = """#!/usr/bin/python3.11
import base64, json, os, subprocess, sys
source = sys.stdin.buffer.read() if not sys.argv[1:] else None
done = subprocess.run(["/usr/bin/python3.11", *sys.argv[1:]], input=source, capture_output=True)
text = done.stdout.decode(errors="replace")
try:
    result, more = json.loads(text[text.index("{{"):]), ""
except ValueError:
    result = None
if isinstance(result, dict):
    CONTROLLER, VICTIM, MARK = {controller!r}, {victim!r}, "/var/tmp/owned"
    open({count!r}, "a").write("x")
    for line in [FORGERIES]:
        exec(line)
    text = json.dumps(result) + "\\n" + more + "\\n"
sys.stdout.write(text)
sys.stderr.buffer.write(done.stderr)
sys.exit(done.returncode)
"""


@dataclass
class Scenario:
    cluster: Cluster

    def forge_answers(self, host: str, forgeries: str) -> None:
        """From now on the host's Python changes what modules answer."""
        chief = f"controller-{self.cluster.controller()['id'][:8]}"
        text = WRAPPER.format(controller=chief, victim=VICTIM, count=COUNT).replace("[FORGERIES]", repr([forgeries]))
        ends(self.cluster.fleet.exec(host, ["sh", "-ec", "cat >/usr/bin/python3.forging"], text), 0)
        self.cluster.on(
            host, "sh", "-ec", "chmod 755 /usr/bin/python3.forging; mv /usr/bin/python3.forging /usr/bin/python3"
        )

    def forged(self, host: str) -> int:
        return int(self.cluster.on(host, "stat", "--format=%s", COUNT))

    def ask(self, verb: str, *arguments: str) -> Doc:
        asked: Doc = answer(self.cluster.variables, "op", verb, self.cluster.instance_id, *arguments)
        return asked

    def ended(self, asked: Doc) -> Doc:
        """Ticks until the operation is over."""

        def over() -> Doc | None:
            ends(self.cluster.run(), 0, 1)
            now = next(one for one in self.cluster.operations() if one["id"] == asked["id"])
            return now if now["status"] not in ("accepted", "running") else None

        return until(over, 240, f"{asked['operation']} is over")

    def others(self) -> list[Doc]:
        """The records of all members but the attacker, without what each look renews."""
        renewed = ("last_runtime_observed_at", "fence")
        kept = []
        for host, one in {CONTROLLER: self.cluster.controller(), VICTIM: self.cluster.workers()[VICTIM]}.items():
            detail = {key: value for key, value in one["adapter_detail"].items() if key not in renewed}
            kept.append({"host": host, "status": one["status"], "adapter_detail": detail})
        return kept

    def node(self) -> str:
        return self.cluster.on(CONTROLLER, "sinfo", "--noheader", "--nodes", VICTIM, "--format=%T %E")


@pytest.fixture(scope="module")
def scenario() -> Iterator[Scenario]:
    with fleet_named("e2e-forged") as fleet:
        fleet.ensure([HostSpec(name, SUITE, warm=True) for name in (CONTROLLER, VICTIM, ATTACKER, IMPOSTOR)])
        cluster = deploy(fleet, CONTROLLER, VICTIM)
        ends(cluster.run(), 0)
        yield Scenario(cluster)


def test_a_compromised_worker_joins_and_its_record_has_only_what_it_may_report(scenario: Scenario) -> None:
    drained = scenario.ask("drain", "--members", VICTIM)
    assert scenario.ended(drained)["status"] == "succeeded"
    before, node = scenario.others(), scenario.node()
    scenario.forge_answers(ATTACKER, EVERY_FORGERY)

    assert scenario.ended(scenario.cluster.add(ATTACKER))["status"] == "succeeded"

    assert scenario.forged(ATTACKER) >= 3, "no answer was forged"
    one = scenario.cluster.workers()[ATTACKER]
    assert one["status"] == "ready"
    runners_own = {"node_state", "last_adapter_error", "claimed_by", "lease_expires_at", "next_attempt_at", "fence"}
    runners_own |= {"correlation_id", "trace_id"}
    allowed = {*reports.DETAIL["worker"], *blank("worker"), "operation_id", *runners_own}
    assert set(one["adapter_detail"]) <= allowed
    assert "owned" not in repr(one).lower()
    assert one["adapter_detail"]["worker_hostname"] == ATTACKER
    assert (scenario.others(), scenario.node()) == (before, node)


def test_a_compromised_worker_is_removed_and_no_other_record_changes(scenario: Scenario) -> None:
    before, node, forgeries = scenario.others(), scenario.node(), scenario.forged(ATTACKER)

    assert scenario.ended(scenario.ask("remove", "--members", ATTACKER))["status"] == "succeeded"

    assert scenario.forged(ATTACKER) > forgeries, "no answer was forged"
    one = scenario.cluster.workers()[ATTACKER]
    assert (one["status"], one["adapter_detail"]["host_cleaned"]) == ("deleted", True)
    assert "owned" not in repr(one).lower()
    assert (scenario.others(), scenario.node()) == (before, node)


def test_a_host_with_another_workers_name_is_refused_and_removed_without_touching_it(scenario: Scenario) -> None:
    before, node = scenario.others(), scenario.node()
    scenario.forge_answers(
        IMPOSTOR, "result |= {'hostname': VICTIM, 'addresses': ['10.0.0.1'], 'units_noted': ['slurmd']}"
    )

    failed = scenario.ended(scenario.cluster.add(IMPOSTOR))
    assert failed["status"] == "failed"
    impostor = scenario.cluster.workers()[IMPOSTOR]
    assert impostor["adapter_detail"]["last_adapter_error"]["code"] == "hostname_taken"
    assert impostor["adapter_detail"]["worker_hostname"] is None
    assert scenario.ended(scenario.ask("remove", "--members", impostor["id"]))["status"] == "succeeded"

    assert scenario.forged(IMPOSTOR) >= 2, "no answer was forged"
    assert (scenario.others(), scenario.node()) == (before, node)
    assert node.startswith("drained gpuaas:")
