"""Finds the Ansible side of the project: in a checkout, or installed beside the package."""

import sys
from pathlib import Path


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
