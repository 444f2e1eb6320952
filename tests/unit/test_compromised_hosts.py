"""A worker on a compromised host forges its answers. Playbooks and ansible-runner are real."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml

from plugins.modules import slurm_snapshot
from runner.act import plays
from runner.model.names import host_name
from runner.model.plan import Play
from runner.model.platform import Member
from runner.model.world import World
from runner.slurm.member_reports import MemberReports
from runner.translate import RunResult
from tests.forged_answers import EVERY_FORGERY
from tests.unit.lifecycle import serving
from tests.unit.local_plays import ROOT, STUBS, LocalPlays
from tests.unit.worlds import add, allocation, controller, worker, world

# The module's own way to read times that workers gave, before its stub.
MOMENTS = (
    "from typing import Any\n"
    + inspect.getsource(slurm_snapshot.read_times)
    + "\nread_times(asked.get('started') or {})\n"
)


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalPlays:
    return LocalPlays(tmp_path, monkeypatch)


def victim(**changes: Any) -> Member:
    """An honest worker of the same cluster, drained by the adapter, which is not part of the play."""
    return serving(3, adapter_detail={"worker_hostname": "victim"}, **changes)


def forge(local: LocalPlays, attacker: Member, chief: Member, code: str = EVERY_FORGERY, **forgeries: Any) -> None:
    given = {"CONTROLLER": host_name(chief), "VICTIM": "victim", "MARK": str(local.bundle / "owned"), **forgeries}
    local.forgeries(attacker, "\n".join([*(f"{key} = {value!r}" for key, value in given.items()), code]))


def play(local: LocalPlays, playbook: Any, recorded: World, *members: Member, **terms: Any) -> RunResult:
    return local.play(Play("test", playbook, members, terms=terms), recorded)


def assert_honest(local: LocalPlays, run: RunResult, chief: Member) -> None:
    """Nothing in it comes from a forged answer, nor in the events of the run."""
    assert "owned" not in repr((run, local.events)).lower()
    assert run.snapshot is not None and run.snapshot.controller.ping == "UP"
    assert run.outcomes[chief.id].error is None


def test_a_join_with_every_forgery_reports_no_more_than_an_honest_one(local: LocalPlays) -> None:
    chief, attacker, other = controller(status="ready"), worker(add(2), 2), victim()
    forge(local, attacker, chief)
    run = play(local, "add_worker", world(members=(chief, attacker, other)), chief, attacker)
    assert_honest(local, run, chief)
    assert {one.member_id for one in local.events} == {chief.id, attacker.id}
    assert run.outcomes[attacker.id].phase == "serving", "with other variables the last report would not be made"
    assert run.outcomes[attacker.id].detail["worker_hostname"] == host_name(attacker)
    assert run.outcomes[attacker.id].detail["cpus"] == 2
    assert [one["wait_for_nodes"] for one in local.asked("slurm_snapshot") if "wait_for_nodes" in one] == [
        [host_name(attacker)]
    ]
    assert local.asked("slurm_nodes") == []
    assert not (local.bundle / "owned").exists()


def test_events_that_a_host_prints_are_accepted_by_ansible_runner_alone(
    local: LocalPlays, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without both guards the same host speaks for the controller: that is what they are for."""
    chief, attacker = controller(status="ready"), worker(add(2), 2)
    forge(local, attacker, chief)
    (local.bundle / "plugins" / "vars").unlink()
    recorded = world(members=(chief, attacker))
    run = play(local, "add_worker", recorded, chief, attacker)
    assert_honest(local, run, chief)
    monkeypatch.setattr(plays.OwnEvents, "__call__", lambda *_: True)
    run = play(local, "add_worker", recorded, chief, attacker)
    assert any(one.phase == "owned" and one.member_id == chief.id for one in local.events)


def test_a_play_by_hand_on_a_compromised_host_shows_no_control_character(local: LocalPlays) -> None:
    chief, attacker = controller(status="ready"), worker(add(2), 2)
    forge(local, attacker, chief)
    done = local.by_hand("add_worker", world(members=(chief, attacker)), chief, attacker)
    assert "?[K" in done.stdout + done.stderr, "its text was printed"
    assert "\x1b" not in done.stdout + done.stderr
    assert not (local.bundle / "owned").exists()


