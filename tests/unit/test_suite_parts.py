"""The parts of the test suite: no file is left out, and a name chooses the right ones."""

import hashlib
import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from sandbox.fleet.images import SUITES
from tests.contract.scenarios import SCENARIOS as KILLED_SCENARIOS
from tests.suite import other_python, parts
from tests.suite.parts import KILL_POINTS, TIERS, UnknownPartError, all_parts, choose, forgotten_files
from tests.suite.role_tests import fleet_name
from tests.suite.selection import suite_of


def test_every_test_file_of_the_project_belongs_to_a_part() -> None:
    assert forgotten_files() == []


def test_a_test_file_that_no_part_runs_is_named(tmp_path: Path) -> None:
    (tmp_path / "tests" / "e2e").mkdir(parents=True)
    (tmp_path / "tests" / "e2e" / "test_new.py").touch()
    assert forgotten_files(tmp_path / "tests") == ["tests/e2e/test_new.py"]


def test_each_tier_holds_the_smaller_ones() -> None:
    names = [{part.name for part in choose([tier])} for tier in TIERS]
    assert names[0] < names[1] < names[2]


def test_full_runs_every_file_with_debian_parameters_on_both() -> None:
    for file in sorted((parts.ROOT / "tests" / "e2e").glob("test_*.py")):
        if "params=SUITES" not in file.read_text():
            continue
        name = f"tests/e2e/{file.name}"
        narrowed = {part.argv[-1] for part in choose(["full"]) if name in part.files and "--suite" in part.argv}
        whole = [part for part in choose(["full"]) if name in part.files and "--suite" not in part.argv]
        assert whole or narrowed == set(SUITES), name


def test_the_manual_of_the_tests_has_every_scenario() -> None:
    tables = (parts.ROOT / "tests" / "README.md").read_text().split("## Tiers")[1].split("## Mutants")[0]
    modules = [name for one in parts.END_TO_END for name in one.modules.split(",")]
    assert [name for name in modules if f"`{name}`" not in tables] == []


def test_kill_points_name_every_scenario_once() -> None:
    listed = [name for group in KILL_POINTS for name in group.split(",")]
    assert sorted(listed) == sorted(scenario.name.replace(" ", "-") for scenario in KILLED_SCENARIOS)


def test_full_runs_the_unit_tests_on_the_python_of_debian_13() -> None:
    listed = {part.name: part for part in choose(["full"])}
    assert listed["python3.13 unit"].images == (other_python.SUITE,) and "image trixie" in listed
    assert "python3.13 unit" not in {part.name for part in choose(["test"])}


def test_the_packed_tree_has_new_files_and_links_and_none_that_git_ignores(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    for name, text in ((".gitignore", ".cache"), ("new.py", "1"), (".cache", "2")):
        (tmp_path / name).write_text(text)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file.py").write_text("3")
    (tmp_path / "link").symlink_to("folder")
    with tarfile.open(fileobj=io.BytesIO(other_python.packed_tree(tmp_path))) as packed:
        assert sorted(packed.getnames()) == [".gitignore", "folder/file.py", "link", "new.py"]


def test_choosing_a_part_adds_only_the_images_it_needs() -> None:
    assert [part.name for part in choose(["e2e bulk bookworm"])] == ["image bookworm:warm", "e2e bulk bookworm"]
    assert {part.kind for part in choose(["unit"])} == {"unit"}


@pytest.mark.parametrize("name", ["no-such-part", "", "tests/e2e/test_bulk.py"])
def test_a_name_that_no_part_has_is_an_error(name: str) -> None:
    with pytest.raises(UnknownPartError):
        choose([name])


def test_a_part_is_found_by_any_pieces_of_its_name() -> None:
    assert [part.name for part in choose(["users bookworm"])][-1] == "e2e access,gpus,users bookworm"


def test_part_names_and_folders_are_unique() -> None:
    listed = all_parts()
    assert len({part.name for part in listed}) == len({part.slug for part in listed}) == len(listed)


@pytest.mark.parametrize(
    ("name", "suite"),
    [
        ("test_x[trixie]", "trixie"),
        ("test_x[trixie-warm-gs-1]", "trixie"),
        ("test_x[gs-1-bookworm]", "bookworm"),
        ("test_x", "bookworm"),
        ("test_trixie_is_new", "bookworm"),
    ],
)
def test_a_test_belongs_to_the_debian_in_its_parameters(name: str, suite: str) -> None:
    assert suite_of(name) == suite


def test_the_fleet_of_the_role_tests_is_named_as_in_molecule() -> None:
    text = (parts.ROOT / "molecule" / "default" / "molecule.yml").read_text()
    assert "roles-{{ (lookup('ansible.builtin.env', 'MOLECULE_PROJECT_DIRECTORY') | hash('sha256'))[:6] }}" in text
    assert fleet_name(Path("/a")) == f"roles-{hashlib.sha256(b'/a').hexdigest()[:6]}"
