"""Runs the unit tests on a plain Debian 13 with its Python 3.13: python -m tests.suite.other_python [PYTEST-ARG ...]

The files of the tree are copied into a container of the host image, which is removed afterwards. Packages come from
Debian and from the lock, as in `./dev setup`.
"""

import os
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from sandbox.fleet.errors import FleetError
from sandbox.fleet.images import ensure_image, recipe
from sandbox.fleet.runtime import Podman
from tests.repository import ROOT, present_files

SUITE = "trixie"
PYTHON = "3.13"
# The container's pip uses the package index of this machine's pip.
PIP_SETTINGS = ("PIP_INDEX_URL", "PIP_CERT", "PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# The arguments of the script are those of pytest. Git is needed by tests that list the files of the tree.
SCRIPT = f"""
mkdir /src && cd /src && tar -x
exec </dev/null
export DEBIAN_FRONTEND=noninteractive
install='apt-get install -y --no-install-recommends git openssh-client python3-venv sudo'
sh -ec "apt-get update; $install" >/tmp/apt.log 2>&1 || {{ tail -20 /tmp/apt.log; exit 1; }}
python3 -m venv .venv
. .venv/bin/activate
python -c 'import sys; assert sys.version.startswith("{PYTHON}."), sys.version'
pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
git init --quiet && git add --all
python --version
# Not exec: the shell is the first process here, and reaps what tests leave behind.
pytest -q -p no:cacheprovider "$@" || exit $?
"""


def main(arguments: Sequence[str]) -> int:
    podman = Podman.detect()
    image = ensure_image(podman, recipe(SUITE, warm=False))
    cache = ROOT / ".cache" / "pip"
    cache.mkdir(parents=True, exist_ok=True)
    settings = [flag for name in PIP_SETTINGS if name in os.environ for flag in ("--env", name)]
    trusted = ["--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro"] if CERTIFICATES.exists() else []
    name = f"gpuaas-slurm-python-{uuid.uuid4().hex[:6]}"
    argv = podman.argv(
        *("run", "--rm", "--name", name, "--interactive", "--network", "host", "--volume", f"{cache}:/root/.cache/pip"),
        *podman.limits,
        *settings,
        *trusted,
        *(image, "sh", "-ec", SCRIPT, "sh", *(arguments or ["tests/unit"])),
    )
    try:
        return subprocess.run(argv, input=packed_tree(), check=False).returncode
    finally:
        # An interrupted client leaves its container running.
        podman.run("rm", "--force", "--ignore", "--time", "0", name)


def packed_tree(root: Path = ROOT) -> bytes:
    """The present files, committed or not, as a tar archive, without those that git ignores."""
    pack = ["tar", "-c", "--null", "--files-from=-"]
    files = "\0".join(present_files(root=root)).encode()
    return subprocess.run(pack, cwd=root, input=files, capture_output=True, check=True).stdout


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except FleetError as error:
        sys.exit(f"error: {error}")
