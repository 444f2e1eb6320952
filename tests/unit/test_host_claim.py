"""Which calls may change a host: by the mark and the ledger on it, and by the number that the call carries.

Over 300 lines, because the cases of the table and the lock share one host in a directory.
"""

import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.host import claim as host_claim
from ansible.module_utils.host import lock as host_lock
from ansible.module_utils.host.claim import Claim, HostOwner, check_claim
from ansible.module_utils.host.errors import AdapterError
from ansible.module_utils.host.ledger import Document, Ledger, read
from ansible.module_utils.slurm import foreign_daemons

from tests.unit.host_claims import MEMBER, OTHER, OURS, action, claim

named, foreign, nameless = Document(instance=OURS), Document(instance=OTHER), Document()
untouched = HostOwner()
serving = HostOwner(mark=OURS, ledger=named)
standalone = Claim()
# What the call carries, what the host has, and the verdict: an error's code, or whether the instance is there already.
CASES: dict[str, tuple[Claim, HostOwner, str | bool]] = {
    "a first play begins on a free host": (claim(first=True), untouched, False),
    "a first play goes on where it was cut off": (claim(first=True), serving, True),
    "a first play goes on after its mark alone was written": (claim(first=True), HostOwner(mark=OURS), False),
    "any claimed play passes where the ledger is, after a reboot too": (claim(), serving, True),
    "the number that the host knows passes again": (claim(5), HostOwner(OURS, named, 5), True),
    "a larger number passes": (claim(6), HostOwner(OURS, named, 5), True),
    "a smaller number is late": (claim(4), HostOwner(OURS, named, 5), "fenced"),
    "a late first play after a removal": (claim(4, first=True), HostOwner(number=5), "fenced"),
    "a new first play of a member that the host knows": (claim(6, first=True), HostOwner(number=5), False),
    "a late call after a removal": (claim(5), HostOwner(number=5), "not_a_member"),
    "a late call after a removal and a reboot": (claim(5), untouched, "not_a_member"),
    "a call on a half cleaned host": (claim(5), HostOwner(mark=OURS), "not_a_member"),
    "a mark of another instance": (claim(first=True), HostOwner(mark=OTHER), "host_in_use"),
    "a ledger of another instance": (claim(first=True), HostOwner(ledger=foreign), "host_in_use"),
    "our mark beside another instance's ledger": (claim(), HostOwner(OURS, foreign), "host_in_use"),
    "another instance, unfenced": (claim(None, unfenced=True), HostOwner(OTHER, foreign), "host_in_use"),
    "no instance at all, unfenced": (Claim(unfenced=True), serving, "host_in_use"),
    "a ledger without an id of a host that we changed": (claim(touched=True), HostOwner(ledger=nameless), True),
    "a ledger without an id beside our mark": (claim(), HostOwner(OURS, nameless), True),
    "a ledger without an id, a first play": (claim(first=True), HostOwner(ledger=nameless), "host_left_over"),
    "a ledger without an id, a later play": (claim(), HostOwner(ledger=nameless), "host_left_over"),
    "a ledger without an id, retried": (claim(first=True, touched=True), HostOwner(ledger=nameless), True),
    "a role by itself on a free host": (standalone, untouched, False),
    "a role by itself on its own host": (standalone, HostOwner(ledger=nameless), True),
    "a role by itself on a marked host": (standalone, serving, "claim_required"),
    "no number on a marked host": (claim(None), serving, "claim_required"),
    "no number on a host that has our mark alone": (claim(None, first=True), HostOwner(mark=OURS), "claim_required"),
    "no number on a free host": (claim(None, first=True), untouched, False),
    "no number on an unmarked host that we changed": (claim(None, touched=True), HostOwner(ledger=nameless), True),
    "unfenced on a host of ours": (claim(None, unfenced=True), HostOwner(OURS, named, 9), True),
    "unfenced on a free host": (claim(None, unfenced=True), untouched, False),
    "unfenced on a ledger without an id": (claim(None, unfenced=True), HostOwner(ledger=nameless), True),
    "unfenced, no instance, a ledger without an id": (Claim(unfenced=True), HostOwner(ledger=nameless), True),
}