def test_a_malformed_event_in_a_hosts_output_does_not_end_the_run(local: LocalPlays) -> None:
    code = """
coded = base64.b64encode(TEXT.encode()).decode()
result["warnings"] = ["\\x1b[K" + coded + "\\x1b[%dD" % len(coded) + "\\x1b[K"]
"""
    chief = controller(status="ready")
    texts = ["[1]", '"x"', "1", '{"uuid": ["x"]}', '{"uuid": "../../x", "event": 1}']
    attackers = [worker(add(2), 2) for _ in texts]
    for attacker, text in zip(attackers, texts, strict=True):
        forge(local, attacker, chief, code, TEXT=text)
    run = play(local, "add_worker", world(members=(chief, *attackers)), chief, *attackers)
    assert_honest(local, run, chief)
    assert [run.outcomes[attacker.id].error for attacker in attackers] == [None] * len(attackers)


MISNAMED: list[tuple[str, str]] = [
    ("{'hostname': 'victim', 'addresses': ['10.0.0.3']}", "hostname_taken"),
    ("{'hostname': '../../etc'}", "probe_invalid"),
    ("{'hostname': '{{ 7 * 7 }}'}", "probe_invalid"),
    ("{'os_version': '../../../tmp/owned', 'system': '../../../tmp/owned'}", "probe_invalid"),
    ("{'gres': 'gpu:1\\nExecStartPre=/bin/true'}", "probe_invalid"),
    ("{'gpus': {}}", "probe_invalid"),
    ("{'cpus': float('nan')}", "probe_invalid"),
]


def test_a_host_that_misnames_itself_is_refused_before_anything_is_done_with_it(local: LocalPlays) -> None:
    chief, honest = controller(status="ready"), worker(add(2), 2)
    attackers = [worker(add(2), 2) for _ in MISNAMED]
    for attacker, (answer, _) in zip(attackers, MISNAMED, strict=True):
        forge(local, attacker, chief, f"result |= {answer} if module == 'host_probe' else {{}}")
    run = play(local, "add_worker", world(members=(chief, honest, *attackers, victim())), chief, honest, *attackers)
    codes = [error.code for attacker in attackers if (error := run.outcomes[attacker.id].error)]
    assert codes == [code for _, code in MISNAMED]
    assert {one["host"] for one in local.asked("converge_host")} == {host_name(honest)}
    assert local.asked("slurm_nodes") == []
    assert run.outcomes[honest.id].error is None
    assert_honest(local, run, chief)


def test_a_worker_that_has_joined_cannot_change_its_nodes_name(local: LocalPlays) -> None:
    chief, attacker = controller(status="ready"), serving(2)
    run = play(local, "add_worker", world(members=(chief, attacker, victim())), chief, attacker)
    error = run.outcomes[attacker.id].error
    assert error is not None, "the stub's host has another name than the record"
    assert (error.code, error.klass) == ("hostname_changed", "intervention")
    assert "worker_hostname" not in run.outcomes[attacker.id].detail


@pytest.mark.parametrize(
    ("answer", "code", "text"),
    [
        ({"code": "conversion_running", "message": "wait"}, "worker_cannot_move", "wait"),
        ({"code": ["x"], "message": {"a": "{{ 7 * 7 }}"}}, "worker_cannot_move", "{{ 7 * 7 }}"),
        ("odd", "worker_cannot_move", "it failed"),
        ({"code": "no_way_back", "message": "no source has it"}, "no_way_back", "no source has it"),
        (None, "version_not_offered", "another version than its controller"),
    ],
)
def test_a_worker_that_refuses_a_move_chooses_no_code_that_steers_the_runner(
    local: LocalPlays, answer: Any, code: str, text: str
) -> None:
    chief, attacker = controller(status="ready"), serving(2)
    plan = {"now": "22.05.8-4", "target": "24.11.5-4", "moves": True, "from": "22.05.8-4", "backup": ""}
    local.module("slurm_packages", f"answer = {plan!r}")
    refusal = (
        {"target": "24.11.5-5"} if answer is None else {"failed": True, "msg": "it failed", "adapter_error": answer}
    )
    forge(local, attacker, chief, f"result |= {refusal!r}")
    error = play(local, "upgrade", world(members=(chief, attacker)), chief, attacker).outcomes[chief.id].error
    assert error is not None and (error.code, error.klass) == (code, "intervention")
    assert error.message.startswith(f"{host_name(attacker)}: ") and text in error.message


