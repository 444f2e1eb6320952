"""The names of the platform's API are data: the defaults are the contract file's, a mapping file is read strictly."""

import json
import re
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from runner.cli.contract import changed, described
from runner.model.gaps import Basis
from runner.model.scope import ProjectScope, RuntimeScope
from runner.platform import evidence, wire
from runner.platform.contract import DEFAULT, STATED, Contract, load
from runner.platform.dialect import Dialect
from runner.settings import SettingsError
from tests.runner_process import gpuaas_slurm

ROOT = Path(__file__).resolve().parents[2]
OTHER = ROOT / "tests" / "contract" / "other.toml"
DOCUMENT: dict[str, Any] = yaml.safe_load((ROOT / "contract" / "openapi.yaml").read_text())
SLUG = "some-app"
PROJECT, RUNTIME = ProjectScope(UUID(int=1)), RuntimeScope(UUID(int=2), UUID(int=3))
ID = UUID(int=4)


def paths() -> list[wire.Path]:
    """Every path of the client, lists with their records."""
    found = [wire.TOKEN, wire.RUNTIME_TOKEN, wire.ME, wire.app(SLUG), wire.app_versions(SLUG)]
    for scope in (PROJECT, RUNTIME):
        lists = [wire.members(scope, ID), wire.member_operations(scope, ID), wire.instance_operations(scope, ID)]
        lists += [wire.allocations(scope), *([wire.attachments(scope, ID)] if scope is RUNTIME else [])]
        found += [wire.instances(scope), wire.instance(scope, ID), wire.events(scope, ID), wire.resolutions(scope, ID)]
        found += [wire.entitlements(scope), wire.deliveries(scope, ID), *lists, *(one.item(ID) for one in lists)]
    return found


def shape(path: str) -> str:
    return re.sub(r"\{[a-z_]+\}|[0-9a-f]{8}-[0-9a-f-]{27}", "{}", path.replace(SLUG, "{slug}"))


def test_default_paths_and_the_stated_ones_are_those_of_the_contract_file() -> None:
    sources = {
        (method.upper(), shape(f"/api/v1{path}")): call["x-gpuaas-source"]
        for path, item in DOCUMENT["paths"].items()
        for method, call in item.items()
        if method != "parameters"
    }
    documented = {path for _, path in sources}
    assert {shape(path) for path in paths()} <= documented
    ours = {
        (method, path.call)
        for path in paths()
        for method in ("GET", "POST", "PATCH", "DELETE")
        if sources.get((method, shape(path))) == "stated"
    }
    assert ours == STATED


def test_default_headers_and_queries_are_those_of_the_contract_file() -> None:
    parts = DOCUMENT["components"]
    names = {one["name"] for one in parts["parameters"].values()} | {*parts["headers"], "Retry-After", "Date"}
    assert {*dict(DEFAULT.headers).values(), *dict(DEFAULT.query).values()} <= names


def test_the_default_contract_changes_nothing() -> None:
    dialect = Dialect(DEFAULT)
    for path in paths():
        body = {"status": "x", "items": [{"id": 1}], "next_cursor": None, "error": {"code": 1}}
        assert dialect.url(path) == path and dialect.project_header(path) is None
        assert dialect.outgoing(path, body) is body and dialect.incoming("GET", path, body) is body
    assert dialect.query({"limit": "1", "more": "2"}) == {"limit": "1", "more": "2"}


def test_a_mapping_file_changes_paths_headers_pages_and_errors() -> None:
    dialect = Dialect(load(OTHER))
    members = wire.members(PROJECT, ID)
    assert dialect.url(members.item(UUID(int=9))) == f"/platform/v2/deployments/{ID}/units/{UUID(int=9)}"
    assert dialect.project_header(members) == str(PROJECT.project_id)
    assert dialect.project_header(wire.allocations(PROJECT)) is None
    page = {"data": {"list": [{"role": "worker"}]}, "paging": {"after": "x"}}
    assert dialect.incoming("GET", members, page) == {"items": [{"component_key": "worker"}], "next_cursor": "x"}
    assert dialect.refusal({"error": {"reason": "x", "text": "y"}}) == {"code": "x", "message": "y"}
    assert "X-Idempotency-Key" in dict(dialect.contract.headers).values()


RECORDS = {
    "member": ["status", "component_key", "allocation_id", "adapter_detail", "app_instance_id", "id"],
    "operation": ["operation", "status", "claimed_by", "lease_expires_at", "error", "result", "parameters"],
    "instance": ["status", "health", "status_detail", "app_slug", "app_version", "placement_intent", "config"],
}
VALUES = (
    st.none() | st.integers() | st.text() | st.dictionaries(st.sampled_from(["a", "state", "lease"]), st.integers())
)