@pytest.mark.parametrize("case", CASES)
def test_a_call_is_judged_by_its_claim_and_by_what_the_host_has(case: str) -> None:
    who, host, verdict = CASES[case]
    if isinstance(verdict, bool):
        assert check_claim(who, host) is verdict
        return
    with pytest.raises(AdapterError) as refused:
        check_claim(who, host)
    assert refused.value.code == verdict
    assert "Nothing was changed" in refused.value.message


def test_a_host_in_use_names_the_instance_as_data() -> None:
    with pytest.raises(AdapterError) as refused:
        check_claim(claim(first=True), HostOwner(mark=OTHER))
    assert refused.value.as_dict()["instance"] == OTHER


@pytest.mark.parametrize("who", [standalone, claim(None)])
def test_the_refusal_of_a_call_without_a_claim_names_an_option_that_passes(who: Claim) -> None:
    with pytest.raises(AdapterError) as refused:
        check_claim(who, serving)
    assert f"`-e gpuaas_app_instance_id={OURS} -e gpuaas_unfenced=true`" in refused.value.message
    options = dict(re.findall(r"-e (\w+)=([\w-]+)", refused.value.message))
    assert check_claim(Claim(**action("claimed")[1]["claim_of"](options)), serving), (
        "also with -i HOST, where nothing else is known"
    )


class Module:
    """What a module has of Ansible."""

    def __init__(self, who: Claim, check_mode: bool = False) -> None:
        self.params = {"claim": vars(who)}
        self.check_mode = check_mode

    def fail_json(self, **result: Any) -> None:
        raise SystemExit(result["adapter_error"]["code"])


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory in place of the host's paths."""
    paths = {
        "MARK": tmp_path / "etc/gpuaas-slurm/owner.json",
        "RUN_DIRECTORY": tmp_path / "run",
        "FENCES": tmp_path / "run/fences.json",
        "LEDGER": tmp_path / "state/ledger.json",
    }
    for name, path in paths.items():
        monkeypatch.setattr(host_claim, name, path)
    monkeypatch.setattr(host_lock, "RUN_DIRECTORY", tmp_path / "run")
    monkeypatch.setattr(host_lock, "STATE_DIRECTORY", tmp_path / "state")
    (tmp_path / "etc").mkdir()
    yield tmp_path


def take_lock(who: Claim, *, check_mode: bool = False, **how: bool) -> bool:
    with host_lock.host_lock(Module(who, check_mode), "testing", **how) as ours:
        return ours


def test_the_first_change_marks_the_host_and_its_ledger(host: Path) -> None:
    assert take_lock(claim(1, first=True)) is False
    mark = json.loads((host / "etc/gpuaas-slurm/owner.json").read_text())
    assert mark["instance"] == OURS and "clean_host.yml" in mark["meaning"] and mark["since"]
    assert (host / "etc/gpuaas-slurm/owner.json").stat().st_mode & 0o777 == 0o644
    written = json.loads((host / "state/ledger.json").read_text())
    assert (written["format"], written["instance"], written["entries"]) == (2, OURS, {})
    assert written["baseline"]["account"], "the picture from before the first change"
    assert take_lock(claim(1)) is True


def test_a_ledger_of_format_1_gets_the_id_and_keeps_the_rest(host: Path) -> None:
    recorded = Path(__file__).parent / "fixtures/notes/a605804/bookworm/ledger_worker.json"
    before = json.loads(recorded.read_text())
    (host / "state").mkdir()
    (host / "state/ledger.json").write_text(json.dumps(before))
    assert take_lock(claim(1, touched=True)) is True
    written = json.loads((host / "state/ledger.json").read_text())
    assert written == before | {"format": 2, "instance": OURS}
    assert host_claim.read_mark() == OURS


