"""The page of the known gaps. `python -m tests.gaps` writes docs/gaps.md from app/gaps.yaml."""

from pathlib import Path

from runner.cli.gaps import read_known
from runner.model.gaps import Gap

ROOT = Path(__file__).resolve().parents[1]
DATA, PAGE = ROOT / "app" / "gaps.yaml", ROOT / "docs" / "gaps.md"
HEAD = """# Gaps in the platform's contract

What the adapter needs and the platform's public documents do not show, as far as it is known without a platform.
This page is made from [app/gaps.yaml](../app/gaps.yaml) by `python -m tests.gaps`. `gpuaas-slurm gaps` prints the
same, and beside it what differs on a real platform: it makes every read of the runner once, with the runner's
identity, and writes nothing. A runner that meets a gap logs it once, as `gap in the platform's contract`.

| kind | who has to act |
| --- | --- |
| `platform_primitive` | the platform: something that every app needs is missing |
| `read_surface` | the platform: it exists, and no public call shows it |
| `permission` | the platform: a service account cannot get the right to it |
| `app` | the adapter: what it sent was wrong |
| `environment` | whoever installed the runner: network, certificates, credentials |

| pilot | what the core has to change |
| --- | --- |
| `core_primitive` | add a primitive |
| `core_coupling` | no longer interpret what belongs to the app |
| `action_key` | add or grant an action key |
| `event` | take an event that triage needs |
| `usage_attribution` | show a field that usage is attributed by |

What is written for a member that is stopped or drained is decided in
[0082](decisions/0082-stopped-and-drained-members.md). Names that only differ are no gap: a [mapping
file](usage/contract.md) says what they are called.

## Known today

"""


def page(found: list[Gap]) -> str:
    lines = ["| expected | what there is | what the adapter does meanwhile | kind, pilot | call |", "| --- " * 5 + "|"]
    for one in found:
        kinds = f"`{one.kind}`, `{one.pilot}`" if one.pilot else f"`{one.kind}`"
        cells = (one.expected, one.came, one.meanwhile, kinds, f"`{one.call}`, {one.basis}")
        lines.append(f"| {' | '.join(cells)} |")
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(read_known(DATA)))
