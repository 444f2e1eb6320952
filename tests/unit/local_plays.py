"""Real plays by real ansible-runner on this machine: hosts are local connections, modules on them are stubs.

Each host has an interpreter of its own, a script that starts Python and may change what a module returned, as whoever
has root on a host can. Playbooks, roles, action plugins, ansible.cfg and the runner's side are the project's own.
"""

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.act import bundle, inventory, plays
from runner.act.play_queue import PlaySlot
from runner.act.play_secrets import Access
from runner.model import names
from runner.model.plan import Play
from runner.model.platform import Member
from runner.model.world import World
from runner.settings import Settings
from runner.slurm import app as slurm_app
from runner.telemetry.tracer import TracedPlay
from runner.translate import MemberEvent, RunResult

ROOT = Path(__file__).resolve().parents[2]
LINKED = (
    "app",
    "plugins/action",
    "plugins/filter",
    "plugins/module_utils",
    "plugins/vars",
    "inventory_plugins",
    "roles",
)
HONEST = "pass"
SECRETS = """
from ansible.plugins.lookup import LookupBase
class LookupModule(LookupBase):
    def run(self, terms, variables=None, **options):
        return ["a2V5"]
"""

SLURM = """
up = dict.fromkeys(["munge", "slurmctld", "slurmdbd", "mariadb"], "active")
seen = {"ping": "UP", "hostname": "ctl", "cluster_name": "gs0", "submit_account": "default"}
seen |= {"slurm_version": "22.05.8", "slurmdbd_version": "22.05.8", "package_version": "22.05.8-4"}
node = {"state": "IDLE", "flags": ["DYNAMIC_NORM"], "reason": None, "cpus": 2, "memory_mb": 1000, "jobs": []}
node |= {"slurm_version": "22.05.8", "address": "10.0.0.9"}
victim = {**node, "flags": ["DRAIN", "DYNAMIC_NORM"], "reason": "gpuaas:op-1: removed", "address": "10.0.0.3"}
snapshot = {
    "observed_at": "2026-01-02T03:04:05Z",
    "controller": {**up, **seen, "config_version": "sha256:abc"},
    "nodes": {"victim": victim, **{name: node for name in asked.get("wait_for_nodes", [])}},
    "jobs": [], "reservations": [], "partitions": {"main": "UP"},
}
"""
STUB = f"""#!/usr/bin/python
# WANT_JSON
import json, os, sys
asked = {{{{key: value for key, value in json.load(open(sys.argv[1])).items() if not key.startswith("_ansible_")}}}}
host = os.environ["STUB_HOST"]
with open(os.environ["STUB_ASKED"], "a") as file:
    file.write(json.dumps({{{{"module": "{{name}}", "host": host, **asked}}}}) + "\\n")
{SLURM.replace("{", "{{").replace("}", "}}")}
{{text}}
print(json.dumps(answer))
"""
# Hosts on which all is as it should be: a controller with a drained node `victim`, and whatever node is waited for.
STUBS = {
    "host_probe": """
answer = {"os_id": "debian", "os_version": "12", "multiarch": "x86_64-linux-gnu", "hostname": host, "cpus": 2}
answer |= {"memory_mb": 1000, "gpus": [], "gres": "", "gres_conf": "", "process_control": "linuxproc"}
answer |= {"addresses": ["10.0.0.9"], "cgroup": {"version": "v2", "writable": True}, "slurm_version": "22.05.8"}
""",
    "slurm_snapshot": """
answer = {"snapshot": snapshot, "serving": [], "missing": []}
if asked.get("reference_epoch"):
    answer["join_terms"] = {"skew": 0, "slurm_user": None, "credential": "MUNGE:x"}
""",
    "slurm_nodes": """
results = {"delete": "deleted", "verify_delete": "deletable"}
done = {name: {"did": result} for verb, result in results.items() for name in asked.get(verb) or []}
answer = {"snapshot": snapshot, "nodes": done, "changes": []}
""",
    "converge_host": """
answer = {"units": {"munge": "active", "slurmd": "active"}, "digests": {"config": "sha256:abc"}}
answer |= {"packages": {"slurmd": "22.05.8-4"}}
""",
    "restore_host": """
answer = {"hostname": host, "units_noted": ["slurmd"], "residue": [], "logs_kept": None}
""",
}
# Runs the module as it is, then whatever the test adds, with the answer in `result`; prints `result` and `more`.
INTERPRETER = """#!{python} -IS
import base64, json, os, subprocess, sys
os.environ["STUB_HOST"] = {name!r}
os.environ["STUB_ASKED"] = {asked!r}
done = subprocess.run([{python!r}, "-IS", *sys.argv[1:]], capture_output=True, text=True)
module = os.path.basename(sys.argv[1]).removeprefix("AnsiballZ_").removesuffix(".py") if len(sys.argv) > 1 else ""
try:
    result, more = json.loads(done.stdout), ""
except ValueError:
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    sys.exit(done.returncode)
{forgeries}
print(json.dumps(result))
print(more)
sys.exit(done.returncode)
"""


