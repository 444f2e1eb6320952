"""What is changed, and the tests that concern it. A test of another file does not count as one that kills a mutant."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    files: tuple[str, ...]
    tests: tuple[str, ...]  # names of files in tests/unit, without test_ and .py


TARGETS = {
    "readiness": Target(
        ("plugins/module_utils/slurm/node_rules.py", "runner/slurm/readiness.py"),
        ("node_rules", "node_holders", "readiness", "health"),
    ),
    "leave": Target(
        (
            "runner/slurm/decide/workers/leave.py",
            "runner/slurm/decide/workers/evict.py",
            "runner/slurm/decide/workers/clean_host.py",
            "runner/slurm/decide/workers/terms.py",
            "runner/slurm/decide/workers/results.py",
            "runner/slurm/decide/workers/refusals.py",
        ),
        ("leave_steps", "leave_host_steps", "leave_messages", "eviction_messages"),
    ),
    "claims": Target(
        (
            "runner/model/claims.py",
            "runner/slurm/decide/claims.py",
            "runner/report/leases.py",
            "runner/report/claims.py",
            "runner/report/ownership.py",
            "runner/report/writes.py",
        ),
        (
            *("leases", "require_claims", "note_errors", "claims_of_a_tick", "report", "record_writes", "ownership"),
            "own_plays",
        ),
    ),
    "translate": Target(("runner/translate.py",), ("play_events", "translate")),
    "nodes": Target(
        (
            "plugins/modules/slurm_nodes.py",
            "plugins/module_utils/slurm/leave.py",
            "plugins/module_utils/slurm/evict.py",
            "plugins/module_utils/slurm/hold.py",
        ),
        (
            *("slurm_nodes", "slurm_nodes_calls", "slurm_nodes_terms", "slurm_nodes_main", "slurm_nodes_module"),
            *("evictions", "node_rules", "node_holders", "slurm_jobs"),
        ),
    ),
}
