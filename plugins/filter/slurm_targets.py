"""Rules of playbooks: the hosts, nodes, units and partitions that a play acts on, and when.

Playbooks give the variables of hosts as hostvars has them; the rules are here, typed and tested. An answer of a worker
may have any type: an unexpected one leaves that worker out and does not fail the task of another host.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from runner.slurm.node_rules import ANY_OPERATION, BY_HAND_PREFIX, OUR_PREFIX, drain_holder
from runner.slurm.reports import NODE_NAME

# The variables of one host.
Variables = Mapping[str, Any]
# An element of the options drain and resume of slurm_nodes.
Order = dict[str, Any]

# The time to set the timer on every host before a switch of the munge key.
SWITCH_LEAD_SECONDS = 5.0


# -- joining ---------------------------------------------------------------------------------------------------------


def look_before_join(controller: Variables) -> Mapping[str, Any]:
    """The controller's result of slurm_snapshot with conditions for a join: of add_worker.yml, or of deploy.yml.

    Empty if there is none: the controller is not part of the run or did not answer.
    """
    looks = (_answer(controller, name) for name in ("join_look", "baseline_look"))
    return next((look for look in looks if "join_terms" in look), {})


def is_lost_node(look: Mapping[str, Any], name: str) -> bool:
    """Whether slurmd has to be restarted to register: slurmctld polls a silent node only every minute or two."""
    return "NOT_RESPONDING" in (_nodes(look).get(name) or {}).get("flags", ())


def joined_nodes(workers: Iterable[Variables], instance: str) -> list[str]:
    """The nodes of the instance's workers on which slurmd was set up in this run."""
    return [
        worker["probed_host"]["hostname"]
        for worker in _of_instance(workers, instance)
        if _answer(worker, "slurmd_converged").get("failed") is False
    ]


def drains_to_lift(names: Iterable[str], look: Mapping[str, Any], keep: bool = False) -> list[Order]:
    """A new worker starts without the drain of an earlier removal. With `keep`, for a worker that returns, it stays.

    A drain that a person set stays in any case, also one that a person set with our playbook.
    """
    nodes = _nodes(look)
    drained = [
        name
        for name in names
        if name in nodes
        and drain_holder(nodes[name]["flags"], nodes[name]["reason"], nodes[name].get("reason_by")) == "us"
    ]
    return [{"nodes": drained, "owner": ANY_OPERATION}] if drained and not keep else []


# -- leaving ---------------------------------------------------------------------------------------------------------


def node_of_host(looked: Mapping[str, Any], member: str, on_record: Mapping[str, str]) -> str | None:
    """The name of a host's node by its ledger; None if it never ran slurmd, or if another member has the name.

    With the name of another member, that member's node would be drained and deleted.
    """
    name = looked.get("hostname")
    if "slurmd" not in (looked.get("units_noted") or []) or not isinstance(name, str) or not NODE_NAME.fullmatch(name):
        return None
    return name if on_record.get(name, member) == member else None


def drains_by_hand(names: list[str], reason: str) -> list[Order]:
    """The drain counts as the person's, so no operation lifts it."""
    return [{"nodes": names, "reason": f"{BY_HAND_PREFIX} {reason}"}] if names else []


def nodes_to_delete(workers: Iterable[Variables], without_host: Iterable[str]) -> list[str] | None:
    """Nodes whose slurmd was stopped, since a running one would register its node again; and those of lost hosts.

    None if no worker was stopped and no host is lost. A stopped worker may have no node.
    """
    stopped = [worker.get("leaving_node") for worker in workers if worker.get("decommission_stopped") is True]
    lost = list(without_host)
    return list(dict.fromkeys(name for name in (*stopped, *lost) if name)) if stopped or lost else None


# -- restarting and stopping -----------------------------------------------------------------------------------------


def followed_nodes(workers: Iterable[Variables], instance: str, serving: Collection[str]) -> list[str]:
    """The nodes to wait for: their slurmd was restarted for a configuration, and they took jobs before."""
    return [
        worker["slurm_node_name"]
        for worker in _of_instance(workers, instance)
        if _answer(worker, "follow_done").get("restarted") and worker.get("slurm_node_name") in serving
    ]


