"""What is changed, and the tests that concern it. A test of another file does not count as one that kills a mutant."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    files: tuple[str, ...]
    tests: tuple[str, ...]  # names of files in tests/unit, without test_ and .py


TARGETS = {
    "readiness": Target(
        ("plugins/module_utils/slurm/node_rules.py", "runner/slurm/readiness.py"),
        ("node_rules", "readiness", "health"),
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
        ("leave_steps", "leave_words"),
    ),
    "claims": Target(
        (
            "runner/model/claims.py",
            "runner/slurm/decide/claims.py",
            "runner/report/leases.py",
            "runner/report/claims.py",
        ),
        ("leases", "require_claims", "claims_of_a_tick"),
    ),
    "translate": Target(("runner/translate.py",), ("play_events", "translate")),
    "nodes": Target(
        (
            "plugins/modules/slurm_nodes.py",
            "plugins/module_utils/slurm/leave.py",
            "plugins/module_utils/slurm/evict.py",
            "plugins/module_utils/slurm/hold.py",
        ),
        ("slurm_nodes", "slurm_nodes_module", "node_rules", "slurm_jobs"),
    ),
}
