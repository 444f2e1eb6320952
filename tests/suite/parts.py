"""The parts of the test suite: the command, the Debian and the tier of each.

A tier is a set of parts. `fast` is for every change, `test` guards a merge, `full` is everything. A larger tier
has all parts of the smaller ones. tests/README.md says which scenarios run on Debian 13 in `test`, and why.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.fleet.images import SUITES
from tests.mutants.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]
TIERS = ("fast", "test", "full")


class UnknownPartError(ValueError):
    """No part has this name."""


@dataclass(frozen=True)
class Part:
    """One process of the suite. `seconds` is its time on two busy cores; it decides only the order."""

    name: str
    argv: tuple[str, ...]
    tier: str
    seconds: int
    files: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """First word of the name: lint, unit, python3.13, contract, mutants, molecule, e2e, kill-points or image."""
        return self.name.split(" ")[0]

    @property
    def slug(self) -> str:
        return self.name.replace(" ", "-").replace(",", "-")[:60].rstrip("-")

    def in_tier(self, tier: str) -> bool:
        return TIERS.index(self.tier) <= TIERS.index(tier)


def image(kind: str) -> Part:
    """Build one host image, `SUITE` or `SUITE:warm`, unless it exists."""
    return Part(f"image {kind}", ("python", "-m", "sandbox.fleet.images", kind), "fast", 60)


def pytest(
    name: str, tier: str, seconds: int, files: Iterable[str], *options: str, images: Iterable[str] = (), **more: str
) -> Part:
    """A part that runs test files or single tests in one process. Keywords are environment variables."""
    listed = tuple(files)
    own = tuple(file for file in listed if "::" not in file)
    return Part(name, ("pytest", "-q", *listed, *options), tier, seconds, own, tuple(images), more)


@dataclass(frozen=True)
class EndToEnd:
    """End-to-end tests that share a process. `tiers` says from which tier on each Debian runs."""

    modules: str
    seconds: int
    tiers: Mapping[str, str]
    bare: bool = False
    more_images: tuple[str, ...] = ()

    def parts(self) -> list[Part]:
        files = tuple(f"tests/e2e/test_{module}.py" for module in self.modules.split(","))
        made = []
        for suite, tier in self.tiers.items():
            images = (f"{suite}:warm", *([suite] if self.bare else []), *self.more_images)
            # A scenario of one Debian names it in its own fixture; one of both is narrowed to the part's.
            narrowed = ("--suite", suite) if len(self.tiers) > 1 else ()
            made.append(pytest(f"e2e {self.modules} {suite}", tier, self.seconds, files, *narrowed, images=images))
        return made


IN_FULL = {"bookworm": "full", "trixie": "full"}
DEBIAN_13_IN_FULL = {"bookworm": "test", "trixie": "full"}

END_TO_END = (
    # Both Debians in every merge: Slurm's output or abilities differ.
    EndToEnd("cluster,by_hand", 190, {"bookworm": "fast", "trixie": "test"}),
    EndToEnd("decommission", 400, {"trixie": "test", "bookworm": "full"}, bare=True, more_images=("trixie:warm",)),
    # Debian 12 in every merge; Debian 13 in `full`.
    EndToEnd("lifecycle", 600, DEBIAN_13_IN_FULL, bare=True),
    EndToEnd("access,gpus,users", 230, DEBIAN_13_IN_FULL),
    # Both in `full` for their time; unit/test_slurm_reload.py and test_slurm_activate.py hold the rules.
    EndToEnd("change", 350, IN_FULL, more_images=("bookworm:warm",)),
    # Both in `full` for their time; unit/test_health.py and test_rotation.py hold the decisions, without hosts.
    EndToEnd("health", 320, IN_FULL),
    EndToEnd("rotation,instance", 480, IN_FULL),
    # Both in `full`; e2e decommission tests a database server that others use on Debian 13 in every merge.
    EndToEnd("foreign_data", 240, IN_FULL, bare=True),
    # Both in `full`; unit/test_slurm_jobs.py and test_jobs_in_the_way.py test the same rules in every merge.
    EndToEnd("jobs", 150, IN_FULL),
    # Both in `full`; worker_faults adds several workers in one run.
    EndToEnd("bulk", 140, IN_FULL),
    # Both in `full`; unit/test_accounting_steps.py holds the same rules by property in every merge.
    EndToEnd("shared", 420, IN_FULL),
    # Both in `full`; contract/test_shared_runner.py has the runner, with simulated hosts, in every merge.
    EndToEnd("shared_runtime", 600, IN_FULL),
    # Both in `full`; unit/test_contributed.py and contract/test_shared_commands.py hold the decisions in every merge.
    EndToEnd("contributed", 600, IN_FULL),
    # Both Debians in `full`: long.
    EndToEnd("upgrade", 700, IN_FULL),
    # Both in `full`; unit/test_former_notes.py reads the recorded notes and ledgers in every merge.
    EndToEnd("takeover", 300, IN_FULL),
    # One Debian only, which the module names itself: the adapter's decisions, not Slurm's output.
    # killed_anywhere, worker_faults and artifacts are in `full` for their time.
    EndToEnd("killed_anywhere", 600, {"trixie": "full"}),
    EndToEnd("two_runners", 150, {"trixie": "full"}),
    # contract/test_independence.py tests the same in every merge, without hosts.
    EndToEnd("hanging", 1000, {"bookworm": "full"}),
    EndToEnd("worker_faults", 500, {"trixie": "full"}),
    EndToEnd("artifacts", 240, {"trixie": "full"}, bare=True),
    EndToEnd("host_keys", 130, {"bookworm": "test"}),
    EndToEnd("host_faults", 90, {"bookworm": "test"}, bare=True),
    # contract/test_canaries.py looks for the same secrets in every merge, in what the runner and its plays write.
    EndToEnd("canaries", 220, {"bookworm": "full"}),
    # unit/test_supply_chain.py checks the lock, the Containerfile and the content of the image in every merge.
    EndToEnd("image", 180, {"bookworm": "full"}),
    EndToEnd("compromised_worker", 150, {"bookworm": "full"}),
    # contract/test_smoke.py runs every chapter in every merge, on simulated hosts.
    EndToEnd("smoke", 500, {"bookworm": "full"}),
    EndToEnd("platform_faults", 65, {"bookworm": "test"}),
    # contract/test_placement_policy.py and test_catalog.py test the same in every merge, without hosts.
    EndToEnd("policy", 120, {"bookworm": "full"}),
    # contract/test_second_app.py takes another app through the core in every merge, without hosts.
    EndToEnd("example_app", 200, {"trixie": "full"}, bare=True),
    # The adapter's decisions, shown on one Debian; decommission has both roles on one host in every merge.
    EndToEnd("same_node", 200, {"bookworm": "full"}),
    EndToEnd("neighbours", 240, {"bookworm": "full"}),
)

# Contract tests in which a runner takes clusters through much of their life; the others ask for an answer or two.
WHOLE_RUNS = (
    "canaries",
    "independence",
    "killed_anywhere",
    "other_contract",
    "smoke",
    "smoke_interrupted",
    "two_processes",
    "two_runners",
)

# Every write and every point of every play. The names are parameters of one test in contract/test_killed_anywhere.py.
KILL_POINTS = (
    "deploy,add,bulk-add",
    "drain,drain-until-a-deadline,cancel-of-a-drain,remove,remove-of-a-busy-node,replace",
    "stop,stop-under-a-job,start,restart,retry",
    "upgrade,rollback,rotation,decommission",
)


def _kill_points(scenarios: str) -> Part:
    file = "tests/contract/test_killed_anywhere.py"
    name = "test_after_a_kill_anywhere_the_next_runner_reaches_the_same_end"
    chosen = [f"{file}::{name}[{scenario}]" for scenario in scenarios.split(",")]
    return pytest(f"kill-points {scenarios}", "full", 900, chosen, GPUAAS_EVERY_POINT="1")


LINT = {
    "python": "ruff check . && ruff format --check . && lint-imports --no-logo --no-cache && mypy",
    "ansible": "yamllint --strict . && ansible-lint --offline && cd examples/web_farm && ansible-lint --offline",
}


def all_parts() -> list[Part]:
    """Every part except the images, which `choose` adds."""
    return [
        *(Part(f"lint {name}", ("sh", "-ec", command), "fast", 40) for name, command in LINT.items()),
        pytest("unit", "fast", 300, ["tests/unit"]),
        # The other Python that the README promises; `unit` runs on the machine's own.
        Part("python3.13 unit", ("python", "-m", "tests.suite.other_python"), "full", 300, images=("trixie",)),
        # Each change to the rules about nodes, leaving, claims and events must make a test fail.
        *(Part(f"mutants {name}", ("python", "-m", "tests.mutants", name), "full", 400) for name in TARGETS),
        *contract_parts(),
        pytest(
            "e2e fleet", "test", 100, ["tests/e2e/test_fleet.py"], images=("bookworm", "bookworm:warm", "trixie:warm")
        ),
        *(part for one in END_TO_END for part in one.parts()),
        *molecule_parts(),
        *(_kill_points(scenarios) for scenarios in KILL_POINTS),
    ]


def contract_parts() -> list[Part]:
    """Two that run side by side: runs of whole clusters, killed ones among them, take two thirds of the time."""
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "contract").glob("test_*.py"))
    runs = [f"tests/contract/test_{name}.py" for name in WHOLE_RUNS]
    return [
        pytest("contract runs", "fast", 500, runs),
        pytest("contract", "fast", 300, [file for file in files if file not in runs]),
    ]


def molecule_parts(scenarios: Path = ROOT / "molecule") -> list[Part]:
    """One part per scenario; each runs both Debians."""
    images = tuple(f"{suite}{warm}" for suite in SUITES for warm in ("", ":warm"))
    names = sorted(path.parent.name for path in scenarios.glob("*/molecule.yml"))
    run = ("python", "-m", "tests.suite.role_tests")
    return [Part(f"molecule {name}", (*run, name), "test", 300, images=images) for name in names]


def choose(names: Iterable[str]) -> list[Part]:
    """The parts of each tier, kind or name, after the images that they need. A name may have several words."""
    chosen: dict[str, Part] = {}
    for name in names:
        found = [part for part in all_parts() if _matches(part, name)]
        if not found:
            raise UnknownPartError(_unknown(name))
        chosen |= {part.name: part for part in found}
    needed = dict.fromkeys(kind for part in chosen.values() for kind in part.images)
    return [*(image(kind) for kind in needed), *chosen.values()]


def _matches(part: Part, name: str) -> bool:
    if name in TIERS:
        return part.in_tier(name)
    if name in {one.kind for one in all_parts()}:
        return part.kind == name
    return bool(name.split()) and all(one in part.name for one in name.split())


def _unknown(name: str) -> str:
    if name.endswith(".py") or "::" in name:
        return f"{name!r} is not a part; run a file or a test with: . .venv/bin/activate && pytest {name}"
    near = difflib.get_close_matches(name, [part.name for part in all_parts()], n=3, cutoff=0.4)
    meant = f"; near: {', '.join(map(repr, near))}" if near else ""
    return f"no part is called {name!r}{meant}; ./dev test list prints all names"


def forgotten_files(tests: Path = ROOT / "tests") -> list[str]:
    """Test files that belong to no part and would never run."""
    run = [file for part in all_parts() for file in part.files]
    found = sorted(str(path.relative_to(tests.parent)) for path in tests.rglob("test_*.py"))
    return [file for file in found if not any(file == one or file.startswith(f"{one}/") for one in run)]
