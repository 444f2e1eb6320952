"""What goes into a host image, decided without building one."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from sandbox.fleet import images
from sandbox.fleet.errors import CannotRunError

MACHINE = """\
http://mirror.example/debian/ bookworm Debian main
http://mirror.example/debian/ bookworm Debian contrib
http://mirror.example/debian/ bookworm-updates Debian main
http://mirror.example/debian-security/ bookworm-security Debian main
https://vendor.example/apt bookworm Vendor main
"""


def test_a_suite_takes_its_packages_from_the_mirrors_the_machine_uses_for_its_own() -> None:
    assert images.sources(MACHINE, "bookworm", "trixie") == [
        "deb http://mirror.example/debian/ trixie main",
        "deb http://mirror.example/debian/ trixie-updates main",
        "deb http://mirror.example/debian-security/ trixie-security main",
    ]


@pytest.mark.parametrize(
    "targets",
    [
        "",
        "http://archive.example/ubuntu/ noble Ubuntu main\n",
        "file:/srv/mirror/ bookworm Debian main\n",
        "http://localhost:3142/debian/ bookworm Debian main\n",
        "http://127.0.0.1/debian/ bookworm Debian main\n",
        "garbage\n",
    ],
)
def test_a_machine_without_a_mirror_that_hosts_can_reach_leaves_the_choice_to_mmdebstrap(targets: str) -> None:
    assert images.sources(targets, "bookworm", "bookworm") == []


def test_comments_and_blank_lines_in_a_package_list_are_no_packages() -> None:
    assert images.packages("# why\n\nmunge\nslurmd  # the node daemon\n") == ["munge", "slurmd"]


def test_equal_recipes_share_an_image_and_any_difference_makes_another() -> None:
    plain = images.Recipe("bookworm", False, ("systemd",), (), ("deb m bookworm main",), (), "#!/bin/sh\n")
    others = [
        dataclasses.replace(plain, suite="trixie"),
        dataclasses.replace(plain, warm=True),
        dataclasses.replace(plain, include=("systemd", "sudo")),
        dataclasses.replace(plain, extra=("munge",)),
        dataclasses.replace(plain, sources=("deb n bookworm main",)),
        dataclasses.replace(plain, apt_options=('Acquire::http::Proxy "p"',)),
        dataclasses.replace(plain, customize="#!/bin/sh\ntrue\n"),
    ]
    assert plain.reference == dataclasses.replace(plain).reference
    assert len({recipe.reference for recipe in [plain, *others]}) == len(others) + 1


def test_an_unknown_suite_is_refused_with_the_known_ones() -> None:
    with pytest.raises(CannotRunError, match="bookworm, trixie"):
        images.recipe("jessie", warm=False)


def test_only_a_warm_recipe_has_more_than_a_plain_machine() -> None:
    assert images.recipe("trixie", warm=False).extra == ()
    assert "slurmctld" in images.recipe("trixie", warm=True).extra


def test_a_missing_builder_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(images, "_KEYRING", Path("/nonexistent"))
    with pytest.raises(CannotRunError, match=r"mmdebstrap and debian-archive-keyring.*apt-get install"):
        images._check_builder()
