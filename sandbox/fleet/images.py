"""Images of plain Debian machines, built from this machine's own mirror and cached by a digest of their recipe.

`python3 -m sandbox.fleet.images SUITE[:warm]...` builds them. It needs only the standard library, so that ./dev can
build an image while the virtual environment is being made.
"""

import functools
import hashlib
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sandbox.fleet import places
from sandbox.fleet.errors import CannotRunError, FleetError
from sandbox.fleet.runtime import INSTALL, Podman

SUITES = ("bookworm", "trixie")

_HERE = Path(__file__).parent
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def packages(listing: str, suite: str) -> tuple[str, ...]:
    """Package names for a suite, from a list with comments; `name [suite]` is for that suite alone."""
    lines = (raw.partition("#")[0].split() for raw in listing.splitlines())
    return tuple(name for name, *only in filter(None, lines) if not only or f"[{suite}]" in only)


def sources(index_targets: str, machine: str, suite: str) -> list[str]:
    """apt lines for a suite, from the mirrors that this machine uses itself; none if it is not a Debian machine.

    Each line of index_targets is "URI release origin component".
    """
    mirrors: dict[str, str] = {}
    for line in index_targets.splitlines():
        uri, _, rest = line.partition(" ")
        release, origin, component = [*rest.split(" "), "", "", ""][:3]
        reachable = uri.startswith(("http://", "https://")) and "//localhost" not in uri and "//127." not in uri
        if reachable and origin == "Debian" and component == "main":
            mirrors.setdefault(release.removeprefix(machine), uri)
    if "" not in mirrors:
        return []
    lines = [f"deb {mirrors['']} {suite} main", f"deb {mirrors['']} {suite}-updates main"]
    if "-security" in mirrors:
        lines.append(f"deb {mirrors['-security']} {suite}-security main")
    return lines


@dataclass(frozen=True)
class Recipe:
    """Everything that determines the content of an image; equal recipes share one image."""

    suite: str
    warm: bool
    include: tuple[str, ...]
    extra: tuple[str, ...]
    sources: tuple[str, ...]
    apt_options: tuple[str, ...]
    customize: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr(self).encode()).hexdigest()[:12]

    @property
    def repository(self) -> str:
        return f"localhost/gpuaas-slurm-{'warm' if self.warm else 'node'}"

    @property
    def reference(self) -> str:
        return f"{self.repository}:{self.suite}-{self.digest}"


def recipe(suite: str, *, warm: bool) -> Recipe:
    """The recipe of a suite on this machine."""
    if suite not in SUITES:
        raise CannotRunError(f"unknown suite {suite!r}; choose one of: {', '.join(SUITES)}")
    return Recipe(
        suite=suite,
        warm=warm,
        include=packages((_HERE / "node-packages.txt").read_text(), suite),
        extra=packages((_HERE / "warm-packages.txt").read_text(), suite) if warm else (),
        sources=tuple(sources(_index_targets(), _machine_suite(), suite)),
        apt_options=tuple(_proxy_options()),
        customize=(_HERE / "customize.sh").read_text(),
    )


def ensure_images(podman: Podman, wanted: Iterable[Recipe]) -> dict[Recipe, str]:
    """Build several images, two at a time: a build keeps about one core busy."""
    recipes = list(dict.fromkeys(wanted))
    with ThreadPoolExecutor(max_workers=2) as pool:
        return dict(zip(recipes, pool.map(lambda one: ensure_image(podman, one), recipes), strict=True))


def ensure_image(podman: Podman, wanted: Recipe) -> str:
    """The image's reference, built first if this machine does not have it yet."""
    if podman.image_exists(wanted.reference):
        return wanted.reference
    _check_builder()
    with places.locked(f"image-{wanted.suite}-{wanted.digest}"):
        # Another command may have built it while this one waited for the lock.
        if not podman.image_exists(wanted.reference):
            _build(podman, wanted)
            _remove_outdated(podman, wanted)
    return wanted.reference


def remove_images(podman: Podman) -> list[str]:
    """Remove the images that no container uses; returns those that are still in use."""
    return [image for image in podman.own_images() if podman.try_run("rmi", image).returncode != 0]


def _build(podman: Podman, wanted: Recipe) -> None:
    with tempfile.TemporaryDirectory(prefix="gpuaas-slurm-image-") as scratch:
        # A file and not a pipe: a build that fails must not leave half an image.
        tarball = Path(scratch) / "node.tar"
        # Options in a file: a proxy's address may hold a password, and all users can read arguments.
        options = Path(scratch) / "apt.conf"
        places.write_private(options, "".join(f"{line};\n" for line in wanted.apt_options))
        argv = [
            *("mmdebstrap", "--quiet", "--variant=apt", "--dpkgopt=force-unsafe-io"),
            f"--include={','.join(wanted.include + wanted.extra)}",
            *([f"--aptopt={options}"] if wanted.apt_options else []),
            f'--customize-hook=sh {shlex.quote(str(_HERE / "customize.sh"))} "$1"',
            *(wanted.suite, str(tarball), *wanted.sources),
        ]
        environment = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LC_ALL": "C.UTF-8",
            "WARM_PACKAGES": " ".join(wanted.extra),
        }
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
        if done.returncode != 0:
            output = "\n".join(done.stderr.strip().splitlines()[-15:])
            raise FleetError(
                f"building the {wanted.suite} host image failed; check that this machine's Debian mirror "
                f"answers and has {wanted.suite}. Output of mmdebstrap:\n{output}"
            )
        podman.import_image(tarball, wanted.reference)


def _remove_outdated(podman: Podman, wanted: Recipe) -> None:
    """Remove images of older recipes, except those that a host still uses."""
    for image in podman.own_images():
        if image.startswith(f"{wanted.repository}:{wanted.suite}-") and image != wanted.reference:
            podman.try_run("rmi", image)


def _check_builder() -> None:
    missing = [] if shutil.which("mmdebstrap") else ["mmdebstrap"]
    if not _KEYRING.exists():
        missing.append("debian-archive-keyring")
    if missing:
        raise CannotRunError(
            f"building a Debian host image needs {' and '.join(missing)}; on Debian or Ubuntu run: "
            f"{INSTALL} debian-archive-keyring; elsewhere install the packages of these names"
        )


def _machine_suite() -> str:
    try:
        return platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    except OSError:
        return ""


def _index_targets() -> str:
    return _apt(
        "apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(ORIGIN) $(COMPONENT)", "Created-By: Packages"
    )


def _proxy_options() -> Iterable[str]:
    """This machine's apt proxies, for the build and for the hosts: without them apt may reach no mirror."""
    for scheme in ("http", "https"):
        key = f"Acquire::{scheme}::Proxy"
        value = _apt("apt-config", "dump", "--format", "%v", key).strip()
        if value and value != "DIRECT":
            yield f'{key} "{value}"'


@functools.cache
def _apt(*argv: str) -> str:
    if shutil.which(argv[0]) is None:
        return ""
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout


def main(kinds: Sequence[str]) -> None:
    """Build the images of these kinds, or all of them, and print their references."""
    wanted = [kind.partition(":") for kind in kinds or (f"{suite}{warm}" for suite in SUITES for warm in ("", ":warm"))]
    for suite, _, warm in wanted:
        if warm not in ("", "warm"):
            raise CannotRunError(f"'{suite}:{warm}' is not SUITE or SUITE:warm")
    recipes = [recipe(suite, warm=bool(warm)) for suite, _, warm in wanted]
    for reference in ensure_images(Podman.detect(), recipes).values():
        sys.stdout.write(f"{reference}\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except FleetError as error:
        sys.exit(f"error: {error}")