def test_a_saved_ledger_keeps_the_instance(host: Path) -> None:
    take_lock(claim(1, first=True))
    ledger = Ledger("worker/munge", host / "state")
    ledger.note("path", "/a", {"kind": "absent"})
    ledger.save()
    saved = read(host / "state/ledger.json")
    assert saved and saved.instance == OURS and list(saved.entries) == ["path:/a"]


def test_a_newer_ledger_is_refused_and_left_as_it_is(host: Path) -> None:
    (host / "state").mkdir()
    newer = json.dumps({"format": 3, "instance": OURS, "entries": {}})
    (host / "state/ledger.json").write_text(newer)
    with pytest.raises(SystemExit, match="ledger_newer"):
        take_lock(claim(1, touched=True))
    assert (host / "state/ledger.json").read_text() == newer
    assert not (host / "etc/gpuaas-slurm").exists()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"instance": 7}', '{"instance": "me"}', "{}"])
def test_a_mark_that_cannot_be_read_is_an_error(host: Path, content: str) -> None:
    (host / "etc/gpuaas-slurm").mkdir()
    (host / "etc/gpuaas-slurm/owner.json").write_text(content)
    with pytest.raises(SystemExit, match="mark_unreadable"):
        take_lock(claim(1, first=True))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"members": {"a": {}}}', '{"members": {"a": {"number": "x"}}}'])
def test_numbers_that_cannot_be_read_are_an_error(host: Path, content: str) -> None:
    (host / "run").mkdir()
    (host / "run/fences.json").write_text(content)
    with pytest.raises(SystemExit, match="fences_unreadable"):
        take_lock(claim(1, first=True))


def test_the_number_is_kept_per_member_and_outlives_the_ledger(host: Path) -> None:
    controller = Claim(OURS, "c", 7, first=True)
    take_lock(controller)
    take_lock(claim(3, first=True))
    (host / "state/ledger.json").unlink()
    host_claim.remove_mark()
    for late in (claim(2, first=True), Claim(OURS, "c", 6, first=True)):
        with pytest.raises(SystemExit, match="fenced"):
            take_lock(late)
    assert not (host / "state/ledger.json").exists() and not (host / "etc/gpuaas-slurm").exists()
    fences = json.loads((host / "run/fences.json").read_text())["members"]
    assert fences == {"c": {"instance": OURS, "number": 7}, MEMBER: {"instance": OURS, "number": 3}}


def test_a_late_call_after_a_removal_writes_nothing(host: Path) -> None:
    with pytest.raises(SystemExit, match="not_a_member"):
        take_lock(claim(5))
    assert [path.name for path in host.rglob("*") if path.is_file()] == ["lock"]


def test_a_read_and_a_dry_run_are_not_judged_and_write_nothing(host: Path) -> None:
    (host / "etc/gpuaas-slurm").mkdir()
    (host / "etc/gpuaas-slurm/owner.json").write_text(json.dumps({"instance": OTHER}))
    before = sorted(host.rglob("*"))
    assert take_lock(claim(1), changes=False) is False
    assert take_lock(claim(1), check_mode=True) is False
    assert sorted(host.rglob("*")) == before


def test_taking_away_finds_nothing_on_a_host_of_another_instance(host: Path) -> None:
    (host / "etc/gpuaas-slurm").mkdir()
    (host / "etc/gpuaas-slurm/owner.json").write_text(json.dumps({"instance": OTHER}))
    assert take_lock(claim(1), begin=False, absent_ok=True) is False
    assert host_claim.read_mark() == OTHER


def test_taking_away_obeys_the_number_too(host: Path) -> None:
    take_lock(claim(5, first=True))
    with pytest.raises(SystemExit, match="fenced"):
        take_lock(claim(4), begin=False, absent_ok=True)


