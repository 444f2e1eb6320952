"""Fields of notes are read and written through their records: no code has their names as keys of an object."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.model.instance_notes import StatusDetail
from runner.model.member_notes import MemberNotes
from runner.slurm.notes import ControllerNotes, InstanceNotes, WorkerNotes

ROOT = Path(__file__).parents[2]
FIELDS = {
    *(name for kind in (MemberNotes, ControllerNotes, WorkerNotes, InstanceNotes) for name in kind.model_fields),
    *(name for kind in (ControllerNotes, StatusDetail) for name in kind.FORMER),
} - {"correlation_id", "trace_id"}  # records of the platform and results have fields of these names too
RECORDS = (
    "runner/model/records.py",
    "runner/model/member_notes.py",
    "runner/model/instance_notes.py",
    "runner/slurm/notes.py",
    "runner/slurm/lifecycle_notes.py",
)
# Other objects with a field of the same name: a file, or one function of it.
OTHERS = {
    "runner/cli/access.py": "the access bundle",
    "runner/cli/smoke/looks.py::access": "the access bundle",
    "runner/slurm/access_bundle.py": "the access bundle",
    "runner/cli/configure.py::upgrade": "parameters of an operation",
    "runner/cli/member_operations.py::deploy": "the desired configuration",
    "runner/cli/explain.py::account": "the output of the command",
    "runner/cli/explain.py::text": "the output of the command",
    "runner/cli/request_state.py": "rows of a table",
    "runner/cli/view.py": "rows of a table",
    "runner/slurm/decide/events.py": "data of an event",
    "runner/model/world.py::_claimed": "an operation's own fields",
    "runner/report/claims.py::claim_operation": "an operation's own fields",
    "runner/report/claims.py::release": "an operation's own fields",
    "runner/report/claims.py::_renew_operation": "an operation's own fields",
    "runner/slurm/causes.py": "a code of the same name",
    "runner/slurm/decide/instance/upgrade.py::_terms": "parameters of an operation",
    "runner/slurm/decide/instance/upgrade.py::_judge": "the result of an operation",
    "runner/slurm/decide/workers/results.py::member_result": "the result of an operation",
    "runner/slurm/member_reports.py": "what a host reports",
    "runner/slurm/reports.py": "what a host reports",
    "runner/cli/shared.py": "limits of a policy, and the output of the command",
    "runner/cli/shared_records.py": "rows of a table, and what is reported of an attachment",
    "runner/slurm/attachment_bundle.py": "an access bundle",
    "runner/slurm/decide/attachments.py::_changes": "what is reported of an attachment",
}


def keys(node: ast.AST) -> list[object]:
    """The texts by which this expression names fields of an object."""
    match node:
        case ast.Dict(keys=found):
            return [one.value for one in found if isinstance(one, ast.Constant)]
        case ast.Subscript(slice=ast.Constant(value=found)):
            return [found]
        case ast.Call(func=ast.Attribute(attr="get" | "pop" | "setdefault"), args=[ast.Constant(value=found), *_]):
            return [found]
    return []


def fields_in(node: ast.AST, place: str) -> Iterator[tuple[str, str]]:
    """Each field of a note that is a key here, with the file and function of it."""
    for child in ast.iter_child_nodes(node):
        inner = f"{place.partition('::')[0]}::{child.name}" if isinstance(child, ast.FunctionDef) else place
        yield from ((inner, str(one)) for one in keys(child) if one in FIELDS)
        yield from fields_in(child, inner)


def found_in(source: str, path: str) -> list[tuple[str, str]]:
    return [
        (place, name)
        for place, name in fields_in(ast.parse(source), path)
        if path not in (*RECORDS, *OTHERS) and place not in OTHERS
    ]


def sources() -> dict[str, str]:
    found = (path for path in sorted((ROOT / "runner").rglob("*.py")) if not path.is_symlink())
    return {str(path.relative_to(ROOT)): path.read_text() for path in found}


def test_no_code_outside_the_records_names_a_field_of_a_note_as_a_key() -> None:
    assert [one for path, source in sources().items() for one in found_in(source, path)] == []


def test_every_exception_is_needed() -> None:
    used = {place for path, source in sources().items() for place, _ in fields_in(ast.parse(source), path)}
    assert set(OTHERS) - used - {place.partition("::")[0] for place in used} == set()


@pytest.mark.parametrize(
    "line",
    [
        'change = {"last_adapter_error": None}',
        'phase = member.adapter_detail["phase"]',
        'reasons = instance.status_detail.get("reasons", [])',
        'def write(seen): seen["jobs_naming_node"] = []',
        'old = detail.pop("wish")',
    ],
)
def test_a_field_that_is_named_as_a_key_is_found(line: str) -> None:
    assert len(found_in(line, "runner/slurm/decide/status.py")) == 1
