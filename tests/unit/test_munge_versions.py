"""Which munge shows its key to the users of its host: compared by Debian's rules, and unknown counts as old."""

import pytest
import yaml

from plugins.module_utils.host import packages
from plugins.module_utils.host.errors import AdapterError
from plugins.modules import munge_rotate
from tests.platform_process import ROOT


@pytest.mark.parametrize(
    ("version", "minimum", "below"),
    [
        ("0.5.15-2", "0.5.15-2+deb12u1", True),
        ("0.5.15-2+deb12u1", "0.5.15-2+deb12u1", False),
        ("0.5.16-1", "0.5.16-1.1~deb13u1", True),
        ("0.5.16-1.1~deb13u1", "0.5.16-1.1~deb13u1", False),
        ("0.5.18-1", "0.5.16-1.1~deb13u1", False),
        (None, "0.5.16-1.1~deb13u1", True),
        ("0.5.18-1", "", True),
        ("not a version", "0.5.16-1.1~deb13u1", True),
    ],
)
def test_a_version_is_compared_as_debian_does_and_unknown_is_old(
    version: str | None, minimum: str, below: bool
) -> None:
    assert packages.is_below(version, minimum) is below


def test_a_package_below_its_minimum_is_refused_or_only_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "installed_versions", lambda _: {"munge": "0.5.15-2"})
    one = {"package": "munge", "version": "0.5.15-2+deb12u1", "code": "munge_vulnerable", "message": "Upgrade."}
    assert packages.check_minimums([{**one, "refuse": False}]) == ["munge"]
    assert packages.check_minimums([{**one, "version": "0.5.15-1", "refuse": True}]) == []
    with pytest.raises(AdapterError, match=r"munge is 0\.5\.15-2, needed is 0\.5\.15-2\+deb12u1") as error:
        packages.check_minimums([{**one, "refuse": True}])
    assert error.value.code == "munge_vulnerable"


@pytest.mark.parametrize(
    ("system", "installed", "vulnerable"),
    [
        ({"ID": "debian", "VERSION_ID": "12"}, "0.5.15-2", True),
        ({"ID": "debian", "VERSION_ID": "12"}, "0.5.15-2+deb12u1", False),
        ({"ID": "debian", "VERSION_ID": "13"}, "0.5.16-1", True),
        ({"ID": "debian", "VERSION_ID": "13"}, "0.5.16-1.1~deb13u1", False),
        ({"ID": "debian", "VERSION_ID": "14"}, "0.5.18-1", True),
        ({}, None, True),
    ],
)
def test_a_munge_below_the_fix_of_its_system_or_unknown_is_reported(
    monkeypatch: pytest.MonkeyPatch, system: dict[str, str], installed: str | None, vulnerable: bool
) -> None:
    fixed = yaml.safe_load((ROOT / "roles" / "munge" / "vars" / "main.yml").read_text())["munge_fixed"]
    monkeypatch.setattr(munge_rotate, "os_release", lambda: system)
    monkeypatch.setattr(munge_rotate, "installed_versions", lambda _: {"munge": installed} if installed else {})
    seen = munge_rotate.munge_age(fixed)
    assert seen == {"munge_version": installed or "unknown", "munge_vulnerable": vulnerable}
