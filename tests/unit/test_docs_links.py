"""Links, headings, files, and functions named as `path/file.py::name`, exist on every page."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.repository import ROOT, present_files

# Present and former folders of the tree: a path that begins with one of them must exist.
FOLDERS = (
    "action_plugins|app|deploy|docs|inventory_plugins|library|lookup_plugins|module_utils|molecule|playbooks"
    "|plugins|roles|runner|sandbox|tests|vars_plugins"
)
NAMED = re.compile(rf"`((?:{FOLDERS})/[^`\s]*)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")


@cache
def anchors(page: Path) -> frozenset[str]:
    """Anchors of the page's headings, in the form of GitHub and GitLab."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    titles = re.findall(r"^#+ (.+)$", text, re.M)
    return frozenset(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles)


@cache
def names_in(module: Path) -> frozenset[str]:
    """Functions, classes with their methods as Class.method, and constants of a module."""
    found: set[str] = set()
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {one.id for one in targets if isinstance(one, ast.Name)}
    return frozenset(found)


def broken_link(page: Path, target: str) -> bool:
    if re.match(r"[a-z]+://", target):
        return False
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    return not file.exists() or bool(anchor and anchor not in anchors(file))


def broken_path(named: str) -> bool:
    path, _, name = named.partition("::")
    if "*" in path or "<" in path:
        return not any(ROOT.glob(re.sub(r"<[^>]*>", "*", path)))
    file = ROOT / path
    return not file.exists() or bool(name and name not in names_in(file))


@pytest.mark.parametrize("page", present_files("*.md"))
def test_links_and_paths_of_a_page_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    assert [target for target in LINK.findall(text) if broken_link(ROOT / page, target)] == []
    assert [named for named in NAMED.findall(text) if broken_path(named)] == []


def test_a_wrong_link_heading_path_or_function_is_found() -> None:
    page = ROOT / "docs" / "concepts" / "README.md"
    assert broken_link(page, "no-such.md") and broken_link(page, "README.md#no-such-heading")
    assert broken_path("runner/no_such.py") and broken_path("runner/translate.py::no_such")
    assert not broken_path("runner/translate.py::parse_event") and not broken_path("docs/decisions/*")
    assert {"docs/concepts/README.md", "README.md"} <= set(present_files("*.md"))


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen, todo = set[Path](), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        targets = [target.partition("#")[0] for target in LINK.findall(page.read_text())]
        todo += [(page.parent / one).resolve() for one in targets if one and "://" not in one]
    listed = (ROOT / "docs").rglob("*.md")
    assert [str(one.relative_to(ROOT)) for one in listed if one not in seen] == []


def test_the_index_of_decisions_has_each_number_once_with_its_title() -> None:
    folder = ROOT / "docs" / "decisions"
    rows = re.findall(r"^\| \[(\d{4})\]\((.+)\) \| (.+) \|$", (folder / "README.md").read_text(), re.M)
    titles = {path.name: path.read_text().splitlines()[0] for path in sorted(folder.glob("[0-9]*.md"))}
    assert [(name, f"# {number}: {title}") for number, name, title in rows] == list(titles.items())
    assert all(name.startswith(f"{number}-") for number, name, _ in rows)
    assert len({number for number, _, _ in rows}) == len(rows)
