"""A host's GPUs in the form of Slurm's configuration.

A wrong value makes a node INVAL or keeps slurmd from starting, without a useful error. So types and devices come from
host/gpus.py, which refuses an answer that it cannot read.
"""

from __future__ import annotations

from typing import Any

from ..app import NAME


def gres(gpus: list[dict[str, Any]]) -> str:
    """The Gres of a node: gpu:a100:4, or gpu:a100:2,gpu:t4:1 for different types."""
    kinds = sorted({str(gpu["type"]) for gpu in gpus})
    return ",".join(f"gpu:{kind}:{sum(gpu['type'] == kind for gpu in gpus)}" for kind in kinds)


def gres_conf(gpus: list[dict[str, Any]]) -> str:
    """This host's part of gres.conf: a line with the device file of each GPU."""
    lines = [f"Name=gpu Type={gpu['type']} File={gpu['device']}" for gpu in gpus]
    return "\n".join([f"# Written by {NAME}. The GPUs of this host.", *lines]) + "\n"
