"""A host's GPUs as Slurm's configuration has them.

A wrong word here makes a node INVAL or keeps slurmd from starting, and neither says why to whoever asked for the
worker. So the types and devices come from host/gpus.py, which refuses what it cannot read.
"""

from __future__ import annotations

from typing import Any

from ..app import NAME


def gres(gpus: list[dict[str, Any]]) -> str:
    """As a node's Gres: gpu:a100:4, or gpu:a100:2,gpu:t4:1 if they differ."""
    kinds = sorted({str(gpu["type"]) for gpu in gpus})
    return ",".join(f"gpu:{kind}:{sum(gpu['type'] == kind for gpu in gpus)}" for kind in kinds)


def gres_conf(gpus: list[dict[str, Any]]) -> str:
    """This host's part of gres.conf: a line for each GPU with the file by which a job gets at it."""
    lines = [f"Name=gpu Type={gpu['type']} File={gpu['device']}" for gpu in gpus]
    return "\n".join([f"# Written by {NAME}. The GPUs of this host.", *lines]) + "\n"
