"""Secrets that another program keeps in a file, such as the token of a Vault Agent.

Read when they are needed and not once at start, since whoever keeps them renews them.
"""

import os
import re
from pathlib import Path

# Others may not read it, and nobody but its owner may change it. A group may read: an agent's file is 0640 by default.
OPEN_TO_OTHERS = 0o027
# One word. No brace: an agent that is told to wrap its token writes JSON, which is no token.
SECRET = re.compile(r"[!-z]+")
LONGEST = 65536


class Unusable(Exception):
    """The file is not as it must be; the message names the setting and the next step, and shows nothing of it."""

    def __init__(self, message: str, klass: str = "intervention") -> None:
        super().__init__(message)
        self.klass = klass


def read(setting: str, path: Path) -> str:
    """The one word in the file that the setting names."""
    try:
        # Of what was opened, not of what the name means a moment later. A pipe must not make us wait.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            mode, content = os.fstat(file.fileno()).st_mode, file.read(LONGEST)
    except FileNotFoundError:
        raise Unusable(
            f"{setting}: {path} does not exist: check that the agent that writes it runs", "retryable"
        ) from None
    except OSError as error:
        raise Unusable(f"{setting}: cannot read {path}: {error.strerror}. Let the runner's user read it") from None
    if mode & OPEN_TO_OTHERS:
        raise Unusable(
            f"{setting}: {path} is open to others (mode {mode & 0o7777:04o}), so its content is not secret. Have it"
            " written with mode 0640 or less, and revoke what was in it"
        )
    text = content.decode("ascii", errors="replace").strip()
    if not SECRET.fullmatch(text):
        raise Unusable(
            f"{setting}: {path} must hold one token or id as plain text and nothing else. Check what writes it"
        )
    return text
