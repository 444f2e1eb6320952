"""The table of error codes (app/error_codes.yaml), the page that shows it, and the places that raise codes.

`python -m tests.error_codes` writes the table into docs/usage/troubleshooting.md.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "usage" / "troubleshooting.md"
HEADING, TITLES, RULE = "## Error codes\n\n", "| code | class | what it means, and what to do |", "| --- | --- | --- |"
# Calls whose first argument is a code, and calls that have it elsewhere.
CODE_FIRST = (
    "AdapterError",
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


@dataclass(frozen=True)
class Raised:
    """One place that raises a code. `pattern`: the code is put together there."""

    code: str
    where: str
    klass: str | None = None
    pattern: bool = False


def table(root: Path = ROOT) -> dict[str, list[str]]:
    """The classes of each code."""
    return {code: row["class"].split(", ") for row in _rows(root) for code in row["codes"]}


def _rows(root: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = yaml.safe_load((root / "app" / "error_codes.yaml").read_text())
    return rows


def rendered(root: Path = ROOT) -> str:
    lines = [
        f"| {', '.join(f'`{code}`' for code in row['codes'])} | {row['class']} | {row['text']} |" for row in _rows(root)
    ]
    return "\n".join([TITLES, RULE, *lines]) + "\n"


def shown(page: str) -> str:
    """The table of the page, as it stands there."""
    start = page.index(HEADING) + len(HEADING)
    return page[start : page.index("\n\n", start) + 1]


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
            match code:
                case ast.Constant(value=str() as text) if CODE.fullmatch(text):
                    yield Raised(text, where, klass)
                case ast.Name(id=name) | ast.Attribute(attr=name) if name in constants:
                    yield Raised(constants[name], where, klass)
                case ast.JoinedStr() if " " not in _pattern(code):
                    yield Raised(_pattern(code), where, klass, pattern=True)
                case ast.BoolOp(values=[*_, ast.Constant(value=str() as text)]):
                    yield Raised(text, where, klass)
                case (
                    ast.IfExp(body=ast.Constant(value=str() as text))
                    | ast.IfExp(orelse=ast.Constant(value=str() as text))
                ):
                    yield Raised(text, where, klass)


def _codes(node: ast.AST) -> Iterator[tuple[ast.expr, str | None]]:
    """Expressions that are a code, with the class that stands beside it."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args) if name in CODE_FIRST and args:
            klass = args[2] if len(args) > 2 else None
            yield _unwrapped(args[0]), _class(klass)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args) if name in CODE_AT:
            place = CODE_AT[name]
            if place is not None and len(args) > place:
                yield _unwrapped(args[place]), None
        case ast.Dict(keys=keys, values=values):
            for key, value in zip(keys, values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "code":
                    yield _unwrapped(value), None
        # A refusal or a problem is a code and a sentence.
        case ast.Return(value=ast.Tuple(elts=[code, ast.Constant(value=str()) | ast.JoinedStr()])):
            if not isinstance(code, ast.Constant) or CODE.fullmatch(str(code.value)):
                yield code, None


def _unwrapped(code: ast.expr) -> ast.expr:
    """`str(known.get("code") or "worker_failed")` is the last code of it."""
    match code:
        case ast.Call(func=ast.Name(id="str"), args=[inner]):
            return inner
    return code


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
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str() as text)):
                yield name, text
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                for one, value in zip(names, values, strict=False):
                    if isinstance(one, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                        yield one.id, value.value


def _pattern(code: ast.JoinedStr) -> str:
    parts = [str(part.value) if isinstance(part, ast.Constant) else "[a-z]+" for part in code.values]
    return "".join(parts)


def main() -> None:
    page = PAGE.read_text()
    PAGE.write_text(page.replace(shown(page), rendered()))


if __name__ == "__main__":
    main()
