"""The manifest declares what the code can do: the platform offers operations by it."""

from pathlib import Path

import yaml
from typer.main import get_group

from runner.cli.member_operations import op
from runner.slurm.decide import VERBS
from runner.slurm.decide.workers.refusals import VERBS as WORKER_VERBS

MANIFEST = yaml.safe_load((Path(__file__).resolve().parents[2] / "app" / "manifest.yaml").read_text())


def test_the_manifest_lists_every_verb_and_no_other() -> None:
    assert sorted(MANIFEST["instance_operations"]) == sorted(VERBS)
    assert sorted(MANIFEST["member_operations"]["worker"]) == sorted(WORKER_VERBS)


def test_every_verb_has_a_command() -> None:
    from runner.cli import main  # noqa: F401  puts the verbs for instances beside those for members

    commands = {name.replace("-", "_") for name in get_group(op).commands}
    assert {*VERBS, *WORKER_VERBS} <= commands


def test_every_verb_can_be_followed_to_its_end() -> None:
    from runner.cli import main  # noqa: F401

    commands = {name.replace("-", "_"): command for name, command in get_group(op).commands.items()}
    for verb in (*VERBS, *WORKER_VERBS):
        assert {"--wait", "--timeout"} <= {flag for one in commands[verb].params for flag in one.opts}, verb
