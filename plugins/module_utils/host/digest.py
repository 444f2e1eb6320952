"""The short digest by which a file's content is compared and shown."""

from __future__ import annotations

import hashlib
from pathlib import Path


def short_digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def content_version(content: bytes) -> str:
    """What a record shows of a file: the digest with the name of its algorithm."""
    return f"sha256:{short_digest(content)}"


def file_version(path: str | Path) -> str | None:
    """The same of a file on disk; None for one that cannot be read."""
    try:
        return content_version(Path(path).read_bytes())
    except OSError:
        return None
