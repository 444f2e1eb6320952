#!/usr/bin/python3
"""Drain, resume and delete nodes on their controller, and check the result."""

from __future__ import annotations

import time
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host.claim import CLAIM_ARGUMENT
from ansible.module_utils.host.errors import RETRYABLE, AdapterError
from ansible.module_utils.host.lock import host_lock
from ansible.module_utils.slurm.commands import look, look_at_nodes, nodes_command, run
from ansible.module_utils.slurm.evict import Evictions
from ansible.module_utils.slurm.hold import hold_down
from ansible.module_utils.slurm.leave import (
    Verdict,
    check_names,
    check_reason,
    obstacle,
    owns,
    standing_drain,
    to_drain,
    to_resume,
    verdict,
)
from ansible.module_utils.slurm.node_rules import drain_holder, is_drained

DOCUMENTATION = r"""
module: slurm_nodes
short_description: Drain, resume and delete nodes, and report the cluster as it is afterwards
description:
  - Runs on the controller. One call makes all changes, each kind for many nodes at once, and then takes a snapshot.
  - Order is resume, hold_down, drain, requeue, unpin, cancel, verify_delete, delete. The result is read
    from the controller, never from the output of a command.
  - Fails, and assumes nothing, if Slurm does not answer. The failure then has the states of the daemons.
options:
  drain:
    type: list
    elements: dict
    default: []
    description: Nodes to drain. A node that is already drained keeps its reason.
    suboptions:
      nodes: {type: list, elements: str, required: true, description: Their names.}
      reason: {type: str, required: true, description: "Starts with gpuaas: and the operation."}
  resume:
    type: list
    elements: dict
    default: []
    description: Nodes whose drain is to be lifted.
    suboptions:
      nodes: {type: list, elements: str, required: true, description: Their names.}
      owner: {type: str, required: true, description: Only drains with a reason of this owner are lifted.}
  hold_down:
    type: bool
    default: false
    description: >-
      For use before a restart of daemons. Drains nodes that a person set DOWN, with the person's reason, since the next
      registration of their slurmd would return them to service. If it is the only request, it does not fail when Slurm
      does not answer.
  requeue:
    type: list
    elements: str
    default: []
    description: >-
      Jobs to requeue, by address (100, 100_7, 200+1). A heterogeneous job is requeued as a whole.
  unpin: {type: list, elements: str, default: [], description: Pending jobs whose required nodes are cleared.}
  cancel:
    type: list
    elements: str
    default: []
    description: >-
      Jobs to cancel, by address. Component zero cancels the whole heterogeneous job; another component only itself.
  verify_delete:
    type: list
    elements: str
    default: []
    description: Nodes to check for deletion. Changes nothing.
  delete:
    type: list
    elements: str
    default: []
    description: Nodes to delete. Each is checked again first; a node in use is kept.
  claim: {type: dict, default: {}, description: "Instance, member and claim number; set by the action plugin."}
author: [gpuaas-slurm]
"""

RETURN = r"""
nodes:
  type: dict
  returned: success
  description: >-
    By node. did is one of drained, already_draining, held_by_person, held, resumed, left, deletable, deleted, absent,
    kept, unknown; reason is a sentence or null; code is set where a node may not be deleted.
jobs:
  type: dict
  returned: success
  description: >-
    By address. did is requeued, unpinned, cancelled, gone or kept; reason is the obstacle, or other jobs that ended.
drains:
  type: dict
  returned: success
  description: Each node that is set to drain, with its reason, held_by (us, person or slurm) and whether it is drained.
changes: {type: list, returned: success, description: "Changes requested of Slurm, by name."}
snapshot: {type: dict, returned: success, description: As slurm_snapshot gives it.}
"""


NO_ANSWER = "slurm_silent"
ANSWER_SECONDS = 10.0
CHANGES = ("drain", "resume", "hold_down", "requeue", "unpin", "cancel", "delete")
POLL_SECONDS = 0.2


