"""Rules of playbooks: the phase and the detail of a report, from results of modules.

Playbooks collect the results; the rules are here, typed and tested. What is not known is not reported as done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def controller_phase(snapshot: Mapping[str, Any], otherwise: str = "controller") -> str:
    return "serving" if snapshot["controller"]["ping"] == "UP" else otherwise


def worker_report(look: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A worker's phase and its node by its controller's slurm_snapshot, which waited for the node."""
    node = (look["snapshot"]["nodes"] or {}).get(name)
    return {
        "phase": "registering" if node is None or name in look["missing"] else "serving",
        "node": node,
        "registered": node is not None,
        "slurm_version": node["slurm_version"] if node else None,
        "drain_reason": node["reason"] if node and "DRAIN" in node["flags"] else None,
    }


def drain_report(done: Mapping[str, Any] | None, name: str | None) -> dict[str, Any]:
    """A worker's phase, detail and error from its controller's answer. `done` is None if the controller gave none.

    Only a node that slurm_nodes reports as drained is drained; a node that the controller does not show is not.
    """
    answer: Mapping[str, Any] = done or {}
    seen = (answer.get("drains") or {}).get(name, {})
    node = ((answer.get("snapshot") or {}).get("nodes") or {}).get(name)
    detail = {
        "jobs_remaining": len(node["jobs"]) if node else None,
        "drain_reason": seen.get("reason"),
        "drain_held_by": seen.get("held_by", "none"),
    }
    message = "The controller did not report whether the node is drained. The adapter retries."
    error = None if "nodes" in answer else {"code": "state_unknown", "message": message, "class": "retryable"}
    return {"phase": "drained" if seen.get("is_drained") else "draining", "detail": detail, "error": error}


def clean_report(done: Mapping[str, Any]) -> dict[str, Any]:
    """The phase after a clean-up, and `outcome` if it failed. Only a success has an empty residue."""
    clean = done.get("residue") == []
    return {"phase": "removed" if clean else "cleaning", "cleaned": clean, "outcome": None if clean else done}


def recover_report(mended: Mapping[str, Any], controller: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    """What a person reads after a recovery of a worker. `controller` are the variables of its controller's host."""
    looked = controller.get("recover_looked") or {}
    snapshot = (controller.get("recover_again") or {}).get("snapshot") or looked.get("snapshot")
    lifted = ((looked.get("nodes") or {}).get(name) or {}).get("did") == "resumed"
    return {
        "found": mended["found"] or ["No problem was found on the host."],
        "done": [*mended["changes"], *(["drain lifted"] if lifted else [])],
        "node": _described(snapshot, name),
    }


def _described(snapshot: Mapping[str, Any] | None, name: str | None) -> str:
    if name is None:
        return "no recorded name, the worker never joined"
    if snapshot is None or snapshot["nodes"] is None:
        return "unknown, the controller did not answer"
    node = snapshot["nodes"].get(name)
    if node is None:
        return "not in the cluster"
    return "+".join([node["state"], *node["flags"]]) + (f" ({node['reason']})" if node["reason"] else "")


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        rules: tuple[Callable[..., Any], ...] = (
            *(controller_phase, worker_report, drain_report),
            *(clean_report, recover_report),
        )
        return {rule.__name__: rule for rule in rules}