class LocalPlays:
    """A bundle in a scratch directory, with the project's playbooks or the test's own."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bundle = directory / "bundle"
        self.asked_file = directory / "asked.jsonl"
        self.events: list[MemberEvent] = []
        self.of_every_host = HONEST  # as `forgeries`, for hosts that have none of their own
        self._forgeries: dict[str, str] = {}
        for name in LINKED:
            (self.bundle / name).parent.mkdir(parents=True, exist_ok=True)
            (self.bundle / name).symlink_to(ROOT / name)
        shutil.copy(ROOT / "ansible.cfg", self.bundle)
        shutil.copytree(ROOT / "playbooks", self.bundle / "playbooks")
        (self.bundle / "plugins" / "modules").mkdir()
        for name, text in STUBS.items():
            self.module(name, text)
        (self.bundle / "plugins" / "lookup").mkdir()
        (self.bundle / "plugins" / "lookup" / "runtime_secret.py").write_text(SECRETS)
        monkeypatch.setattr(bundle, "bundle_dir", lambda: self.bundle)
        monkeypatch.setattr(inventory, "build", self._build)

    def forgeries(self, member: Member, code: str) -> None:
        """What the member's host makes of each answer: Python that changes `result`, or adds text in `more`."""
        self._forgeries[names.host_name(member)] = code

    def playbook(self, name: str, text: str) -> None:
        (self.bundle / "playbooks" / f"{name}.yml").write_text(text)

    def module(self, name: str, text: str) -> None:
        """A stub: Python that sets `answer`; it has `asked`, `host` and what SLURM below defines."""
        (self.bundle / "plugins" / "modules" / f"{name}.py").write_text(STUB.format(name=name, text=text))

    def play(
        self,
        step: Play,
        world: World,
        *,
        seconds: int = 120,
        give_up: Callable[[], bool] = lambda: False,
        slot: PlaySlot | None = None,
        traced: TracedPlay | None = None,
    ) -> RunResult:
        settings = Settings.model_construct(play_timeout_seconds=seconds)
        slot = slot or PlaySlot(requested=True, hosts=4, forks=4)
        return plays.play(
            *(step, world, slurm_app.SLURM, Access({}), settings),
            on_member_event=self.events.append,
            give_up=give_up,
            slot=slot,
            traced=traced,
        )

    def by_hand(
        self, playbook: str, world: World, *members: Member, **variables: str
    ) -> "subprocess.CompletedProcess[str]":
        """The same play as a person starts it, with `variables` on the command line."""
        tree, _ = inventory.build(slurm_app.SLURM, world.instance, members, world.allocations)
        (self.bundle / "hosts.yml").write_text(json.dumps(tree))
        command = str(Path(sys.executable).parent / "ansible-playbook")
        return subprocess.run(
            [command, "-i", "hosts.yml", f"playbooks/{playbook}.yml", "-e", json.dumps(variables)],
            cwd=self.bundle,
            env={**os.environ, "ANSIBLE_HOME": str(self.bundle / "home"), "ANSIBLE_NOCOLOR": "1"},
            capture_output=True,
            text=True,
            check=False,
        )

    def asked(self, module: str) -> list[dict[str, Any]]:
        """The arguments with which hosts ran a stub."""
        if not self.asked_file.exists():
            return []
        lines = [json.loads(line) for line in self.asked_file.read_text().splitlines()]
        return [line for line in lines if line["module"] == module]

    def _build(self, *arguments: Any, **options: Any) -> Any:
        tree, problems = _REAL_BUILD(*arguments, **options)
        for name, variables in tree["all"]["hosts"].items():
            variables |= {"ansible_connection": "local", "ansible_become": False}
            variables["ansible_python_interpreter"] = str(self._interpreter(name))
        return tree, problems

    def _interpreter(self, name: str) -> Path:
        path = self.bundle / f"python-{name}"
        forgeries = self._forgeries.get(name, self.of_every_host)
        path.write_text(
            INTERPRETER.format(python=sys.executable, name=name, asked=str(self.asked_file), forgeries=forgeries)
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path


_REAL_BUILD = inventory.build
