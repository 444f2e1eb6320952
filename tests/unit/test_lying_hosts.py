"""A worker whose host is compromised answers what it likes. Real playbooks, real ansible-runner, forged answers."""

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
from tests.lies import EVERY_LIE
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


def lie(local: LocalPlays, liar: Member, chief: Member, code: str = EVERY_LIE, **lies: Any) -> None:
    given = {"CONTROLLER": host_name(chief), "VICTIM": "victim", "MARK": str(local.bundle / "owned"), **lies}
    local.lies(liar, "\n".join([*(f"{key} = {value!r}" for key, value in given.items()), code]))


def play(local: LocalPlays, playbook: Any, known: World, *members: Member, **terms: Any) -> RunResult:
    return local.play(Play("test", playbook, members, terms=terms), known)


def assert_honest(local: LocalPlays, run: RunResult, chief: Member) -> None:
    """Nothing in it comes from a lie, nor in the events of the run."""
    assert "owned" not in repr((run, local.events)).lower()
    assert run.snapshot is not None and run.snapshot.controller.ping == "UP"
    assert run.outcomes[chief.id].error is None


def test_a_join_with_every_lie_reports_no_more_than_an_honest_one(local: LocalPlays) -> None:
    chief, liar, other = controller(status="ready"), worker(add(2), 2), victim()
    lie(local, liar, chief)
    run = play(local, "add_worker", world(members=(chief, liar, other)), chief, liar)
    assert_honest(local, run, chief)
    assert {one.member_id for one in local.events} == {chief.id, liar.id}
    assert run.outcomes[liar.id].phase == "serving", "with other variables the last report would not be made"
    assert run.outcomes[liar.id].detail["worker_hostname"] == host_name(liar)
    assert run.outcomes[liar.id].detail["cpus"] == 2
    assert [one["wait_for_nodes"] for one in local.asked("slurm_snapshot") if "wait_for_nodes" in one] == [
        [host_name(liar)]
    ]
    assert local.asked("slurm_nodes") == []
    assert not (local.bundle / "owned").exists()


