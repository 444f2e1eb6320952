"""The container image does the runner's whole work without root, without capabilities and without a disk."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.settings import Settings
from sandbox.fleet.runtime import Podman
from tests.commands import ends
from tests.e2e.cluster import deploy, fleet_named, happened_once
from tests.platform_process import ROOT

pytestmark = pytest.mark.e2e

USER = 10001
# Podman would put writable places of its own into a read-only container; here there is /tmp, in memory, and no other.
LOCKED_UP = (
    "--read-only",
    "--read-only-tmpfs=false",
    "--tmpfs",
    "/tmp",
    "--cap-drop",
    "all",
    "--security-opt",
    "no-new-privileges",
)


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    """Built as `./dev image` does it, under a name of its own that is gone afterwards."""
    name = f"localhost/gpuaas-slurm-e2e:{os.getpid()}"
    built = subprocess.run([ROOT / "deploy" / "build-image", name], capture_output=True, text=True, check=False)
    ends(built, 0)
    yield name
    Podman.detect().try_run("image", "rm", "--force", name)


def contained(image: str, *arguments: str, options: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    podman = Podman.detect()
    argv = podman.argv("run", "--rm", "--network", "host", *podman.limits, *LOCKED_UP, *options, image, *arguments)
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_the_image_runs_without_root_and_is_read_only(image: str) -> None:
    script = (
        "import os\n"
        "print(os.getuid(), os.getgid(), open('/proc/self/status').read().split('CapEff:')[1].split()[0])\n"
        "for place in ('/', '/opt/gpuaas-slurm', '/usr/bin', '/var/tmp', '/home'):\n"
        "    print(place, os.access(place, os.W_OK))\n"
    )
    seen = contained(image, "-c", script, options=("--entrypoint", "/opt/gpuaas-slurm/bin/python"))
    ends(seen, 0)
    first, *places = seen.stdout.splitlines()
    assert first.split() == [str(USER), str(USER), "0" * 16]
    assert len(places) == 5 and not [line for line in places if not line.endswith(" False")]


def test_a_cluster_is_deployed_from_the_image_and_its_settings_file(image: str, tmp_path: Path) -> None:
    with fleet_named("e2e-image") as fleet:
        fleet.up(hosts=1, suite="bookworm", warm=True)
        cluster = deploy(fleet, "gs-1", "", "--same-node")
        settings = tmp_path / "gpuaas.toml"
        settings.write_text(as_file(cluster.variables))
        os.chown(settings, USER, USER)
        settings.chmod(0o400)
        place = "/etc/gpuaas-slurm/gpuaas.toml"
        given = ("--volume", f"{settings}:{place}:ro", "--env", f"GPUAAS_CONFIG={place}")
        ran = contained(image, "run", "--json", options=given)
        ends(ran, 0)
        happened_once(cluster, workers=1)


def as_file(variables: dict[str, str]) -> str:
    """The environment of a fleet as the settings file that a Secret or a unit's credential would be."""
    named = {name.removeprefix("GPUAAS_").lower(): value for name, value in variables.items()}
    return "".join(f'{name} = "{named[name]}"\n' for name in sorted(set(named) & set(Settings.model_fields)))
