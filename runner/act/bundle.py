"""Finds the Ansible files of the project: in a checkout, or installed beside the package."""

import re
import sys
from pathlib import Path

from runner.model.app import App


def bundle_dir() -> Path:
    """The directory that holds ansible.cfg, playbooks/ and roles/."""
    checkout = Path(__file__).resolve().parents[2]
    installed = Path(sys.prefix) / "share" / "gpuaas-slurm"
    for candidate in (checkout, installed):
        if (candidate / "playbooks").is_dir() and (candidate / "ansible.cfg").is_file():
            return candidate
    raise FileNotFoundError(
        f"the Ansible bundle is in neither {checkout} nor {installed}: reinstall it, or run from a checkout"
    )


def of_app(app: App) -> Path:
    """The directory with the app's ansible.cfg and playbooks/."""
    return Path(app.bundle) if app.bundle else bundle_dir()


def error_codes() -> frozenset[str]:
    """Every code that the adapter may give a member or an operation."""
    table = (bundle_dir() / "app" / "error_codes.yaml").read_text()
    return frozenset(re.findall(r"[a-z][a-z0-9_]+", " ".join(re.findall(r"^- codes:\s*\[(.*?)\]", table, re.M | re.S))))


def version() -> str:
    """The version of package, app and command line, which only the manifest contains."""
    manifest = bundle_dir() / "app" / "manifest.yaml"
    found = re.search(r"^version: (\S+)$", manifest.read_text(), re.MULTILINE)
    if found is None:
        raise FileNotFoundError(f"{manifest} has no line 'version: X.Y.Z': restore it, or reinstall the bundle")
    return found[1]
