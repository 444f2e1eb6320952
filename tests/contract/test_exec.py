"""`gpuaas-slurm exec` takes claims like a runner: real commands and a real platform; hosts are only records.

Over 300 lines, because claims and the record of each command are checked on the same platform.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from runner.intent.errors import IntentError
from runner.loop import manual
from runner.model import limits
from runner.model.errors import RequestError
from runner.model.plan import SetInstance, stamp
from runner.model.work_notes import HandNote, HandNotes, PlayHistory, PlayRun
from runner.observe.world import observe
from runner.platform.client import Client
from runner.report import hand_record
from runner.report.reporter import Reporter
from runner.settings import SECRET_VARIABLES
from runner.slurm.app import SLURM
from sandbox.fleet.keys import KeyPair
from tests.commands import EXEC, ends
from tests.platform_process import ROOT, Doc, Project
from tests.runner_process import COMMAND, answer, environment, gpuaas_slurm, settings
from tests.unit.lifecycle import cluster, serving
from tests.unit.worlds import NOW
from tests.waits import until

INVENTORY = str(Path(sys.executable).with_name("ansible-inventory"))
SHOW = (sys.executable, "-c", "import os; print(os.environ['GPUAAS_CLAIMS'])")


class Operator:
    """An operator with the project's settings, and a cluster whose members are recorded as ready."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.variables = environment(project, GPUAAS_LEASE_SECONDS="10", GPUAAS_RUNNER_ID="prod")
        self.path = f"{project.path}/app-instances/{project.deploy(workers=2)['id']}"
        control = project.platform.control
        control.put_credential(
            project.project_id, project.credential_id, username="ops", private_key=KeyPair.generate().private
        )
        operation = self._items("member-operations")[0]
        for allocation in project.allocation_ids[1:3]:
            detail = {"operation_id": operation["id"], "worker_hostname": f"w{allocation[:8]}", "fence": 4}
            body = {"component_key": "worker", "allocation_id": allocation, "adapter_detail": detail}
            assert project.adapter.post(f"{self.path}/members", body).status_code == 201
        cancelled = project.operator.patch(f"{self.path}/member-operations/{operation['id']}", {"status": "cancelled"})
        assert cancelled.status_code == 200, cancelled.text

    def _items(self, what: str) -> list[Doc]:
        return list(self.project.operator.get(f"{self.path}/{what}").json()["items"])

    def members(self) -> dict[str, Doc]:
        return {f"{one['component_key']}-{one['id'][:8]}": one for one in self._items("members")}

    def worker(self) -> str:
        return min(name for name in self.members() if name.startswith("worker"))

    def exec(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return gpuaas_slurm(self.variables, *EXEC, *arguments)

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("GPUAAS_", "VAULT_"))}
        return subprocess.Popen(
            [COMMAND, *EXEC, *arguments],
            env={**inherited, **self.variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def hold(self, name: str, by: str) -> str:
        until_when = stamp(datetime.now(UTC) + timedelta(minutes=5))
        member = self.members()[name]
        detail = {**member["adapter_detail"], "claimed_by": by, "lease_expires_at": until_when}
        answer = self.project.adapter.patch(f"{self.path}/members/{member['id']}", {"adapter_detail": detail})
        assert answer.status_code == 200
        return until_when

    def notes(self) -> list[Doc]:
        """Work by hand, as it is on record."""
        detail = self.project.operator.get(self.path).json()["status_detail"] or {}
        return list(detail.get("by_hand", {}).get("notes", []))

    def claimed(self) -> dict[str, str]:
        found = {name: one["adapter_detail"].get("claimed_by") for name, one in self.members().items()}
        return {name: by for name, by in found.items() if by}


@pytest.fixture
def operator(dialable: Project) -> Iterator[Operator]:
    made = Operator(dialable)
    yield made
    assert made.claimed() in ({}, getattr(made, "expected", {})), "a claim was left"


def test_exec_claims_every_member_gives_the_numbers_and_hands_them_back(operator: Operator) -> None:
    done = operator.exec("--", *SHOW)
    ends(done, 0)
    members = operator.members()
    assert json.loads(done.stdout) == {one["id"]: one["adapter_detail"]["fence"] for one in members.values()}
    workers = [one for one in members.values() if one["component_key"] == "worker"]
    assert [one["adapter_detail"]["fence"] for one in workers] == [5, 5]


def test_exec_claims_only_the_named_members_and_none_for_reading(operator: Operator) -> None:
    name = operator.worker()
    done = operator.exec("--members", name, "--", *SHOW)
    ends(done, 0)
    assert json.loads(done.stdout) == {operator.members()[name]["id"]: 5}
    mark = operator.project.platform.control.requests()["last"]
    reading = operator.exec("--read-only", "--", *SHOW)
    ends(reading, 0)
    assert json.loads(reading.stdout) == {}
    sent = operator.project.platform.control.requests(mark)["requests"]
    assert {row["path"] for row in sent if row["method"] == "PATCH"} == {f"/api/v1{operator.path}"}, "its record only"


def test_exec_is_refused_and_names_the_runner_that_holds_a_member(operator: Operator) -> None:
    name = operator.worker()
    until_when = operator.hold(name, "prod")
    operator.expected = {name: "prod"}  # type: ignore[attr-defined]
    refused = operator.exec("--", *SHOW)
    ends(refused, 3)
    message = " ".join(refused.stderr.split())
    assert f"{name} is held by runner prod until {until_when}" in message and "--members" in message
    assert refused.stdout == "" and operator.claimed() == {name: "prod"}
    ends(operator.exec("--members", max(operator.members()), "--", *SHOW), 0)


def test_exec_is_refused_while_another_runner_carries_out_an_operation(operator: Operator) -> None:
    asked = operator.project.operator.post(f"{operator.path}/operations", {"operation": "restart"}).json()
    lease = stamp(datetime.now(UTC) + timedelta(minutes=5))
    body = {"status": "running", "claimed_by": "left", "lease_expires_at": lease}
    assert operator.project.adapter.patch(f"{operator.path}/operations/{asked['id']}", body).status_code == 200
    refused = operator.exec("--", *SHOW)
    ends(refused, 3)
    assert "is held by runner left" in " ".join(refused.stderr.split())


def test_exec_passes_the_exit_code_on_and_hands_back_after_a_failure(operator: Operator) -> None:
    ends(operator.exec("--", "sh", "-c", "exit 7"), 7)
    ends(operator.exec("--", "/no/such/command"), 2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_exec_hands_back_when_it_is_interrupted(operator: Operator, number: int) -> None:
    started = operator.start("--", "sleep", "100")
    until(lambda: len(operator.claimed()) == 3, 60, "all members are claimed")
    assert all(by.startswith("exec/") for by in operator.claimed().values()), "not under a runner's name"
    until(lambda: _children(started.pid, "sleep"), 30, "the command runs")
    os.killpg(started.pid, number)
    started.communicate(timeout=60)
    assert started.returncode not in (0, None)
    assert operator.claimed() == {}


def test_exec_renews_while_the_command_runs_and_ends_it_when_its_claim_is_lost(operator: Operator) -> None:
    started = operator.start("--", "sleep", "100")
    until(lambda: len(operator.claimed()) == 3, 60, "all members are claimed")
    name = operator.worker()

    def lease() -> str:
        return str(operator.members()[name]["adapter_detail"]["lease_expires_at"])

    first = lease()
    until(lambda: lease() > first, 30, "the lease is renewed")
    operator.hold(name, "other-runner")
    operator.expected = {name: "other-runner"}  # type: ignore[attr-defined]
    _, stderr = started.communicate(timeout=60)
    assert started.returncode == 3 and "The claim was lost, so the command was ended." in " ".join(stderr.split())


def _children(pid: int, command: str) -> list[str]:
    found = []
    for one in Path("/proc").glob("[0-9]*/stat"):
        try:
            parts = one.read_text().rsplit(")", 1)
        except OSError:
            continue
        if int(parts[1].split()[1]) == pid and f"({command}" in parts[0]:
            found.append(one.parent.name)
    return found


def test_exec_is_on_record_under_the_persons_name_before_a_host_is_touched(operator: Operator) -> None:
    show = f"{sys.executable} -c 'import os; print(os.environ[\"GPUAAS_CORRELATION_ID\"])'"
    before = len(operator.project.platform.control.audit())
    done = operator.exec("--", "env", "TOKEN=hunter2", "sh", "-c", f"{show} --password hunter2")
    ends(done, 0)
    (note,) = operator.notes()
    assert note["correlation_id"] == done.stdout.strip() and note["correlation_id"] in done.stderr
    assert (note["verb"], note["why"], note["exit_code"]) == ("exec", "a test", 0)
    assert set(note["hosts"]) == set(operator.members()) and note["hosts_count"] == 3
    assert "hunter2" not in str(note) and "TOKEN=***" in note["command"] and note["started_at"] <= note["ended_at"]
    rows = [row for row in operator.project.platform.control.audit()[before:] if row["project_id"] in operator.path]
    assert {row["correlation_id"] for row in rows} == {note["correlation_id"]}, "claims, too"
    first, *_, last = rows
    assert (first["action"], last["action"]) == ("updateAppInstance", "updateAppInstance")
    assert note["who"] == f"{first['actor_type']}/{first['actor_id']}" and first["actor_type"] != "service_account"
    marks = {one["adapter_detail"]["correlation_id"] for one in operator.members().values()}
    assert marks == {note["correlation_id"]}


def test_a_command_gets_no_secret_of_the_person_but_what_the_inventory_needs(operator: Operator) -> None:
    operator.variables |= {name: f"canary-{name}" for name in SECRET_VARIABLES if name not in operator.variables}
    operator.variables["gpuaas_operator_token"] = operator.variables["GPUAAS_OPERATOR_TOKEN"]
    done = operator.exec(
        "--read-only", "--", sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"
    )
    ends(done, 0)
    got = json.loads(done.stdout)
    assert {name for name in got if name.upper() in SECRET_VARIABLES} == {"GPUAAS_CLIENT_SECRET"}
    hidden = {value for name, value in operator.variables.items() if name.upper() in SECRET_VARIABLES}
    assert not (hidden - {operator.variables["GPUAAS_CLIENT_SECRET"]}) & set(got.values())
    listed = operator.exec("--read-only", "--", INVENTORY, "-i", str(ROOT / "gpuaas.yml"), "--list")
    ends(listed, 0)
    names = json.loads(listed.stdout)["_meta"]["hostvars"].keys()
    # This machine may have one of the addresses itself; such a host is left out.
    assert names and names <= operator.members().keys(), listed.stderr


def test_a_killed_exec_has_a_start_on_record_and_no_end(operator: Operator) -> None:
    started = operator.start("--read-only", "--", "sleep", "100")
    until(lambda: _children(started.pid, "sleep"), 60, "the command runs")
    (note,) = operator.notes()
    os.killpg(started.pid, signal.SIGKILL)
    started.communicate(timeout=60)
    assert operator.notes() == [note] and note["read_only"] and not {"ended_at", "exit_code"} & note.keys()
    (shown,) = answer(operator.variables, "explain", note["correlation_id"])
    assert [one["kind"] for one in shown["story"]] == ["by hand"] and "killed" in shown["end"]


def test_a_command_that_does_not_start_says_so_on_record(operator: Operator) -> None:
    ends(operator.exec("--", "/no/such/command"), 2)
    (note,) = operator.notes()
    assert "/no/such/command" in note["problem"] and note["ended_at"]
    assert "exit_code" not in note


@pytest.mark.parametrize(
    ("changes", "reason", "says"),
    [
        ({"GPUAAS_OPERATOR_TOKEN": ""}, "why", "GPUAAS_OPERATOR_TOKEN"),
        ({}, " ", "--reason is empty"),
    ],
)
def test_without_a_name_or_a_reason_nothing_is_run(
    operator: Operator, tmp_path: Path, changes: dict[str, str], reason: str, says: str
) -> None:
    variables = {name: value for name, value in {**operator.variables, **changes}.items() if value}
    mark = tmp_path / "ran"
    refused = gpuaas_slurm(variables, "exec", "--reason", reason, "--", "touch", str(mark))
    ends(refused, 2)
    assert says in refused.stderr and not mark.exists() and operator.notes() == []


@pytest.mark.parametrize(
    ("stored", "kept", "problem"),
    [
        ({"format": 9, "notes": "x"}, {"format": 9, "notes": "x"}, "by_hand has format 9"),
        ({"notes": [{"verb": "exec", "who": None}]}, {"verb": "exec", "who": None}, "by_hand.notes.0.correlation_id"),
        ("damaged", "damaged", "by_hand is not an object"),
    ],
)
def test_a_record_that_cannot_be_read_is_kept_and_named_and_work_goes_on(
    operator: Operator, tmp_path: Path, stored: object, kept: object, problem: str
) -> None:
    mark = tmp_path / "ran"
    assert operator.project.adapter.patch(operator.path, {"status_detail": {"by_hand": stored}}).status_code == 200
    done = operator.exec("--read-only", "--", "touch", str(mark))
    ends(done, 0)
    assert problem in " ".join(done.stderr.split()) and mark.exists()
    found = operator.project.operator.get(operator.path).json()["status_detail"]["by_hand"]
    assert found["unreadable"] == [kept] and [one["exit_code"] for one in found["notes"]] == [0]
    ends(operator.exec("--read-only", "--", "true"), 0)
    found = operator.project.operator.get(operator.path).json()["status_detail"]["by_hand"]
    assert found["unreadable"] == [kept] and len(found["notes"]) == 2, "a later command keeps it, too"


def test_a_record_that_cannot_be_written_lets_nothing_run(operator: Operator, tmp_path: Path) -> None:
    control, mark = operator.project.platform.control, tmp_path / "ran"
    control.inject_fault("status", f"{operator.path}$", method="PATCH", status=403)
    refused = operator.exec("--read-only", "--", "touch", str(mark))
    ends(refused, 2)
    assert "nothing was run" in " ".join(refused.stderr.split()) and not mark.exists()


def test_in_an_emergency_the_service_account_stands_in_and_the_record_shows_it(operator: Operator) -> None:
    variables = {name: value for name, value in operator.variables.items() if name != "GPUAAS_OPERATOR_TOKEN"}
    ends(gpuaas_slurm(variables, *EXEC, "--as-service-account", "--read-only", "--", "true"), 0)
    (note,) = operator.notes()
    assert note["who"].startswith("service_account/") and note["exit_code"] == 0


def test_an_operator_writes_only_the_record_of_work_by_hand(operator: Operator) -> None:
    def write(detail: Doc) -> int:
        return operator.project.operator.patch(operator.path, {"status_detail": detail}).status_code

    stored = operator.project.operator.get(operator.path).json()["status_detail"] or {}
    assert write({**stored, "by_hand": {"notes": []}}) == 200
    assert write({**stored, "by_hand": {"notes": []}, "reasons": []}) == 403
    assert write({}) == (200 if not stored else 403)


@pytest.mark.parametrize("etags", [True, False])
def test_a_runner_that_reports_meanwhile_keeps_the_record(operator: Operator, etags: bool) -> None:
    own = settings(operator.project)
    with Client(own) as client:
        if not etags:
            operator.project.platform.control.inject_fault("strip_etags", operator.path, times=50)
        world = observe(client, client.instance(UUID(operator.path[-36:])), own, SLURM, everything=True)
        ends(operator.exec("--read-only", "--", "true"), 0)
        report = Reporter(client, own, world, SLURM)
        report.apply(SetInstance("it is deploying", "deploying", "progressing", {"unsettled": True}), world)
        report.writer.own_plays = PlayHistory(plays=[PlayRun(playbook="observe", started_at=NOW)])
        report.writer.write_own_plays()
    detail = operator.project.operator.get(operator.path).json()["status_detail"]
    assert detail["unsettled"] and detail["own_plays"]["plays"] and detail["by_hand"]["notes"][0]["exit_code"] == 0


def test_two_persons_at_once_both_have_their_records(operator: Operator) -> None:
    with ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda _: operator.exec("--read-only", "--", "true"), range(4)))
    assert [one.returncode for one in done] == [0] * 4
    assert [one["exit_code"] for one in operator.notes()] == [0] * 4


def test_the_oldest_records_of_work_by_hand_are_dropped_and_counted() -> None:
    notes = HandNotes()
    for number in range(40):
        note = HandNote(
            correlation_id=f"c{number}", verb="exec", who="user/x", why="é" * 500, command="é" * 500, started_at=NOW
        )
        notes = hand_record.with_note(notes, note)
    assert notes.notes[-1].correlation_id == "c39" and notes.more + len(notes.notes) == 40
    assert limits.size(notes.stored()) <= hand_record.NOTES_BYTES
    ended = hand_record.with_note(notes, notes.notes[0].but(exit_code=3))
    assert [one.exit_code for one in ended.notes] == [3, *[None] * (len(notes.notes) - 1)]


def hand_note(number: int, **changes: object) -> HandNote:
    made = HandNote(correlation_id=f"c{number}", verb="exec", who="u/x", why="w", command="c", started_at=NOW)
    return made.but(**changes)


def test_a_command_that_is_under_way_stays_on_record_while_others_have_ended() -> None:
    notes = HandNotes()
    for number in range(30):
        notes = hand_record.with_note(notes, hand_note(number, ended_at=None if number < 3 else NOW))
    kept = [one.correlation_id for one in notes.notes]
    assert kept == ["c0", "c1", "c2", *(f"c{number}" for number in range(23, 30))] and notes.more == 20
    for number in range(100, 100 + hand_record.MOST_NOTES):
        notes = hand_record.with_note(notes, hand_note(number))
    assert [one.correlation_id for one in notes.notes] == [f"c{100 + n}" for n in range(hand_record.MOST_NOTES)]
    assert notes.more + len(notes.notes) == 40, "the oldest goes, if none has ended"


def test_what_cannot_be_read_is_kept_within_a_bound() -> None:
    noted, problems = HandNotes.of({"notes": [*({"é": "x" * 500, "n": n} for n in range(9)), {"long": "é" * 9_000}]})
    assert len(problems) == 10
    made = hand_record.with_note(noted, hand_note(1)).stored()
    kept = made["unreadable"]
    assert limits.size(kept) <= hand_record.ODD_BYTES and kept[-1].startswith('{"long": ')
    assert kept[-2] == {"é": "x" * 500, "n": 8} and made["more"] + len(kept) == 10
    again, problems = HandNotes.of(made)
    assert (again.stored(), problems) == (made, [])
    deep: object = []
    for _ in range(30):
        deep = [deep]
    (text,) = hand_record.with_note(HandNotes.of({"notes": [deep]})[0], hand_note(1)).unreadable or []
    assert text == json.dumps(deep)


def test_a_command_is_not_given_more_claims_than_its_environment_can_hold() -> None:
    largest = manual.ManualClaims({UUID(int=2**127 + number): 2**40 for number in range(manual.MAX_MEMBERS)})
    ends(subprocess.run(["true"], env=largest.environment, check=False, capture_output=True, text=True), 0)
    many = cluster(*(serving(2) for _ in range(manual.MAX_MEMBERS)))
    with pytest.raises(RequestError, match="--members"):
        manual.choose(many.members, lambda alive: alive)


def test_the_inventory_has_numbers_only_from_exec() -> None:
    assert manual.read_claims(None) == {}
    member = "c0000000-0000-0000-0000-000000000000"
    assert {str(one): fence for one, fence in manual.read_claims(f'{{"{member}": 3}}').items()} == {member: 3}
    for wrong in ("[]", "3", '{"x": 1}', "{", f'{{"{member}": null}}'):
        with pytest.raises(IntentError, match="use exec"):
            manual.read_claims(wrong)