def restarted_nodes(workers: Iterable[Variables], instance: str) -> dict[str, Any]:
    """Node to the start of its slurmd, as its worker gave it. slurm_snapshot waits for each and checks the times."""
    started = {
        worker.get("slurm_node_name"): _answer(_answer(worker, "restart_done"), "started").get("slurmd")
        for worker in _of_instance(workers, instance)
    }
    return {name: at for name, at in started.items() if name is not None and at is not None}


def closed_partitions(states: Mapping[str, str] | None) -> dict[str, str]:
    """The states to restore after a restart of slurmctld, which opens every partition."""
    return {name: state for name, state in (states or {}).items() if state != "UP"}


def worker_units(allocation: str, controllers_allocation: str) -> list[str]:
    """A worker's units to stop. On a machine that the controller is on too, it needs munge, and stops it later."""
    return ["slurmd"] if allocation == controllers_allocation else ["slurmd", "munge"]


# -- recovering ------------------------------------------------------------------------------------------------------


def drains_to_undo(workers: Iterable[Variables], undrain: bool) -> list[Order]:
    """If a person asks for it: all drains that the adapter set on mended workers, also by its playbooks by hand."""
    names = [worker["slurm_node_name"] for worker in _mended(workers)]
    return [{"nodes": names, "owner": OUR_PREFIX}] if undrain and names else []


def nodes_to_await(workers: Iterable[Variables], looked: Mapping[str, Any]) -> list[str]:
    """The nodes of workers whose slurmd may have been started. A drained node does not come to serve."""
    nodes = _nodes(looked)
    return [
        worker["slurm_node_name"]
        for worker in _mended(workers)
        if worker["recover_mended"].get("changed")
        and "slurmd" in worker["recover_mended"]["units"]
        and "DRAIN" not in (nodes.get(worker["slurm_node_name"]) or {}).get("flags", ())
    ]


def _mended(workers: Iterable[Variables]) -> list[Variables]:
    """The workers that mend_host succeeded on and that have a node."""
    return [
        worker
        for worker in workers
        if isinstance(_answer(worker, "recover_mended").get("units"), Mapping) and worker.get("slurm_node_name")
    ]


# -- rotating the munge key ------------------------------------------------------------------------------------------


def unprepared_hosts(hosts: Iterable[Variables], answering: Collection[str], leave_out_silent: bool) -> list[str]:
    """The hosts because of which no host changes its key: the new key is not staged on them.

    Whether to leave out a host that does not answer is decided by the runner, by the jobs on it, or by a person.
    """
    held: list[str] = []
    silent: list[str] = []
    for host in hosts:
        name = host["inventory_hostname"]
        if name not in answering:
            silent.append(name)
        elif "ready" not in _answer(host, "rotation_staged"):
            held.append(name)
    return held + ([] if leave_out_silent else silent)


def switch_time(now: float, began: float) -> float:
    """Late enough to set every timer: the check of all hosts, since `began`, shows how long a round takes."""
    return now + max(SWITCH_LEAD_SECONDS, 2 * (now - began))


# -- variables of hosts ----------------------------------------------------------------------------------------------


def _of_instance(workers: Iterable[Variables], instance: str) -> list[Variables]:
    return [worker for worker in workers if worker.get("gpuaas_app_instance_id") == instance]


def _answer(variables: Variables, name: str) -> Mapping[str, Any]:
    """A registered result, or a mapping in one; empty if it is something else."""
    value = variables.get(name)
    return value if isinstance(value, Mapping) else {}


def _nodes(look: Mapping[str, Any]) -> Mapping[str, Any]:
    """The nodes of a result with a snapshot; empty if they are unknown."""
    return _answer(_answer(look, "snapshot"), "nodes")


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        rules: tuple[Callable[..., Any], ...] = (
            *(look_before_join, is_lost_node, joined_nodes, drains_to_lift),
            *(node_of_host, drains_by_hand, nodes_to_delete),
            *(followed_nodes, restarted_nodes, closed_partitions, worker_units),
            *(drains_to_undo, nodes_to_await),
            *(unprepared_hosts, switch_time),
        )
        return {rule.__name__: rule for rule in rules}
