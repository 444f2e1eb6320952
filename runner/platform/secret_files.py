"""Secrets in files that another program writes and renews, such as the token of a Vault Agent or a private key.

They are read at each use, because the program may have renewed them.
"""

import os
import re
from pathlib import Path

# Only the owner may write, and the group may read: the file of a Vault Agent has mode 0640 by default.
FORBIDDEN_BITS = 0o027
# One word without a brace: an agent that wraps its token writes JSON, which is not a token.
SECRET = re.compile(r"[!-z]+")
MAX_BYTES = 65536


class SecretFileError(Exception):
    """The file cannot be used. The message names the setting and the next step, and quotes nothing of the file."""

    def __init__(self, message: str, klass: str = "intervention") -> None:
        super().__init__(message)
        self.klass = klass


def read(setting: str, path: Path) -> str:
    """The secret in the file that the setting names."""
    text = content(setting, path).decode("ascii", errors="replace").strip()
    if not SECRET.fullmatch(text):
        raise SecretFileError(
            f"{setting}: {path} must hold one token or id as plain text and nothing else. Check what writes it"
        )
    return text


def content(setting: str, path: Path) -> bytes:
    """What is in the file, if only its owner can change it, and only owner and group can read it."""
    try:
        # Mode and content are those of the same open file. A pipe must not block.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            mode, found = os.fstat(file.fileno()).st_mode, file.read(MAX_BYTES)
    except FileNotFoundError:
        raise SecretFileError(
            f"{setting}: {path} does not exist: check that what writes it runs", "retryable"
        ) from None
    except OSError as error:
        raise SecretFileError(
            f"{setting}: cannot read {path}: {error.strerror}. Let the runner's user read it"
        ) from None
    if mode & FORBIDDEN_BITS:
        raise SecretFileError(
            f"{setting}: {path} is open to others (mode {mode & 0o7777:04o}), so its content is not secret. Have it"
            " written with mode 0640 or less, and revoke what was in it"
        )
    return found
