"""The tested tree: the hash that git would give to the present files, committed or not."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.suite.parts import ROOT


def tree_hash(root: Path = ROOT) -> str:
    """The hash; empty without git, so that such results are never reused."""
    with tempfile.TemporaryDirectory(prefix="gpuaas-slurm-tree-") as scratch:
        index = Path(scratch) / "index"
        environment = {**os.environ, "GIT_INDEX_FILE": str(index)}
        try:
            index_path = Path(_git(root, dict(os.environ), "rev-parse", "--git-path", "index"))
            if (root / index_path).exists():
                shutil.copy(root / index_path, index)
            _git(root, environment, "add", "--all")
            return _git(root, environment, "write-tree")
        except (OSError, subprocess.CalledProcessError):
            return ""


def _git(root: Path, environment: dict[str, str], *argv: str) -> str:
    done = subprocess.run(["git", *argv], cwd=root, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()
