"""Which calls may change a host: by the mark and the ledger on it, and by the number that the call carries."""

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.host import claim as host_claim
from ansible.module_utils.host import lock as host_lock
from ansible.module_utils.host.claim import Claim, HostOwner, check_claim
from ansible.module_utils.host.errors import AdapterError
from ansible.module_utils.host.ledger import Document, Ledger, read
from ansible.module_utils.slurm import foreign_daemons
from ansible.plugins.loader import action_loader

from runner.slurm.decide.claims import CHANGES_ALL, CHANGES_WORKERS, THROUGH_CONTROLLER

ROOT = Path(__file__).resolve().parents[2]
OURS, OTHER = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
MEMBER = "33333333-3333-4333-8333-333333333333"

named, foreign, nameless = Document(instance=OURS), Document(instance=OTHER), Document()
untouched = HostOwner()
serving = HostOwner(mark=OURS, ledger=named)
standalone = Claim()


def claim(number: int | None = 5, **more: Any) -> Claim:
    return Claim(OURS, MEMBER, number, **more)


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
def test_a_call_without_a_claim_is_told_an_emergency_way_that_passes(who: Claim) -> None:
    with pytest.raises(AdapterError) as refused:
        check_claim(who, serving)
    assert f"`-e gpuaas_app_instance_id={OURS} -e gpuaas_unfenced=true`" in refused.value.message
    told = dict(re.findall(r"-e (\w+)=([\w-]+)", refused.value.message))
    assert check_claim(Claim(**action("claimed")[1]["claim_of"](told)), serving), (
        "also with -i HOST, where nothing else is known"
    )


class Module:
    """What a module has of Ansible."""

    def __init__(self, who: Claim, check_mode: bool = False) -> None:
        self.params = {"claim": vars(who)}
        self.check_mode = check_mode

    def fail_json(self, **told: Any) -> None:
        raise SystemExit(told["adapter_error"]["code"])


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


def turn(who: Claim, *, check_mode: bool = False, **how: bool) -> bool:
    with host_lock.host_lock(Module(who, check_mode), "testing", **how) as ours:
        return ours


def test_the_first_change_marks_the_host_and_its_ledger(host: Path) -> None:
    assert turn(claim(1, first=True)) is False
    mark = json.loads((host / "etc/gpuaas-slurm/owner.json").read_text())
    assert mark["instance"] == OURS and "clean_host.yml" in mark["meaning"] and mark["since"]
    assert (host / "etc/gpuaas-slurm/owner.json").stat().st_mode & 0o777 == 0o644
    written = json.loads((host / "state/ledger.json").read_text())
    assert (written["format"], written["instance"], written["entries"]) == (2, OURS, {})
    assert written["baseline"]["account"], "the picture from before the first change"
    assert turn(claim(1)) is True


def test_a_ledger_of_format_1_gets_the_id_and_keeps_the_rest(host: Path) -> None:
    recorded = Path(__file__).parent / "fixtures/notes/a605804/bookworm/ledger_worker.json"
    before = json.loads(recorded.read_text())
    (host / "state").mkdir()
    (host / "state/ledger.json").write_text(json.dumps(before))
    assert turn(claim(1, touched=True)) is True
    written = json.loads((host / "state/ledger.json").read_text())
    assert written == before | {"format": 2, "instance": OURS}
    assert host_claim.read_mark() == OURS


def test_a_saved_ledger_keeps_the_instance(host: Path) -> None:
    turn(claim(1, first=True))
    ledger = Ledger("worker/munge", host / "state")
    ledger.note("path", "/a", {"kind": "absent"})
    ledger.save()
    known = read(host / "state/ledger.json")
    assert known and known.instance == OURS and list(known.entries) == ["path:/a"]


def test_a_newer_ledger_is_refused_and_left_as_it_is(host: Path) -> None:
    (host / "state").mkdir()
    newer = json.dumps({"format": 3, "instance": OURS, "entries": {}})
    (host / "state/ledger.json").write_text(newer)
    with pytest.raises(SystemExit, match="ledger_newer"):
        turn(claim(1, touched=True))
    assert (host / "state/ledger.json").read_text() == newer
    assert not (host / "etc/gpuaas-slurm").exists()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"instance": 7}', '{"instance": "me"}', "{}"])