@pytest.mark.parametrize("named", [True, False])
def test_a_worker_that_leaves_cannot_have_another_node_deleted(local: LocalPlays, named: bool) -> None:
    """`named`: the record has the name of its node. Without one its host is asked, and names the victim's."""
    chief = controller(status="ready")
    attacker = serving(2, status="deleting") if named else worker(add(2), 2, status="deleting")
    forge(local, attacker, chief, "result['hostname'] = 'victim'")
    run = play(local, "remove_worker", world(members=(chief, attacker, victim())), chief, attacker)
    deleted = [one for asked in local.asked("slurm_nodes") for one in asked.get("delete") or []]
    assert deleted == (["w2"] if named else [])
    assert "worker_hostname" not in run.outcomes[attacker.id].detail
    assert run.outcomes[attacker.id].phase == "removed"


def test_a_name_that_a_worker_reports_is_used_if_no_other_has_it(local: LocalPlays) -> None:
    chief, half = controller(status="ready"), worker(add(2), 2, status="deleting")
    run = play(local, "remove_worker", world(members=(chief, half, victim())), chief, half)
    deleted = [one for asked in local.asked("slurm_nodes") for one in asked.get("delete") or []]
    assert deleted == [host_name(half)]
    assert run.outcomes[half.id].detail["worker_hostname"] == host_name(half)


def test_a_workers_report_of_its_restart_does_not_stop_the_controllers_restart(local: LocalPlays) -> None:
    chief = controller(status="ready")
    answers = ["'text'", "-1", "[]", "{'a': 1}", "True", "1e300", "float('nan')", "1.0"]
    attackers = [serving(number, id=UUID(int=number << 120)) for number in range(10, 10 + len(answers))]
    local.module("host_units", 'answer = {"units": {"slurmd": "active"}, "started": {"slurmd": 1.0}, "elapsed": 1.0}')
    local.module("slurm_partitions", "answer = {}")
    for attacker, answer in zip(attackers, answers, strict=True):
        forge(local, attacker, chief, f"result['started'] = {{'slurmd': {answer}}}; result['hostname'] = 'victim'")
    hosts = {UUID(int=100 + number): allocation(number) for number in range(1, 30)}
    local.module("slurm_snapshot", MOMENTS + STUBS["slurm_snapshot"])
    run = play(local, "restart", world(members=(chief, *attackers, victim()), allocations=hosts), chief, *attackers)
    assert_honest(local, run, chief)
    (waited,) = [sorted(one["wait_for_nodes"]) for one in local.asked("slurm_snapshot") if one.get("wait_for_nodes")]
    assert waited == [f"w{number}" for number in range(10, 10 + len(answers))]


# -- the files themselves ------------------------------------------------------------------------------------

BUNDLE = [*(ROOT / "playbooks").rglob("*.yml"), *(ROOT / "roles").rglob("*.yml")]


def test_no_module_sets_facts_and_no_play_reads_them() -> None:
    for path in [*BUNDLE, *(ROOT / "plugins" / "modules").glob("*.py"), *(ROOT / "roles").rglob("*.j2")]:
        text = path.read_text()
        assert "ansible_facts" not in text and "ansible_local" not in text, path


def test_facts_are_not_variables_for_the_runner_by_hand_and_in_role_tests() -> None:
    def value(directory: Path) -> str:
        done = subprocess.run(
            [str(Path(sys.executable).parent / "ansible-config"), "dump", "--only-changed", "--format", "json"],
            cwd=directory,
            env={name: text for name, text in os.environ.items() if not name.startswith("ANSIBLE_")},
            capture_output=True,
            text=True,
            check=True,
        )
        return str(
            {one["name"]: one.get("value") for one in json.loads(done.stdout) if "name" in one}["INJECT_FACTS_AS_VARS"]
        )

    assert value(ROOT) == "False"
    roles = yaml.safe_load((ROOT / "molecule" / "default" / "molecule.yml").read_text())
    assert roles["provisioner"]["config_options"]["defaults"]["inject_facts_as_vars"] is False


def test_the_names_of_files_that_roles_load_come_from_our_own_list() -> None:
    loaded = [text for path in BUNDLE for text in path.read_text().splitlines() if "include_vars" in text]
    assert len(loaded) == 2, "one more: see where its name comes from"
    files = [
        line.strip() for path in BUNDLE for line in path.read_text().splitlines() if line.strip().startswith("file:")
    ]
    assert set(files) == {'file: "{{ probed_host.system }}.yml"'}


def test_a_record_keeps_its_name_and_none_gets_anothers() -> None:
    other = victim()
    joined = MemberReports(serving(2).id, "worker", "w2", {"victim": other.id})
    fresh = MemberReports(serving(4).id, "worker", None, {"victim": other.id})
    assert joined._may_be_called("w2") and not joined._may_be_called("w5") and not joined._may_be_called("victim")
    assert fresh._may_be_called("w5") and not fresh._may_be_called("victim")
