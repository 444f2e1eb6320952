"""Packages that we brought go from a host, unless something else on it needs them."""

import pytest
from ansible.module_utils.host.restore import packages as restore_packages
from ansible.module_utils.host.restore.packages import purge_packages


@pytest.fixture
def apt(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """apt and dpkg with packages a (brought, but apt would keep it), b (its dependency), c (brought, but needed by
    others by now)."""
    ran: list[list[str]] = []

    def run(command: list[str], _doing: str) -> str:
        ran.append(command)
        if "--simulate" not in command:
            return ""
        if "autoremove" in command:
            return "Purg b [1]\nPurg orphan [1]\n"
        goes = [name for name in command if name in present]
        return "".join(f"Purg {name} [1]\n" for name in [*goes, *(["theirs"] if "c" in goes else [])])

    monkeypatch.setattr(restore_packages, "run_apt", run)
    monkeypatch.setattr(restore_packages, "restore_policy", lambda: None)
    monkeypatch.setattr(restore_packages, "finish_interrupted_install", lambda: None)
    present = {"a": "installed", "b": "installed", "c": "installed", "d": "config-files"}
    monkeypatch.setattr(
        restore_packages, "statuses", lambda names: {name: present[name] for name in names if name in present}
    )
    monkeypatch.setattr(restore_packages, "query_packages", lambda *_: [])
    return ran


def test_packages_we_brought_go_unless_something_needs_them(apt: list[list[str]]) -> None:
    assert purge_packages(["a", "b", "c", "d", "never-came"]) == ["package a", "package b", "package d"]
    assert apt[-1][-4:] == ["purge", "a", "b", "d"]


def dpkg(monkeypatch: pytest.MonkeyPatch, *rows: tuple[str, str, str]) -> None:
    """Installed packages: name, what each provides, what each depends on."""
    installed = [[name, "installed", provides, "", depends] for name, provides, depends in rows]
    monkeypatch.setattr(restore_packages, "query_packages", lambda *_: installed)


def test_apt_is_not_asked_about_what_others_cannot_do_without(
    monkeypatch: pytest.MonkeyPatch, apt: list[list[str]]
) -> None:
    dpkg(monkeypatch, ("theirs", "", "c (>= 1)"), ("c", "", ""), ("a", "", ""))
    assert purge_packages(["a", "b", "c"]) == ["package a", "package b"]
    assert not [command for command in apt if command[-3:] == ["purge", "b", "c"]]
    assert [command[-3:] for command in apt if "purge" in command][1:-1] == [["purge", "a", "b"]]


@pytest.mark.parametrize(
    ("rows", "needed"),
    [
        ((("theirs", "", "a:any (>= 1), libc6"), ("a", "", "b (= 2)"), ("b", "", "")), {"a", "b"}),
        ((("theirs", "", "a | b"), ("a", "", ""), ("b", "", "")), set()),
        ((("theirs", "", "a"), ("other", "a (= 3)", ""), ("a", "", "")), set()),
        ((("theirs", "", "virtual"), ("a", "virtual", "")), set()),
        ((("a", "", "b"), ("b", "", "")), set()),
    ],
    ids=["a chain", "an alternative", "another provides it", "a virtual package", "only ours depend on it"],
)
def test_a_package_is_needed_for_certain_only_without_an_alternative(
    monkeypatch: pytest.MonkeyPatch, rows: tuple[tuple[str, str, str], ...], needed: set[str]
) -> None:
    dpkg(monkeypatch, *rows)
    assert restore_packages._certainly_needed({"a", "b"}) == needed


def test_packages_that_no_other_package_needs_go_with_one_simulation(apt: list[list[str]]) -> None:
    assert purge_packages(["a", "b", "d"]) == ["package a", "package b", "package d"]
    assert len(apt) == 2 and "--simulate" in apt[0]


def test_nothing_of_ours_means_that_apt_is_not_even_asked(apt: list[list[str]]) -> None:
    assert purge_packages(["never-came"]) == []
    assert apt == []