def test_a_mark_that_cannot_be_read_is_an_error(host: Path, content: str) -> None:
    (host / "etc/gpuaas-slurm").mkdir()
    (host / "etc/gpuaas-slurm/owner.json").write_text(content)
    with pytest.raises(SystemExit, match="mark_unreadable"):
        turn(claim(1, first=True))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"members": {"a": {}}}', '{"members": {"a": {"number": "x"}}}'])
def test_numbers_that_cannot_be_read_are_an_error(host: Path, content: str) -> None:
    (host / "run").mkdir()
    (host / "run/fences.json").write_text(content)
    with pytest.raises(SystemExit, match="fences_unreadable"):
        turn(claim(1, first=True))


def test_the_number_is_kept_per_member_and_outlives_the_ledger(host: Path) -> None:
    controller = Claim(OURS, "c", 7, first=True)
    turn(controller)
    turn(claim(3, first=True))
    (host / "state/ledger.json").unlink()
    host_claim.remove_mark()
    for late in (claim(2, first=True), Claim(OURS, "c", 6, first=True)):
        with pytest.raises(SystemExit, match="fenced"):
            turn(late)
    assert not (host / "state/ledger.json").exists() and not (host / "etc/gpuaas-slurm").exists()
    known = json.loads((host / "run/fences.json").read_text())["members"]
    assert known == {"c": {"instance": OURS, "number": 7}, MEMBER: {"instance": OURS, "number": 3}}


def test_a_late_call_after_a_removal_writes_nothing(host: Path) -> None:
    with pytest.raises(SystemExit, match="not_a_member"):
        turn(claim(5))
    assert [path.name for path in host.rglob("*") if path.is_file()] == ["lock"]


def test_a_read_and_a_dry_run_are_not_judged_and_write_nothing(host: Path) -> None:
    (host / "etc/gpuaas-slurm").mkdir()
    (host / "etc/gpuaas-slurm/owner.json").write_text(json.dumps({"instance": OTHER}))
    before = sorted(host.rglob("*"))
    assert turn(claim(1), changes=False) is False
    assert turn(claim(1), check_mode=True) is False
    assert sorted(host.rglob("*")) == before


def test_taking_away_finds_nothing_on_a_host_of_another_instance(host: Path) -> None:
    (host / "etc/gpuaas-slurm").mkdir()
    (host / "etc/gpuaas-slurm/owner.json").write_text(json.dumps({"instance": OTHER}))
    assert turn(claim(1), begin=False, absent_ok=True) is False
    assert host_claim.read_mark() == OTHER


def test_taking_away_obeys_the_number_too(host: Path) -> None:
    turn(claim(5, first=True))
    with pytest.raises(SystemExit, match="fenced"):
        turn(claim(4), begin=False, absent_ok=True)


@pytest.mark.parametrize("who", [standalone, claim(None)])
def test_a_call_without_a_number_leaves_no_mark(host: Path, who: Claim) -> None:
    turn(who)
    assert not (host / "etc/gpuaas-slurm").exists() and not (host / "state/ledger.json").exists()


def test_the_mark_goes_with_its_directory_unless_that_holds_something_else(host: Path) -> None:
    host_claim.write_mark(OURS)
    host_claim.remove_mark()
    assert not (host / "etc/gpuaas-slurm").exists()
    host_claim.write_mark(OURS)
    (host / "etc/gpuaas-slurm/gpuaas.toml").touch()
    host_claim.remove_mark()
    assert [path.name for path in (host / "etc/gpuaas-slurm").iterdir()] == ["gpuaas.toml"]


# -- daemons of somebody else --------------------------------------------------------------------------------


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


# -- no module can forget it ---------------------------------------------------------------------------------

READERS = {"host_probe", "slurm_snapshot"}
MODULES = ROOT / "plugins" / "modules"


def modules() -> list[str]:
    return sorted(path.stem for path in MODULES.glob("*.py"))


@pytest.mark.parametrize("name", modules())
def test_every_module_but_the_readers_is_fenced(name: str) -> None:
    source = (MODULES / f"{name}.py").read_text()
    fenced = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    takes_turn = any(isinstance(call.func, ast.Name) and call.func.id == "host_lock" for call in fenced)
    assert takes_turn is (name not in READERS)
    if takes_turn or name == "host_probe":
        assert "**CLAIM_ARGUMENT" in source and re.search(r"^  claim: \{type: dict", source, re.MULTILINE)


