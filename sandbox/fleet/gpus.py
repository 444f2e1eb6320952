"""Simulated GPUs: a stand-in `nvidia-smi` and device files, so that a host looks like one with a driver."""

import re
import uuid
from dataclasses import dataclass
from pathlib import Path

from sandbox.fleet.errors import CannotRunError

MOST = 16
TOOL = "usr/bin/nvidia-smi"
INVENTORY = "etc/sandbox-gpus"
# The name that the real tool prints, and the memory in MiB.
MODELS = {
    "a100": ("NVIDIA A100-SXM4-40GB", 40960),
    "h100": ("NVIDIA H100 80GB HBM3", 81559),
    "l40s": ("NVIDIA L40S", 46068),
    "rtx4090": ("NVIDIA GeForce RTX 4090", 24564),
    "t4": ("Tesla T4", 15360),
    "v100": ("Tesla V100-SXM2-16GB", 16384),
}
_STAND_IN = Path(__file__).parent / "nvidia-smi"


@dataclass(frozen=True)
class Gpus:
    """A number of GPUs of one model; most hosts have none."""

    count: int = 0
    model: str = "a100"

    def __post_init__(self) -> None:
        if not 0 <= self.count <= MOST:
            raise CannotRunError(f"a host has 0 to {MOST} GPUs, not {self.count}")
        if self.model not in MODELS:
            raise CannotRunError(f"unknown GPU model {self.model!r}; choose one of: {', '.join(MODELS)}")

    def __str__(self) -> str:
        return f"gpus={self.count}x{self.model}" if self.count else ""

    @classmethod
    def parse(cls, text: str) -> "Gpus":
        """Read gpus=4xa100, the form in a host's spec and in its label; an empty text means no GPU."""
        if not text:
            return NONE
        found = re.fullmatch(r"gpus=(\d{1,3})x([a-z0-9]+)", text)
        if not found:
            raise CannotRunError(f"{text!r} is not gpus=COUNTxMODEL, for example gpus=4xa100")
        return cls(int(found[1]), found[2])

    @property
    def devices(self) -> list[str]:
        """Arguments that give a container its device files: each is a real character device, /dev/null."""
        names = [f"/dev/nvidia{index}" for index in range(self.count)] + ["/dev/nvidiactl"] * bool(self.count)
        return [part for name in names for part in ("--device", f"/dev/null:{name}")]

    def files(self, host: str) -> dict[str, tuple[int, str]]:
        """Files for the host: the tool, and the table that the tool reads. Each GPU has its own uuid."""
        if not self.count:
            return {}
        name, memory = MODELS[self.model]
        rows = [
            f"{index}|{name}|{_uuid(host, index)}|{memory}|00000000:{16 + index:02X}:00.0"
            for index in range(self.count)
        ]
        return {TOOL: (0o755, _STAND_IN.read_text()), INVENTORY: (0o644, "".join(f"{row}\n" for row in rows))}


NONE = Gpus()


def _uuid(host: str, index: int) -> str:
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{host}/{index}')}"
