"""Nothing hostile in a record reaches a host, and none of it stops a tick."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from runner.act.inventory import build
from runner.intent import addresses
from runner.intent.errors import IntentError
from runner.model.member_notes import MemberNotes
from runner.model.platform import Allocation
from runner.model.records import PROBLEM_BYTES
from runner.slurm import cluster_config
from runner.slurm.app import SLURM
from runner.slurm.notes import ControllerNotes, SlurmNotes, WorkerNotes
from tests.unit import hostile
from tests.unit.worlds import KEY, add, allocation, controller, instance, worker

ROOT = Path(__file__).resolve().parents[2]
# The same examples each time: what is found here once is written down as an example, not met by chance.
thorough = settings(derandomize=True, max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))

CONNECTION = st.dictionaries(
    st.sampled_from(["host", "port", "username", "host_keys", "hostname", "ansible_connection", "private_key_file"]),
    hostile.anything | st.just(22) | st.just([KEY]) | st.lists(hostile.text | st.just(KEY), max_size=3),
    max_size=7,
)
KEYS = st.sampled_from(sorted(cluster_config.CHOOSABLE)) | st.sampled_from(
    ["Prolog", "Include", "PluginDir", "NodeName"]
)
CONFIG = st.fixed_dictionaries(
    {},
    optional={
        "cluster_name": hostile.anything | st.just("mine"),
        "slurm": hostile.anything | st.dictionaries(KEYS | hostile.text, hostile.anything | st.just("1"), max_size=4),
        "ansible_connection": hostile.anything,
    },
)

# By variable: the only form it may have.
UUID_TEXT = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
SSH = (
    r"-o UserKnownHostsFile=/dev/null -o GlobalKnownHostsFile=/dev/null -o StrictHostKeyChecking=yes"
    rf" -o HostKeyAlias=gpuaas-{UUID_TEXT} -o HostKeyAlgorithms=[a-z0-9,-]+"
    rf" -o KnownHostsCommand='/bin/echo gpuaas-{UUID_TEXT} [a-z0-9-]+ [A-Za-z0-9+/]+=*'"
    r" -o UpdateHostKeys=no -o PasswordAuthentication=no -o BatchMode=yes -o LogLevel=ERROR"
)
FORMS: dict[str, str] = {
    "ansible_host": r"[A-Za-z0-9][A-Za-z0-9.:-]*|[0-9a-f]*:[0-9a-f:.]+",
    "ansible_port": r"[0-9]{1,5}",
    "ansible_user": r"[a-z_][a-z0-9_-]*",
    "ansible_connection": r"ssh",
    "ansible_become": r"True",
    "ansible_ssh_common_args": SSH,
    "gpuaas_member_id": UUID_TEXT,
    "gpuaas_host_touched": r"True|False",
    "gpuaas_component_key": r"controller|worker",
    "gpuaas_allocation_id": UUID_TEXT,
    "gpuaas_allocation_gpus": r"None|[0-9]{1,4}",
    "slurm_node_name": r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?",
}
SHARED: dict[str, str] = {
    "gpuaas_app_instance_id": UUID_TEXT,
    "gpuaas_project_id": UUID_TEXT,
    "gpuaas_correlation_id": r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}",
    "slurm_cluster_name": r"[a-z][a-z0-9]{0,31}",
    "slurm_controller_host": r"controller-[0-9a-f]{8}",
    "slurm_controller_addr": FORMS["ansible_host"],
}


def assert_clean(tree: dict[str, Any]) -> None:
    """Every variable has its form, and none that has no form is there."""
    for name, variables in tree["all"]["hosts"].items():
        assert re.fullmatch(r"(controller|worker)-[0-9a-f]{8}", name)
        for key, value in variables.items():
            assert re.fullmatch(FORMS[key], str(value), re.ASCII), (key, value)
        assert addresses.is_allowed(variables["ansible_host"])
    for group in tree["all"]["children"].values():
        for key, value in group.get("vars", {}).items():
            if key == "slurm_config":
                for setting, text in value.items():
                    assert setting.lower() in cluster_config.CHOOSABLE
                    assert (
                        re.fullmatch(r"(?!-)[A-Za-z0-9_.,:;/@%+*=\[\]()-]{1,1024}", text, re.ASCII) and ".." not in text
                    )
            elif key in SHARED:
                assert re.fullmatch(SHARED[key], str(value), re.ASCII), (key, value)
    assert not re.search(r"\{\{|\{%|\{#|\\n|\\u", json.dumps(tree))


@thorough
@given(CONNECTION, CONFIG, hostile.anything, st.dictionaries(hostile.text, hostile.anything, max_size=3))
def test_a_record_becomes_variables_of_strict_form_or_its_member_is_refused(
    connection: dict[str, Any], config: dict[str, Any], hostname: Any, more: dict[str, Any]
) -> None:
    hosts = {UUID(int=101): allocation(1, connection=connection), UUID(int=102): allocation(2)}
    detail = {**more, "worker_hostname": hostname}
    members = [controller(adapter_detail=detail), worker(add(2), 2, adapter_detail=detail)]
    tree, problems = build(SLURM, instance(config=config), members, hosts)
    assert_clean(tree)
    for problem in problems.values():
        assert isinstance(problem, IntentError) and len(problem.message) < 600


@pytest.mark.parametrize("field", ["host", "username"])
@pytest.mark.parametrize("text", hostile.TEXTS)
def test_each_hostile_text_is_refused_where_a_host_or_a_user_belongs(field: str, text: str) -> None:
    connection = {"host": "10.0.0.9", "port": 22, "username": "ops", "host_keys": [KEY], field: text}
    tree, problems = build(SLURM, instance(), [controller()], {UUID(int=101): allocation(1, connection=connection)})
    assert_clean(tree)
    harmless = {
        "host": ("local", "ALL", "root", "NaN"),
        "username": ("local", "root", "localhost", "ip6-loopback"),
    }[field]
    assert bool(problems) == (text not in harmless)


@pytest.mark.parametrize("gpus", [-1, 10**9])
def test_a_number_of_gpus_that_no_host_has_is_refused(gpus: int) -> None:
    _, problems = build(SLURM, instance(), [controller()], {UUID(int=101): allocation(1, gpus=gpus)})
    assert [problem.code for problem in problems.values()] == ["allocation_invalid"]


def test_what_the_platform_calls_an_id_is_one() -> None:
    for text in hostile.TEXTS:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}", text, re.ASCII):
            with pytest.raises(ValidationError):
                instance(correlation_id=text)
        with pytest.raises(ValidationError):
            Allocation(id=text, status="active")  # type: ignore[arg-type]


# -- on the runner's own machine -----------------------------------------------------------------------------

# What makes Ansible act on, or write to, the machine it runs on.
AT_HOME = {
    "fetch",
    "slurp",
    "synchronize",
    "local_action",
    "add_host",
    "script",
    "raw",
    "unarchive",
    "include_vars_dir",
    "git",
    "get_url",
}


def plays_and_tasks() -> list[tuple[Path, Any]]:
    files = [*ROOT.glob("playbooks/**/*.yml"), *ROOT.glob("roles/*/tasks/*.yml"), *ROOT.glob("roles/*/handlers/*.yml")]
    found: list[tuple[Path, Any]] = []

    def walk(path: Path, value: Any) -> None:
        for item in value if isinstance(value, list) else value.values() if isinstance(value, dict) else []:
            if isinstance(item, dict):
                found.append((path, item))
            walk(path, item)

    for file in files:
        walk(file, yaml.safe_load(file.read_text()))
    return found


def test_nothing_is_fetched_from_a_host_and_no_task_runs_on_the_runners_machine() -> None:
    checked = plays_and_tasks()
    assert len(checked) > 50
    for path, task in checked:
        keywords = {str(key).rpartition(".")[2] for key in task}
        assert not keywords & (AT_HOME | {"delegate_to", "connection"}), (path, keywords)
        assert "localhost" not in str(task.get("hosts", "")), path


def test_no_lookup_of_a_play_reads_a_file_or_runs_a_program_of_a_hosts_choosing() -> None:
    texts = [*ROOT.glob("playbooks/**/*.yml"), *ROOT.glob("roles/**/*.yml"), *ROOT.glob("roles/**/*.j2")]
    used = {name for file in texts for name in re.findall(r"(?:lookup|query|q)\(\s*'([\w.]+)'", file.read_text())}
    assert used == {"runtime_secret", "ansible.builtin.template"}
    for file in texts:
        for template in re.findall(r"lookup\('ansible\.builtin\.template', ([^)]*)\)", file.read_text()):
            assert re.fullmatch(r"'[a-z.]+\.j2'", template), file


def run_ansible(tmp_path: Path, name: str, tree: dict[str, Any]) -> str:
    (tmp_path / name).write_text(json.dumps(tree))
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "ansible"),
            "all",
            "-i",
            str(tmp_path / name),
            "-m",
            "debug",
            "-a",
            "msg={{ hostvars[inventory_hostname] | to_json }}",
        ],
        env={**os.environ, "ANSIBLE_HOME": str(tmp_path), "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr


def test_a_template_in_a_record_is_never_evaluated_by_ansible(tmp_path: Path) -> None:
    mark = tmp_path / "owned"
    evil = f"{{{{ lookup('pipe', 'touch {mark}') }}}}"
    wicked = {"host": evil, "port": 22, "username": evil, "host_keys": [f"{KEY} {evil}"], "ansible_connection": "local"}
    half = {"host": "10.0.0.9", "port": 22, "username": "ops", "host_keys": [f"{KEY} {evil}"], "private": evil}
    hosts = {UUID(int=101): allocation(1, connection=half, name=evil, sku=evil), UUID(int=102): allocation(2)}
    hosts[UUID(int=103)] = allocation(3, connection=wicked)
    reported = {"worker_hostname": evil, "drain_reason": evil, "phase": evil, "ansible_connection": "local"}
    members = [controller(adapter_detail=reported), *(worker(add(n), n, adapter_detail=reported) for n in (2, 3))]
    asked = instance(config={"slurm": {"KillWait": evil}}, name=evil, app_version=evil)
    tree, problems = build(SLURM, asked, members, hosts)
    assert list(problems) == [members[2].id]
    shown = run_ansible(tmp_path, "checked.json", tree)
    assert shown.count("SUCCESS") == 2, shown
    assert not mark.exists()
    # The same text in an unchecked variable is run: the checks prevent that.
    tree["all"]["hosts"]["controller-c0000000"]["unchecked"] = evil
    run_ansible(tmp_path, "unchecked.json", tree)
    assert mark.exists()


# -- what comes back from the platform and from hosts --------------------------------------------------------


@thorough
@given(
    st.sampled_from([ControllerNotes, WorkerNotes]),
    st.dictionaries(st.sampled_from([*WorkerNotes.model_fields, *ControllerNotes.model_fields]), hostile.anything),
)
def test_any_detail_is_read_and_what_decides_is_reported(kind: type[SlurmNotes], detail: dict[str, Any]) -> None:
    stored = repr(detail)
    notes = kind.read(detail)
    unread = {name for name in kind.model_fields if detail.get(name) is not None and getattr(notes, name) is None}
    facts = {name for name in unread if name not in {problem.name for problem in notes.problems}}
    decides = {*MemberNotes.model_fields, "repair", "rotation_left_out", "worker_hostname", "controller_hostname"}
    decides |= {"applied_config", "config_refused", "change"}
    decides -= {"worker_hostname"} if kind is ControllerNotes else set()
    decides -= {"last_adapter_error", "correlation_id", "trace_id"}
    assert not facts & decides, "a note that decides something was taken for absent"
    assert all(len(problem.message.encode()) <= PROBLEM_BYTES for problem in notes.problems)
    json.dumps(notes.changes)
    assert repr(detail) == stored
