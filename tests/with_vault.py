"""`./dev test vault`: the tests of Vault against a real one.

It is the Vault of VAULT_ADDR and VAULT_TOKEN, or the program `vault` or `bao` in PATH, which is started on loopback.
Without either nothing runs, which is said, and the exit code is 3.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.vault_server import VaultServer, find_binary

NOT_RUN = 3
FILES = (
    "tests/contract/test_any_vault.py",
    "tests/contract/test_external_vault.py",
    "tests/e2e/test_external_vault.py",
)
# In this directory a test finds the server that it may seal and restart.
SERVER = "VAULT_SERVER_DIRECTORY"


@contextmanager
def variables() -> Iterator[dict[str, str] | None]:
    """Where the Vault is, for the tests; None if there is none."""
    if os.environ.get("VAULT_ADDR") and os.environ.get("VAULT_TOKEN"):
        yield {}
        return
    binary = find_binary()
    if binary is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="gpuaas-vault-") as directory:
        server = VaultServer.create(Path(directory) / "server", binary)
        try:
            yield {"VAULT_ADDR": server.address, "VAULT_TOKEN": server.token, SERVER: str(server.directory)}
        finally:
            server.stop()


def main() -> int:
    with variables() as given:
        if given is None:
            print(  # noqa: T201
                "vault: nothing was run. There is no program vault or bao in PATH, and VAULT_ADDR and VAULT_TOKEN are"
                " not both set",
                file=sys.stderr,
            )
            return NOT_RUN
        command = [sys.executable, "-m", "pytest", *FILES, *sys.argv[1:]]
        return subprocess.run(command, env={**os.environ, **given}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