def action(name: str) -> tuple[Any, dict[str, Any]]:
    """An action plugin's class as Ansible finds it, and what its file defines."""
    action_loader.add_directory(str(ROOT / "plugins" / "action"))
    found = action_loader.get(name, class_only=True)
    return found, vars(sys.modules[found.__module__])


@pytest.mark.parametrize("name", [*sorted(set(modules()) - READERS), "host_probe"])
def test_every_fenced_module_gets_its_claim_from_its_action_plugin(name: str) -> None:
    """By a link to claimed.py, or by a subclass of it."""
    files = [getattr(sys.modules[one.__module__], "__file__", None) for one in action(name)[0].__mro__]
    assert ROOT / "plugins" / "action" / "claimed.py" in [Path(one).resolve() for one in files if one]


def test_the_claim_comes_from_the_inventory_and_the_command_line() -> None:
    plugin = action("claimed")[1]
    claim_of = plugin["claim_of"]
    told = {"gpuaas_app_instance_id": OURS, "gpuaas_member_id": MEMBER, "gpuaas_fence": 4, "gpuaas_first_play": True}
    assert claim_of(told) == {"instance": OURS, "member": MEMBER, "number": 4, "first": True}
    assert claim_of({"gpuaas_unfenced": "true"}) == {"unfenced": True}
    assert claim_of({"gpuaas_unfenced": "no", "inventory_hostname": "x"}) == {"unfenced": False}
    everything = claim_of(dict.fromkeys(plugin["VARIABLES"], 1))
    assert set(everything) == set(host_claim.CLAIM_ARGUMENT["claim"]["options"])


def test_of_two_machines_with_one_name_the_first_of_the_run_keeps_it(tmp_path: Path) -> None:
    first_in_run = action("host_probe")[1]["first_in_run"]

    def other(machine: str | None, instance: str = OURS) -> str | None:
        known = {"gpuaas_allocation_id": machine, "gpuaas_app_instance_id": instance}
        found: str | None = first_in_run("gs-2", known, tmp_path)
        return found

    assert other("a") is None
    assert other("a") is None, "controller and worker on one machine"
    assert other("b") == "a"
    assert other("b", OTHER) is None, "another cluster may have such a node"
    assert other(None) is None, "a role by itself"


# -- every play that calls such a module is numbered ---------------------------------------------------------

# Run by a person through `gpuaas-slurm exec`, which claims every member, or on a host whose instance is gone.
BY_HAND = {"recover", "clean_host", "restore_backup"}
ON_CONTROLLER = {"slurm_nodes", "slurm_partitions"}


def called(document: object) -> set[str]:
    """Modules that a playbook's or a role's tasks call, with those of what they include."""
    if isinstance(document, list):
        return set().union(*(called(one) for one in document))
    if not isinstance(document, dict):
        return set()
    found = {key for key in document if (MODULES / f"{key}.py").exists()}
    for key, value in document.items():
        if key.rpartition(".")[2] in ("include_role", "import_role"):
            file = ROOT / "roles" / value["name"] / "tasks" / f"{value.get('tasks_from', 'main')}.yml"
            found |= called(yaml.safe_load(file.read_text()))
        elif key == "roles":
            found |= called([{"include_role": {"name": one}} for one in value])
        elif key.rpartition(".")[2] in ("include_tasks", "import_tasks", "import_playbook"):
            found |= called(yaml.safe_load((ROOT / "playbooks" / value).read_text()))
        elif isinstance(value, list):
            found |= called(value)
    return found


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "playbooks").glob("*.yml")))
def test_every_play_that_calls_a_fenced_module_is_numbered(name: str) -> None:
    modules_called = called(yaml.safe_load((ROOT / "playbooks" / f"{name}.yml").read_text())) - READERS
    if name in BY_HAND:
        return
    assert bool(modules_called) is (name in CHANGES_ALL | CHANGES_WORKERS | THROUGH_CONTROLLER)
    assert name in CHANGES_ALL | THROUGH_CONTROLLER or not modules_called & ON_CONTROLLER, (
        "the controller has no number"
    )
