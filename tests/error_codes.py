"""The table of codes (app/error_codes.yaml), the two pages that show it, and the places that raise codes.

`python -m tests.error_codes` writes the tables into docs/usage/troubleshooting.md and docs/usage/health.md.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from runner.slurm.causes import CAUSES

ROOT = Path(__file__).resolve().parents[1]
# Calls whose first argument is a code, and calls that have it elsewhere. A keyword argument `code` is one anywhere.
CODE_FIRST = (
    "AdapterError",
    "Finding",
    "IntentError",
    "Obstacle",
    "Refusal",
    "SecretsError",
    "_error",
    "_no",
    "_not_taken",
    "_refused",
)
CODE_AT = {"Refuse": 2, "end_all": 1, "fail_json": None}
CLASSES = {"RETRYABLE": "retryable", "DRIFT": "drift", "REPAIRABLE": "repairable", "INTERVENTION": "intervention"}
CODE = re.compile(r"[a-z]+(_[a-z]+)*")
Row = dict[str, Any]


@dataclass(frozen=True)
class Raised:
    """One place that raises a code. `pattern`: the code is put together there."""

    code: str
    where: str
    klass: str | None = None
    pattern: bool = False


@dataclass(frozen=True)
class Page:
    """A page of the docs, with the table of codes under its heading."""

    path: Path
    heading: str
    titles: tuple[str, ...]

    def shown(self) -> str:
        """The table of the page, as it stands there."""
        page = self.path.read_text()
        start = page.index(self._head(), page.index(f"\n{self.heading}\n"))
        return page[start : page.index("\n\n", start) + 1]

    def made(self, rows: Iterator[tuple[str, ...]]) -> str:
        """The table with these cells."""
        return "\n".join([self._head(), *(_line(row) for row in rows)]) + "\n"

    def write(self, table: str) -> None:
        self.path.write_text(self.path.read_text().replace(self.shown(), table))

    def _head(self) -> str:
        return f"{_line(self.titles)}\n{_line(('---',) * len(self.titles))}"


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


ERRORS = Page(
    ROOT / "docs" / "usage" / "troubleshooting.md", "## Error codes", ("code", "class", "what it means, and what to do")
)
HEALTH = Page(
    ROOT / "docs" / "usage" / "health.md", "## Reasons", ("code", "health", "repaired", "meaning, and what to do")
)


def rows(root: Path = ROOT) -> list[Row]:
    found: list[Row] = yaml.safe_load((root / "app" / "error_codes.yaml").read_text())
    return found


def codes(root: Path = ROOT) -> list[str]:
    return [code for row in rows(root) for code in row["codes"]]


def classes(root: Path = ROOT) -> dict[str, list[str]]:
    """The classes of each code that is an error."""
    return {code: row["class"].split(", ") for row in rows(root) if "class" in row for code in row["codes"]}


def reasons(root: Path = ROOT) -> dict[str, tuple[str, str]]:
    """The health and the class of each code that is a reason of health."""
    return {
        code: (row["health"], row["health_class"]) for row in rows(root) if "health" in row for code in row["codes"]
    }


def errors_table() -> str:
    """Rows that follow each other and say the same are one row."""
    cells = [(row["codes"], class_cell(row), row["text"]) for row in rows() if "class" in row]
    return ERRORS.made(
        (", ".join(f"`{code}`" for found, *_ in same for code in found), klass, text)
        for (klass, text), same in groupby(cells, key=lambda cell: cell[1:])
    )


def class_cell(row: Row) -> str:
    """The class of the error, and that of the reason of health where it is another one."""
    klass: str = row["class"]
    other = row.get("health_class")
    is_other = other is not None and other not in klass.split(", ")
    return f"{klass}; as a [reason of health](health.md#reasons): {other}" if is_other else klass


def health_table() -> str:
    """In the order of the program: the controller, the cluster, its workers, records."""
    order = list(CAUSES)
    found = [(code, row) for row in rows() if "health" in row for code in row["codes"]]
    return HEALTH.made(
        (f"`{code}`", row["health"], "yes" if row["health_class"] == "drift" else "no", row["reason"])
        for code, row in sorted(found, key=lambda one: order.index(one[0]))
    )


def raised(root: Path = ROOT) -> list[Raised]:
    """Every place in the program that raises a code, as far as it is written there."""
    sources = [
        path for top in ("runner", "plugins", "inventory_plugins") for path in sorted((root / top).rglob("*.py"))
    ]
    plays = [path for top in ("roles", "playbooks") for path in sorted((root / top).rglob("*.yml"))]
    found = [one for path in sources if not path.is_symlink() for one in _in_python(path, root)]
    return found + [one for path in plays for one in _in_yaml(path, root)]


def _in_yaml(path: Path, root: Path) -> Iterator[Raised]:
    code = None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if match := re.fullmatch(r"\s+code: ([a-z_]+)", line):
            code = Raised(match.group(1), f"{path.relative_to(root)}:{number}")
            yield code


def _in_python(path: Path, root: Path) -> Iterator[Raised]:
    tree = ast.parse(path.read_text())
    constants = dict(_constants(tree))
    for node in ast.walk(tree):
        where = f"{path.relative_to(root)}:{getattr(node, 'lineno', 0)}"
        for code, klass in _codes(node):
            for text, pattern in _texts(code, constants):
                yield Raised(text, where, klass, pattern)


def _texts(code: ast.expr, constants: dict[str, str]) -> Iterator[tuple[str, bool]]:
    """The codes that an expression can be, and whether each is a pattern: both branches of a condition count."""
    match code:
        case ast.Constant(value=str() as text) if CODE.fullmatch(text):
            yield text, False
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in constants:
            yield constants[name], False
        case ast.JoinedStr() if " " not in _pattern(code):
            yield _pattern(code), True
        case ast.BoolOp(values=parts):
            for part in parts:
                yield from _texts(part, constants)
        case ast.IfExp(body=body, orelse=orelse):
            yield from _texts(body, constants)
            yield from _texts(orelse, constants)
        case ast.Call(func=ast.Name(id="str"), args=[inner]):
            yield from _texts(inner, constants)


def _codes(node: ast.AST) -> Iterator[tuple[ast.expr, str | None]]:
    """Expressions that are a code, with the class that stands beside it."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args) if name in CODE_FIRST and args:
            yield args[0], _class(args[2] if len(args) > 2 else None)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args) if name in CODE_AT:
            place = CODE_AT[name]
            if place is not None and len(args) > place:
                yield args[place], None
        # `code=` in a call, and `error_code=` of a log line.
        case ast.keyword(arg="code" | "error_code", value=value):
            yield value, None
        # `code: str = "..."` in a class or in a function.
        case ast.AnnAssign(target=ast.Name(id="code"), value=ast.Constant() as value):
            yield value, None
        case ast.arguments():
            yield from ((value, None) for value in _defaults(node))
        case ast.Dict(keys=keys, values=values):
            for key, value in zip(keys, values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "code":
                    yield value, None
        # A refusal or a problem is a code and a sentence.
        case (
            ast.Return(value=ast.Tuple(elts=[code, ast.Constant(value=str()) | ast.JoinedStr()]))
            | ast.Yield(value=ast.Tuple(elts=[code, ast.Constant(value=str()) | ast.JoinedStr()]))
        ):
            yield code, None


def _defaults(node: ast.arguments) -> Iterator[ast.expr]:
    positional = [*node.posonlyargs, *node.args]
    pairs = [*zip(reversed(positional), reversed(node.defaults), strict=False)]
    pairs += [(name, value) for name, value in zip(node.kwonlyargs, node.kw_defaults, strict=True) if value]
    yield from (value for name, value in pairs if name.arg == "code")


def _class(klass: ast.expr | None) -> str | None:
    match klass:
        case ast.Constant(value=str() as text):
            return text
        case ast.Name(id=name):
            return CLASSES.get(name)
    return None


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str() as text))
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str() as text))
            ):
                yield name, text
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                for one, value in zip(names, values, strict=False):
                    if isinstance(one, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                        yield one.id, value.value


def _pattern(code: ast.JoinedStr) -> str:
    parts = [str(part.value) if isinstance(part, ast.Constant) else "[a-z]+" for part in code.values]
    return "".join(parts)


def main() -> None:
    ERRORS.write(errors_table())
    HEALTH.write(health_table())


if __name__ == "__main__":
    main()
