"""The recipe of a host image, tested without building one."""

import dataclasses
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest
import yaml

from sandbox.fleet import images
from sandbox.fleet.errors import CannotRunError
from sandbox.fleet.runtime import Podman

ROLES = Path(__file__).parents[2] / "roles"

MACHINE = """\
http://mirror.example/debian/ bookworm Debian main
http://mirror.example/debian/ bookworm Debian contrib
http://mirror.example/debian/ bookworm-updates Debian main
http://mirror.example/debian-security/ bookworm-security Debian main
https://vendor.example/apt bookworm Vendor main
"""


def test_a_suite_uses_the_mirrors_that_this_machine_uses() -> None:
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
def test_without_a_mirror_that_hosts_can_reach_mmdebstrap_chooses_one(targets: str) -> None:
    assert images.sources(targets, "bookworm", "bookworm") == []


def test_a_package_list_has_comments_and_packages_for_one_suite_alone() -> None:
    listing = "# why\n\nmunge\nslurmd  # the node daemon\nlibpmix2 [bookworm]\n"
    assert images.packages(listing, "bookworm") == ("munge", "slurmd", "libpmix2")
    assert images.packages(listing, "trixie") == ("munge", "slurmd")


@pytest.mark.parametrize(("suite", "system"), [("bookworm", "Debian-12"), ("trixie", "Debian-13")])
def test_a_warm_host_has_every_package_that_the_roles_install(suite: str, system: str) -> None:
    files = [yaml.safe_load(path.read_text()) for path in ROLES.glob(f"*/vars/{system}.yml")]
    wanted = {package for one in files for name in one if name.endswith("_packages") for package in one[name]}
    slurmd = yaml.safe_load((ROLES / "slurmd" / "vars" / "main.yml").read_text())["slurmd_systems"][system]["packages"]
    assert wanted and slurmd
    assert wanted | set(slurmd) <= set(images.recipe(suite, warm=True).extra)


def test_equal_recipes_share_an_image_and_different_ones_do_not() -> None:
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


def test_a_missing_builder_is_named_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(images, "_KEYRING", Path("/nonexistent"))
    with pytest.raises(CannotRunError, match=r"mmdebstrap and debian-archive-keyring.*apt-get install"):
        images._check_builder()


class Shelf:
    """A stand-in for podman's image store."""

    def __init__(self) -> None:
        self.images: list[str] = []

    def image_exists(self, reference: str) -> bool:
        return reference in self.images

    def own_images(self) -> list[str]:
        return list(self.images)

    def try_run(self, *args: str) -> None:
        self.images.remove(args[-1])


def test_two_commands_that_need_the_same_image_build_it_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    shelf, both_ready = Shelf(), threading.Barrier(2)
    builds: list[images.Recipe] = []
    wanted = images.Recipe("bookworm", False, ("systemd",), (), (), (), "")
    outdated = f"{wanted.repository}:bookworm-000000000000"
    other_suite = f"{wanted.repository}:trixie-000000000000"
    shelf.images += [outdated, other_suite]

    def build(_: object, recipe: images.Recipe) -> None:
        builds.append(recipe)
        shelf.images.append(recipe.reference)

    monkeypatch.setattr(images, "_build", build)
    # Both threads find the image missing before either builds it.
    monkeypatch.setattr(images, "_check_builder", lambda: both_ready.wait(5))
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: images.ensure_image(cast(Podman, shelf), wanted), range(2)))
    assert answers == [wanted.reference] * 2
    assert builds == [wanted]
    assert shelf.images == [other_suite, wanted.reference]