@pytest.mark.parametrize("who", [standalone, claim(None)])
def test_a_call_without_a_number_leaves_no_mark(host: Path, who: Claim) -> None:
    take_lock(who)
    assert not (host / "etc/gpuaas-slurm").exists() and not (host / "state/ledger.json").exists()


def test_the_mark_goes_with_its_directory_unless_that_holds_something_else(host: Path) -> None:
    host_claim.write_mark(OURS)
    host_claim.remove_mark()
    assert not (host / "etc/gpuaas-slurm").exists()
    host_claim.write_mark(OURS)
    (host / "etc/gpuaas-slurm/gpuaas.toml").touch()
    host_claim.remove_mark()
    assert [path.name for path in (host / "etc/gpuaas-slurm").iterdir()] == ["gpuaas.toml"]


# -- the lock ------------------------------------------------------------------------------------------------


class Refusing(Module):
    def fail_json(self, **result: Any) -> None:
        raise AdapterError(
            result["adapter_error"]["code"], result["adapter_error"]["message"], result["adapter_error"]["class"]
        )


def test_a_call_that_waits_too_long_for_the_lock_names_its_holder(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module goes on when its play is stopped, so the retry of the same member can meet it."""
    monkeypatch.setattr(host_lock, "WAIT_SECONDS", 0.3)
    holder = f"process {os.getpid()}, converging the host for member {MEMBER}"
    with host_lock.host_lock(Module(claim(1, first=True)), "converging the host"):
        with (
            pytest.raises(AdapterError, match=holder) as busy,
            host_lock.host_lock(Refusing(claim(2)), "testing"),
        ):
            raise AssertionError("two calls hold the lock")
        assert (busy.value.code, busy.value.error_class) == ("host_lock_busy", "retryable")
        fences = json.loads((host / "run/fences.json").read_text())["members"]
        assert fences[MEMBER]["number"] == 1, "a call that was not let in leaves nothing"
    assert take_lock(claim(2)) is True


def test_a_call_that_waits_for_the_lock_begins_when_it_is_free(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    holding, waiting = threading.Event(), threading.Event()

    def hold() -> None:
        with host_lock.host_lock(Module(claim(1, first=True)), "converging the host"):
            holding.set()
            assert waiting.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    assert holding.wait(10)
    monkeypatch.setattr("time.sleep", lambda _: waiting.set())
    assert take_lock(claim(2)) is True and waiting.is_set()
    holder.join(10)


# -- daemons of other clusters -------------------------------------------------------------------------------


def daemons(proc: Path, **running: str) -> None:
    for number, (name, namespace) in enumerate([("self", "pid:[1]"), *running.items()]):
        process = proc / (name if name == "self" else str(number))
        (process / "ns").mkdir(parents=True)
        (process / "ns/pid").symlink_to(namespace)
        (process / "comm").write_text(f"{name}\n")


@pytest.mark.parametrize(
    ("entries", "refused"),
    [
        ({}, "munged and slurmd"),
        ({"unit:munge": {}}, "slurmd"),
        ({"unit:slurmd": {}, "unit:munge": {}}, None),
    ],
)
def test_a_daemon_that_is_not_in_our_ledger_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: dict[str, Any], refused: str | None
) -> None:
    daemons(tmp_path, munged="pid:[1]", sshd="pid:[1]", slurmctld="pid:[2]")
    found = list(foreign_daemons.running(tmp_path))
    assert found == ["munged"], "a container's own slurmctld is not the host's"
    monkeypatch.setattr(foreign_daemons, "running", lambda: iter(found))
    monkeypatch.setattr(foreign_daemons, "show", lambda units: {one: {"ActiveState": STATES[one]} for one in units})
    if refused is None:
        foreign_daemons.refuse_foreign_daemons(entries)
        return
    with pytest.raises(AdapterError, match=f"^{refused} runs on the host") as error:
        foreign_daemons.refuse_foreign_daemons(entries)
    assert error.value.code == "host_has_slurm"


STATES = {"slurmctld": "inactive", "slurmd": "active", "munge": "inactive"}
