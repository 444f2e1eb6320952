"""The files of the repository, committed or not, without those that git ignores."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def present_files(*patterns: str, root: Path = ROOT) -> list[str]:
    """Names relative to the root; a deleted file is not one of them, a symbolic link is."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.split("\0")
    return [name for name in listed if name and ((root / name).is_symlink() or (root / name).exists())]