class Call:
    """One call of the module: its requests, and the verdicts so far."""

    def __init__(self, params: dict[str, Any], dry: bool) -> None:
        self._params = params
        self._dry = dry
        self._command = nodes_command()
        self.nodes: dict[str, Verdict] = {}
        self.changes: list[str] = []

    def run(self) -> dict[str, Any]:
        self._resume(self._params["resume"])
        if self._params["hold_down"]:
            self._hold_down()
        self._drain(self._params["drain"])
        jobs = self._evict()
        self._verify(self._params["verify_delete"])
        self._delete(self._params["delete"])
        snapshot = look(self._command)
        if snapshot["nodes"] is None and not self._only_holds():
            _fail_without_answer(" after the changes")
        nodes = snapshot["nodes"] or {}
        drains = {name: _describe_drain(node) for name, node in nodes.items() if "DRAIN" in node["flags"]}
        return {
            "nodes": self.nodes,
            "jobs": jobs,
            "drains": drains,
            "changes": self.changes,
            "snapshot": snapshot,
        }

    def _only_holds(self) -> bool:
        """Whether hold_down is the only request: a slurmctld that does not answer may then be restarted."""
        requested = {kind for kind in (*CHANGES, "verify_delete") if self._params[kind]}
        return requested == {"hold_down"}

    def _resume(self, orders: list[dict[str, Any]]) -> None:
        for order in orders:
            names, owner = check_names(order["nodes"]), order["owner"]
            wanted, left = to_resume(names, owner, self._seen()["nodes"])
            self.nodes.update(left)
            if not wanted:
                continue
            complaint = self._change(wanted, "resumed", "update", "State=UNDRAIN")
            after = self._answering(wanted)
            for name in wanted:
                node = after.get(name)
                if node is None:
                    self.nodes[name] = verdict("absent", f"Node {name} was deleted meanwhile.")
                elif "DRAIN" in node["flags"] and owns(owner, node["reason"]):
                    self.nodes[name] = verdict("kept", complaint)
                else:
                    self.nodes[name] = verdict("resumed")

    def _answering(self, names: list[str]) -> dict[str, Any]:
        """The nodes once these have answered slurmctld, which shows a resumed node as not responding until then."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            nodes: dict[str, Any] = self._seen()["nodes"]
            waiting = [name for name in names if name in nodes and "NOT_RESPONDING" in nodes[name]["flags"]]
            if not waiting or self._dry or time.monotonic() > deadline:
                return nodes
            time.sleep(POLL_SECONDS)

    def _drain(self, orders: list[dict[str, Any]]) -> None:
        for order in orders:
            names, reason = check_names(order["nodes"]), check_reason(order["reason"])
            wanted, left = to_drain(names, self._seen()["nodes"])
            self.nodes.update(left)
            if not wanted:
                continue
            complaint = self._change(wanted, "drained", "update", "State=DRAIN", f"Reason={reason}")
            after = self._seen()["nodes"]
            for name in wanted:
                node = after.get(name)
                if node is None:
                    self.nodes[name] = verdict("absent", f"Node {name} was deleted meanwhile.")
                elif "DRAIN" not in node["flags"]:
                    self.nodes[name] = verdict("kept", complaint, "not_drained")
                elif node["reason"] == reason:
                    self.nodes[name] = verdict("drained", reason)
                else:
                    self.nodes[name] = standing_drain(node)

    def _hold_down(self) -> None:
        if self._dry:
            return
        # look() queries only a daemon that runs: a query to a dead one blocks until its timeout.
        held = hold_down(lambda: look(self._command)["nodes"], self._run)
        self.nodes.update({name: verdict("held", reason) for name, reason in held.items()})

    def _evict(self) -> dict[str, Verdict]:
        evictions = Evictions(lambda: self._seen()["jobs"], self._run)
        evictions.requeue(self._params["requeue"])
        evictions.unpin(self._params["unpin"])
        evictions.cancel(self._params["cancel"])
        return evictions.verdicts

    def _run(self, change: str, command: tuple[str, ...]) -> str:
        """The error text of Slurm, if any. The next look shows whether the command worked."""
        self.changes.append(change)
        if self._dry:
            return "Nothing was changed: this is a dry run."
        _, output, errors = run(*command)
        return errors or output.strip()

    def _verify(self, names: list[str]) -> None:
        seen = self._seen() if names else {}
        for name in check_names(names):
            self.nodes[name] = obstacle(name, seen) or verdict("deletable")

    def _delete(self, requested: list[str]) -> None:
        if not requested:
            return
        names, seen = check_names(requested), self._seen()
        found = {name: obstacle(name, seen) for name in names}
        wanted = [name for name in names if found[name] is None]
        self.nodes.update({name: kept for name, kept in found.items() if kept})
        if not wanted:
            return
        complaint = self._change(wanted, "deleted", "delete")
        after = self._seen()["nodes"]
        for name in wanted:
            self.nodes[name] = verdict("kept", complaint, "state_unknown") if name in after else verdict("deleted")

    def _change(self, names: list[str], done: str, verb: str, *settings: str) -> str:
        """One scontrol call for all names. Returns the error text of Slurm, or a text for a command without effect."""
        listed = ",".join(names)
        complaint = self._run(f"nodes {listed} {done}", ("scontrol", verb, f"NodeName={listed}", *settings))
        return complaint or "Slurm accepted the command, but the node did not change. The adapter retries."

    def _seen(self) -> dict[str, Any]:
        seen: dict[str, Any] = look_at_nodes(self._command)
        if seen["nodes"] is None:
            _fail_without_answer()
        return seen


def _describe_drain(node: dict[str, Any]) -> dict[str, Any]:
    return {
        "reason": node["reason"],
        "held_by": drain_holder(node["flags"], node["reason"], node["reason_by"]),
        "is_drained": is_drained(node["state"], node["flags"], node["jobs"]),
    }


def _fail_without_answer(when: str = "") -> NoReturn:
    raise AdapterError(
        NO_ANSWER,
        f"slurmctld does not answer on the controller{when}, so its nodes and jobs"
        " are unknown. The adapter retries; if the error stays, read `journalctl -u slurmctld` there.",
        RETRYABLE,
    )


def main() -> None:
    orders: dict[str, Any] = {"type": "list", "elements": "dict", "default": []}
    names: dict[str, Any] = {"type": "list", "elements": "str", "required": True}
    text = {"type": "str", "required": True}
    texts = {"type": "list", "elements": "str", "default": []}
    module = AnsibleModule(
        argument_spec={
            **CLAIM_ARGUMENT,
            "drain": {**orders, "options": {"nodes": names, "reason": text}},
            "resume": {**orders, "options": {"nodes": names, "owner": text}},
            "hold_down": {"type": "bool", "default": False},
            **dict.fromkeys(("requeue", "unpin", "cancel", "verify_delete", "delete"), texts),
        },
        supports_check_mode=True,
    )
    changes = any(module.params[kind] for kind in CHANGES)
    with host_lock(module, "changing nodes", changes=changes, begin=False):
        try:
            result = Call(module.params, module.check_mode).run()
        except AdapterError as error:
            # The states of daemons are known without Slurm. The runner can start a slurmctld that does not run.
            seen = {"phase": "controller", "snapshot": look(nodes_command())} if error.code == NO_ANSWER else None
            module.fail_json(msg=error.message, adapter_error=error.as_dict(), member_report=seen)
    module.exit_json(changed=bool(result["changes"]), **result)


if __name__ == "__main__":
    main()
