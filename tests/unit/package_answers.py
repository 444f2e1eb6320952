"""Answers of the platform to the question where packages come from."""

import base64
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from runner.model.app import App
from runner.model.errors import PlatformError
from runner.model.platform import AppInstance, Resolution
from runner.slurm.app import SLURM
from tests.unit.worlds import instance

KEY = base64.b64encode(b"\x99\x01\x0d\x04" + bytes(range(200))).decode()
ARMORED = "\n".join(
    (
        "-----BEGIN PGP PUBLIC KEY BLOCK-----",
        "Comment: {{ 7*7 }}",
        "",
        KEY[:64],
        KEY[64:],
        "=abcd",
        "-----END PGP PUBLIC KEY BLOCK-----",
        "",
    )
)
SOURCE: dict[str, Any] = {
    "uri": "https://packages.example.org/slurm",
    "suite": "trixie",
    "components": ["main"],
    "signing_key": ARMORED,
    "credential_id": str(UUID(int=77)),
}
DENY = Resolution(decision="deny", rule={"id": "no-slurm", "scope": "tenant", "reason": "frozen until Monday"})
MISSING = Resolution(decision="missing")


def allowing(**changes: Any) -> Resolution:
    return Resolution(decision="allow", rule={"id": "yes"}, source=SOURCE | changes)


class Answering:
    """The one call of the platform that matters here."""

    def __init__(self, answer: Resolution | PlatformError) -> None:
        self._answer = answer

    def resolve_packages(self, _instance: AppInstance, artifact: str) -> Resolution:
        assert artifact == SLURM.artifact
        if isinstance(self._answer, PlatformError):
            raise self._answer
        return self._answer


def asking(answer: Resolution | PlatformError, setting: str) -> tuple[Any, Any, App, AppInstance]:
    return Answering(answer), SimpleNamespace(artifact_policy=setting), SLURM, instance()
