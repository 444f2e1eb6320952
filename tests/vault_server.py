"""A real Vault or OpenBao on loopback: started, sealed, unsealed and restarted, with its data in a directory."""

import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hvac
import requests

from sandbox.platform.process import free_port

BINARIES = ("vault", "bao")
START_SECONDS = 30.0


def find_binary() -> str | None:
    return next((found for name in BINARIES if (found := shutil.which(name))), None)


@dataclass(frozen=True)
class VaultServer:
    """A server of this directory. Any process that knows the directory can stop and start it."""

    directory: Path

    @classmethod
    def create(cls, directory: Path, binary: str) -> "VaultServer":
        """A new server with one unseal key, started and unsealed."""
        port = free_port()
        (directory / "data").mkdir(parents=True, mode=0o700)
        (directory / "server.hcl").write_text(
            f'storage "file" {{ path = "{directory / "data"}" }}\n'
            f'listener "tcp" {{\n  address = "127.0.0.1:{port}"\n  tls_disable = true\n}}\n'
            f'api_addr = "http://127.0.0.1:{port}"\ndisable_mlock = true\n'
        )
        server = cls(directory)
        server._keep(binary=binary, address=f"http://127.0.0.1:{port}")
        server.start(unseal=False)
        made = server.client.sys.initialize(secret_shares=1, secret_threshold=1)
        server._keep(token=made["root_token"], key=made["keys"][0])
        server.unseal()
        return server

    @property
    def address(self) -> str:
        return str(self._kept()["address"])

    @property
    def token(self) -> str:
        return str(self._kept()["token"])

    @property
    def client(self) -> hvac.Client:
        return hvac.Client(url=self.address, token=self._kept().get("token"))

    def start(self, *, unseal: bool = True) -> None:
        kept = self._kept()
        with (self.directory / "server.log").open("ab") as log:
            child = subprocess.Popen(
                [kept["binary"], "server", f"-config={self.directory / 'server.hcl'}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._keep(pid=child.pid)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if child.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.directory / "server.log").read_text(errors="replace")[-2000:])
            time.sleep(0.1)
        if unseal:
            self.unseal()

    def stop(self) -> None:
        pid = self._kept()["pid"]
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + START_SECONDS
        while self._answers():
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)

    def seal(self) -> None:
        self.client.sys.seal()

    def unseal(self) -> None:
        self.client.sys.submit_unseal_key(self._kept()["key"])

    def _answers(self) -> bool:
        try:
            requests.get(f"{self.address}/v1/sys/seal-status", timeout=2)
        except requests.RequestException:
            return False
        return True

    @property
    def _file(self) -> Path:
        return self.directory / "server.json"

    def _kept(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._file.read_text())
        return found

    def _keep(self, **more: Any) -> None:
        before = self._kept() if self._file.exists() else {}
        self._file.touch(mode=0o600)
        self._file.write_text(json.dumps({**before, **more}))
