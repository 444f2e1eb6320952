"""Which version one may move to; what cannot be is refused before anything is touched."""

import pytest
from ansible.module_utils.host.errors import AdapterError
from ansible.module_utils.slurm import versions as slurm_versions
from ansible.module_utils.slurm.versions import choose

WINDOW = {
    "22.05": ["22.05"],
    "23.02": ["22.05", "23.02"],
    "23.11": ["22.05", "23.02", "23.11"],
    "24.11": ["23.02", "23.11", "24.05", "24.11"],
}
OFFERS = ["24.11.5-4+deb13u1", "24.11.5-4"]


@pytest.fixture(autouse=True)
def plain_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """dpkg is on hosts; for these versions the plain order of text is the same."""
    monkeypatch.setattr(slurm_versions, "compare", lambda one, other: (one > other) - (one < other))


@pytest.mark.parametrize(
    ("asked", "now", "chosen"),
    [
        ("", "24.11.5-4", "24.11.5-4+deb13u1"),
        ("", "24.11.5-4+deb13u1", "24.11.5-4+deb13u1"),
        ("24.11", "24.11.5-4", "24.11.5-4+deb13u1"),
        ("24.11.5", "24.11.5-4", "24.11.5-4+deb13u1"),
        ("24.11.5-4+deb13u1", "24.11.5-4", "24.11.5-4+deb13u1"),
        ("24.11.5-4", "24.11.5-4", "24.11.5-4"),
        ("24.11", "23.11.4-1", "24.11.5-4+deb13u1"),
    ],
)
def test_the_newest_that_fits_what_was_asked_is_chosen(asked: str, now: str, chosen: str) -> None:
    assert choose(asked, now, OFFERS, WINDOW) == chosen


def test_nothing_is_to_do_where_nothing_newer_is_offered() -> None:
    assert choose("", "22.05.8-4+deb12u3", ["22.05.8-4+deb12u3"], WINDOW) == "22.05.8-4+deb12u3"
    assert choose("", "22.05.8-4+deb12u3", [], WINDOW) == "22.05.8-4+deb12u3"
    assert choose("", "22.05.8-4", OFFERS, WINDOW) == "22.05.8-4"


@pytest.mark.parametrize(
    ("asked", "now", "code"),
    [
        ("24.11", "22.05.8-4", "version_outside_window"),
        ("22.05", "24.11.5-4", "version_outside_window"),
        ("24.11.5-4", "22.05.8-4", "version_outside_window"),
        ("24.11.9", "24.11.5-4", "version_not_offered"),
        ("25.05", "24.11.5-4", "version_outside_window"),
        ("24.11.5-4", "24.11.5-4+deb13u1", "version_is_older"),
        ("24.11; rm -rf /", "24.11.5-4", "version_invalid"),
        ("-o Dpkg=1", "24.11.5-4", "version_invalid"),
    ],
)
def test_an_impossible_version_is_refused_and_the_error_states_no_change(asked: str, now: str, code: str) -> None:
    with pytest.raises(AdapterError) as caught:
        choose(asked, now, OFFERS, WINDOW)
    assert caught.value.code == code
    assert caught.value.message.startswith("Nothing was changed: ")
