"""The GPUs of a host as its driver reports them. What cannot be read with certainty is an error."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from .errors import INTERVENTION, AdapterError

QUERY = ("index", "uuid", "memory.total", "pci.bus_id", "name")
PATIENCE_SECONDS = 20
# Makers and families say nothing that tells one model from another.
NOISE = frozenset({"nvidia", "tesla", "geforce", "quadro", "graphics", "device"})
TYPE = re.compile(r"[a-z][a-z0-9_]{0,31}")
MINOR = re.compile(r"^Device Minor:\s*(\d+)", re.MULTILINE)
PROC = Path("/proc/driver/nvidia/gpus")


def read_gpus() -> list[dict[str, Any]]:
    """Every GPU of this host: index, uuid, memory_mb, name, type and device. None without the driver's tool."""
    tool = shutil.which("nvidia-smi")
    if not tool:
        return []
    command = [tool, f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        raise _unreadable("it does not answer") from None
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip().splitlines()
        if said and said[-1].startswith("No devices were found"):
            return []
        raise _unreadable(said[-1] if said else f"it ended with {done.returncode}")
    gpus = parse_gpus(done.stdout)
    for gpu in gpus:
        gpu["device"] = f"/dev/nvidia{_minor(gpu)}"
        if not Path(gpu["device"]).exists():
            raise AdapterError(
                "gpu_device_missing",
                f"nvidia-smi lists GPU {gpu['index']}, but the host has no {gpu['device']}, so no job could use it."
                " Have the driver make its device files (nvidia-modprobe), then retry.",
                INTERVENTION,
            )
    return gpus


def parse_gpus(text: str) -> list[dict[str, Any]]:
    """Rows of the query above, in the order of their index."""
    gpus = []
    for line in filter(None, map(str.strip, text.splitlines())):
        fields = [field.strip() for field in line.split(",", len(QUERY) - 1)]
        if len(fields) != len(QUERY) or not fields[0].isdigit():
            raise _unreadable(f"it says {line[:80]!r}")
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
    """A model by the word people use for it: a100 of NVIDIA A100-SXM4-40GB, rtx_4090 of NVIDIA GeForce RTX 4090.

    It lands in configurations and on command lines, so it is made of nothing but lower case letters, digits and _.
    """
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word and word not in NOISE]
    told: list[str] = []
    for word in words:
        told.append(word)
        if any(letter.isdigit() for letter in word):
            break
    made = "_".join(told)
    if not TYPE.fullmatch(made):
        raise AdapterError(
            "gpu_type_unusable",
            f"The host has a GPU called {name[:60]!r}, of which no type name can be made. Use another host, or"
            " have the adapter taught this model.",
            INTERVENTION,
        )
    return made


def judge_count(gpus: list[dict[str, Any]], promised: int | None) -> None:
    """A worker is what was rented, or it is none: fewer is a broken host, more is somebody else's."""
    if promised is None or len(gpus) == promised:
        return
    raise AdapterError(
        "gpu_count_mismatch",
        f"The host has {len(gpus)} GPU(s), its allocation says {promised}. Look at `nvidia-smi -L` on the host and"
        " repair it or correct the allocation, then retry.",
        INTERVENTION,
    )


def _minor(gpu: dict[str, Any]) -> int:
    """The number in the device file's name. It is the index but for hosts that lost or hide a GPU."""
    domain, _, rest = gpu["bus"].partition(":")
    try:
        found = MINOR.search((PROC / f"{domain[-4:]}:{rest}" / "information").read_text())
    except OSError:
        found = None
    return int(found[1]) if found else int(gpu["index"])


def _unreadable(how: str) -> AdapterError:
    return AdapterError(
        "gpu_unreadable",
        f"The host has nvidia-smi, but {how}. Repair the driver, or remove it if there is no GPU.",
        INTERVENTION,
    )