@given(st.data())
def test_what_is_sent_and_read_again_is_the_same(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(RECORDS)))
    body = data.draw(st.dictionaries(st.sampled_from(RECORDS[kind]), VALUES))
    before = json.dumps(body)
    path = {
        "member": wire.members(PROJECT, ID).item(ID),
        "operation": wire.member_operations(PROJECT, ID).item(ID),
        "instance": wire.instance(PROJECT, ID),
    }[kind]
    dialect = Dialect(load(OTHER))
    assert dialect.incoming("GET", path, dialect.outgoing(path, body)) == body
    assert json.dumps(body) == before, "what was sent is not changed itself"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("pathes = 1", "unknown entry 'pathes'"),
        ("[paths.project]\nnodes = '/x'", "unknown entry 'paths.project.nodes'"),
        ("[paths.project]\nmembers = '/x/{who}'", "has {who}; it may have {instance_id}, {project_id}"),
        ("[paths.project]\nmembers = '/x'", "lacks {instance_id}"),
        ("[paths.project]\nmembers = 'x y'", "must be a path"),
        ("[paths.project]\nmembers = '/internal/{instance_id}'", "/internal"),
        ("[paths]\nme = '/../me?x=1'", "must be a path"),
        ("[headers]\nproject = 'Authorization'", "set by the runner itself"),
        ("[headers]\nproject = 'X-Request-Id'", "used twice"),
        ("[headers]\nproject = 'X\\nY'", "headers.project"),
        ("[fields.member]\ncolour = 'x'", "a member has"),
        ("[fields.member]\nstatus = 'x'\nid = 'x'", "one name of the platform's"),
        ("[fields.nodes]\nstatus = 'x'", "fields.nodes"),
        ("[page]\nitems = 'a..b'", "page.items"),
        ("[login]\nkind = 'password'", "login.kind"),
        ("base = 'http://elsewhere'", "base"),
        ("base = ", "not TOML"),
    ],
)
def test_a_wrong_entry_is_named(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "contract.toml").write_text(text)
    with pytest.raises(SettingsError) as error:
        load(tmp_path / "contract.toml")
    assert "GPUAAS_CONTRACT" in str(error.value) and problem in str(error.value)


def test_a_contract_cannot_be_changed_and_lists_what_differs() -> None:
    assert {name: here for name, _, here in changed(Contract(etags=False))} == {"etags": "False"}
    assert {name: here for name, _, here in changed(load(OTHER))}["paths.me"] == "/whoami"


def test_the_report_has_each_call_and_field_with_its_basis() -> None:
    calls = {one["operation"]: one for one in described(DOCUMENT)}
    assert len(calls) == sum(len(set(item) - {"parameters"}) for item in DOCUMENT["paths"].values())
    assert calls["listMembers"]["basis"] == "stated" and calls["createMember"]["basis"] == "assumed"
    fields = {(one["where"], one["field"]): one["basis"] for one in calls["listMembers"]["fields"]}
    assert fields["answer", "status"] == Basis.STATED and fields["answer", "allocation_id"] == Basis.ASSUMED
    assert fields["query", "cursor"] == fields["answer", "next_cursor"] == Basis.ASSUMED
    assert fields["answer", "ETag"] == Basis.ASSUMED
    sent = {one["field"]: one["basis"] for one in calls["createMemberOperation"]["fields"] if one["where"] == "request"}
    assert sent["operation"] == Basis.STATED and sent["parameters"] == Basis.ASSUMED


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        ("instance", "getAppInstance"),
        ("member", "listMembers"),
        ("operation", "listMemberOperations"),
        ("allocation", "listAllocations"),
        ("attachment", "listAttachments"),
    ],
)
def test_a_missing_field_is_stated_or_assumed_as_the_contract_file_has_it(kind: str, call: str) -> None:
    calls = {one["operation"]: one for one in described(DOCUMENT)}
    answers = {one["field"]: one["basis"] for one in calls[call]["fields"] if one["where"] == "answer"}
    for name in evidence._USED[kind]:
        assert answers[name] == (Basis.ASSUMED if (kind, name) in evidence._ASSUMED else Basis.STATED), name


def test_the_command_needs_no_platform_and_names_a_wrong_mapping() -> None:
    shown = gpuaas_slurm({"GPUAAS_CONTRACT": str(OTHER)}, "contract", "--json")
    found = json.loads(shown.stdout)
    assert {one["name"]: one["here"] for one in found["changed"]}["headers.idempotency_key"] == "X-Idempotency-Key"
    assert found["names"]["headers.idempotency_key"] == "Idempotency-Key"
    assert "calls are stated" in gpuaas_slurm({}, "contract").stdout
    wrong = gpuaas_slurm({}, "contract", "--mapping", "/nowhere")
    assert wrong.returncode == 2 and "cannot read /nowhere" in wrong.stderr and "Traceback" not in wrong.stderr