def test_events_that_a_host_prints_are_believed_by_ansible_runner_alone(
    local: LocalPlays, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without both guards the same host speaks for the controller: that is what they are for."""
    chief, liar = controller(status="ready"), worker(add(2), 2)
    lie(local, liar, chief)
    (local.bundle / "plugins" / "vars").unlink()
    known = world(members=(chief, liar))
    run = play(local, "add_worker", known, chief, liar)
    assert_honest(local, run, chief)
    monkeypatch.setattr(plays.OwnEvents, "__call__", lambda *_: True)
    run = play(local, "add_worker", known, chief, liar)
    assert any(one.phase == "owned" and one.member_id == chief.id for one in local.events)


def test_a_person_who_plays_a_lying_host_is_shown_no_control_character(local: LocalPlays) -> None:
    chief, liar = controller(status="ready"), worker(add(2), 2)
    lie(local, liar, chief)
    done = local.by_hand("add_worker", world(members=(chief, liar)), chief, liar)
    assert "?[K" in done.stdout + done.stderr, "its text was printed"
    assert "\x1b" not in done.stdout + done.stderr
    assert not (local.bundle / "owned").exists()


def test_a_malformed_event_in_a_hosts_output_does_not_end_the_run(local: LocalPlays) -> None:
    code = """
coded = base64.b64encode(TEXT.encode()).decode()
said["warnings"] = ["\\x1b[K" + coded + "\\x1b[%dD" % len(coded) + "\\x1b[K"]
"""
    chief = controller(status="ready")
    texts = ["[1]", '"x"', "1", '{"uuid": ["x"]}', '{"uuid": "../../x", "event": 1}']
    liars = [worker(add(2), 2) for _ in texts]
    for liar, text in zip(liars, texts, strict=True):
        lie(local, liar, chief, code, TEXT=text)
    run = play(local, "add_worker", world(members=(chief, *liars)), chief, *liars)
    assert_honest(local, run, chief)
    assert [run.outcomes[liar.id].error for liar in liars] == [None] * len(liars)


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
    liars = [worker(add(2), 2) for _ in MISNAMED]
    for liar, (answer, _) in zip(liars, MISNAMED, strict=True):
        lie(local, liar, chief, f"said |= {answer} if module == 'host_probe' else {{}}")
    run = play(local, "add_worker", world(members=(chief, honest, *liars, victim())), chief, honest, *liars)
    codes = [error.code for liar in liars if (error := run.outcomes[liar.id].error)]
    assert codes == [code for _, code in MISNAMED]
    assert {one["host"] for one in local.asked("converge_host")} == {host_name(honest)}
    assert local.asked("slurm_nodes") == []
    assert run.outcomes[honest.id].error is None
    assert_honest(local, run, chief)


def test_a_worker_that_has_joined_cannot_change_its_nodes_name(local: LocalPlays) -> None:
    chief, liar = controller(status="ready"), serving(2)
    run = play(local, "add_worker", world(members=(chief, liar, victim())), chief, liar)
    error = run.outcomes[liar.id].error
    assert error is not None, "the stub's host has another name than the record"
    assert (error.code, error.klass) == ("hostname_changed", "intervention")
    assert "worker_hostname" not in run.outcomes[liar.id].detail


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
    chief, liar = controller(status="ready"), serving(2)
    plan = {"now": "22.05.8-4", "target": "24.11.5-4", "moves": True, "from": "22.05.8-4", "backup": ""}
    local.module("slurm_packages", f"answer = {plan!r}")
    refusal = (
        {"target": "24.11.5-5"} if answer is None else {"failed": True, "msg": "it failed", "adapter_error": answer}
    )
    lie(local, liar, chief, f"said |= {refusal!r}")
    error = play(local, "upgrade", world(members=(chief, liar)), chief, liar).outcomes[chief.id].error
    assert error is not None and (error.code, error.klass) == (code, "intervention")
    assert error.message.startswith(f"{host_name(liar)}: ") and text in error.message


@pytest.mark.parametrize("named", [True, False])
def test_a_worker_that_leaves_cannot_have_another_node_deleted(local: LocalPlays, named: bool) -> None:
    """`named`: the record has the name of its node. Without one its host is asked, and names the victim's."""
    chief = controller(status="ready")
    liar = serving(2, status="deleting") if named else worker(add(2), 2, status="deleting")
    lie(local, liar, chief, "said['hostname'] = 'victim'")
    run = play(local, "remove_worker", world(members=(chief, liar, victim())), chief, liar)
    deleted = [one for asked in local.asked("slurm_nodes") for one in asked.get("delete") or []]
    assert deleted == (["w2"] if named else [])
    assert "worker_hostname" not in run.outcomes[liar.id].detail
    assert run.outcomes[liar.id].phase == "removed"


def test_a_worker_without_a_recorded_name_is_believed_if_no_other_has_the_name(local: LocalPlays) -> None:
    chief, half = controller(status="ready"), worker(add(2), 2, status="deleting")
    run = play(local, "remove_worker", world(members=(chief, half, victim())), chief, half)
    deleted = [one for asked in local.asked("slurm_nodes") for one in asked.get("delete") or []]
    assert deleted == [host_name(half)]
    assert run.outcomes[half.id].detail["worker_hostname"] == host_name(half)


def test_a_workers_report_of_its_restart_does_not_stop_the_controllers_restart(local: LocalPlays) -> None:
    chief = controller(status="ready")
    answers = ["'text'", "-1", "[]", "{'a': 1}", "True", "1e300", "float('nan')", "1.0"]
    liars = [serving(number, id=UUID(int=number << 120)) for number in range(10, 10 + len(answers))]
    local.module("host_units", 'answer = {"units": {"slurmd": "active"}, "started": {"slurmd": 1.0}, "elapsed": 1.0}')
    local.module("slurm_partitions", "answer = {}")
    for liar, answer in zip(liars, answers, strict=True):
        lie(local, liar, chief, f"said['started'] = {{'slurmd': {answer}}}; said['hostname'] = 'victim'")
    hosts = {UUID(int=100 + number): allocation(number) for number in range(1, 30)}
    local.module("slurm_snapshot", MOMENTS + STUBS["slurm_snapshot"])
    run = play(local, "restart", world(members=(chief, *liars, victim()), allocations=hosts), chief, *liars)
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
