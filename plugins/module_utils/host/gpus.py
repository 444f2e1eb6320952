"""The GPUs of a host as its driver reports them. An answer that cannot be read with certainty is an error."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from .errors import INTERVENTION, AdapterError, last_line

QUERY = ("index", "uuid", "memory.total", "pci.bus_id", "name")
PATIENCE_SECONDS = 20
# Words that do not distinguish models.
NOISE = frozenset({"nvidia", "tesla", "geforce", "quadro", "graphics", "device"})
TYPE = re.compile(r"[a-z][a-z0-9_]{0,31}")
MINOR = re.compile(r"^Device Minor:\s*(\d+)", re.MULTILINE)
PROC = Path("/proc/driver/nvidia/gpus")


def read_gpus() -> list[dict[str, Any]]:
    """Every GPU of this host: index, uuid, memory_mb, name, type and device. Empty without nvidia-smi."""
    tool = shutil.which("nvidia-smi")
    if not tool:
        return []
    command = [tool, f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        raise _unreadable("it does not answer") from None
    if done.returncode != 0:
        reason = last_line(done.stdout + done.stderr, f"it ended with {done.returncode}")
        if reason.startswith("No devices were found"):
            return []
        raise _unreadable(reason)
    gpus = parse_gpus(done.stdout)
    for gpu in gpus:
        gpu["device"] = f"/dev/nvidia{_minor(gpu)}"
        if not Path(gpu["device"]).exists():
            raise AdapterError(
                "gpu_device_missing",
                f"nvidia-smi lists GPU {gpu['index']}, but the host has no {gpu['device']}, so no job could use it."
                " Create the driver's device files (nvidia-modprobe), then retry.",
                INTERVENTION,
            )
    return gpus


def parse_gpus(text: str) -> list[dict[str, Any]]:
    """Rows of the query above, by index."""
    gpus = []
    for line in filter(None, map(str.strip, text.splitlines())):
        fields = [field.strip() for field in line.split(",", len(QUERY) - 1)]
        if len(fields) != len(QUERY) or not fields[0].isdigit():
            raise _unreadable(f"it printed {line[:80]!r}")
        index, uuid, memory, bus, name = fields
        gpus.append(
            {
                "index": int(index),
                "uuid": uuid,
                "memory_mb": int(memory) if memory.isdigit() else None,
                "bus": bus.lower(),
                "name": name,
                "type": gpu_type(name),
            }
        )
    return sorted(gpus, key=lambda gpu: int(gpu["index"]))


def gpu_type(name: str) -> str:
    """The usual name of a model: a100 for NVIDIA A100-SXM4-40GB, rtx_4090 for NVIDIA GeForce RTX 4090.

    It is used in configurations and on command lines, so it has only lower case letters, digits and underscores.
    """
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word and word not in NOISE]
    numbered = [index for index, word in enumerate(words) if any(letter.isdigit() for letter in word)]
    name_of_type = "_".join(words[: numbered[0] + 1] if numbered else words)
    if not TYPE.fullmatch(name_of_type):
        raise AdapterError(
            "gpu_type_unusable",
            f"The host has a GPU called {name[:60]!r}, which gives no valid type name. Use another host, or extend"
            " the adapter for this model.",
            INTERVENTION,
        )
    return name_of_type


def check_gpu_count(gpus: list[dict[str, Any]], promised: int | None) -> None:
    """The host must have exactly the GPUs of its allocation: fewer means a broken host, more belong to others."""
    if promised is None or len(gpus) == promised:
        return
    raise AdapterError(
        "gpu_count_mismatch",
        f"The host has {len(gpus)} GPU(s), its allocation has {promised}. Read `nvidia-smi -L` on the host, then"
        " repair the host or correct the allocation, then retry.",
        INTERVENTION,
    )


def _minor(gpu: dict[str, Any]) -> int:
    """The number of the device file. It differs from the index on hosts that lost or hide a GPU."""
    domain, _, rest = gpu["bus"].partition(":")
    try:
        found = MINOR.search((PROC / f"{domain[-4:]}:{rest}" / "information").read_text())
    except OSError:
        found = None
    return int(found[1]) if found else int(gpu["index"])


def _unreadable(how: str) -> AdapterError:
    return AdapterError(
        "gpu_unreadable",
        f"nvidia-smi on the host is not usable: {how}. Repair the driver, or remove it if the host has no GPU.",
        INTERVENTION,
    )
