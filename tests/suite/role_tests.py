"""Runs a molecule scenario and keeps the hosts' journals if it fails: python -m tests.suite.role_tests SCENARIO

With KEEP=1 in the environment, the hosts of a failure stay up.
"""

import base64
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from sandbox.fleet.fleet import Fleet
from tests.commands import hide
from tests.e2e.evidence import FleetEvidence
from tests.post_mortem import keep_hosts
from tests.suite.parts import ROOT

SECRETS = ("munge_key", "slurmdbd_password", "slurmdbd_jwt_key")


def main(scenario: str, failed: Path = ROOT / ".cache" / "failed") -> int:
    # Remove hosts of a killed run first. `--destroy=never` keeps those of this run until evidence is collected.
    if code := _destroy(scenario):
        return code
    try:
        code = subprocess.run(["molecule", "test", "-s", scenario, "--destroy=never"], check=False).returncode
        if code:
            _keep_evidence(scenario, failed / f"molecule-{scenario}")
    except BaseException:
        _destroy(scenario)
        raise
    if code and keep_hosts():
        sys.stdout.write("KEEP: the hosts are still up; molecule/README.md says how to use and to remove them\n")
        return code
    return code or _destroy(scenario)


def _keep_evidence(scenario: str, folder: Path) -> None:
    state = Path.home() / ".ansible" / "tmp"
    secrets = [path.read_text().strip() for name in SECRETS for path in state.glob(f"molecule.*.{scenario}/{name}")]
    encoded = [base64.b64encode(secret.encode()).decode() for secret in secrets]
    hide({f"SECRET {number}": secret for number, secret in enumerate([*secrets, *encoded])})
    shutil.rmtree(folder, ignore_errors=True)
    lines = FleetEvidence(Fleet(fleet_name())).keep(folder)
    sys.stdout.write("\n".join([*lines, f"kept for this failure: {folder.relative_to(ROOT)}/", ""]))


def _destroy(scenario: str) -> int:
    done = subprocess.run(["molecule", "destroy", "-s", scenario], check=False, capture_output=True, text=True)
    if done.returncode:
        sys.stdout.write(done.stdout + done.stderr)
    return done.returncode


def fleet_name(project: Path = ROOT) -> str:
    """The same name as in molecule.yml."""
    return f"roles-{hashlib.sha256(str(project).encode()).hexdigest()[:6]}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
