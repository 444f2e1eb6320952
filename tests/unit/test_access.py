"""The access bundle: made of the records, bounded, renewed when it differs, and without a secret."""

import json
from typing import Any

import pytest
from ansible.module_utils.slurm.samples import COLUMNS, HEALTH, LINES, USE, clipped, take_samples

from runner.cli.access import lines
from runner.model.plan import Detail, SetInstance
from runner.slurm import access_bundle
from runner.slurm.decide import decide
from runner.slurm.snapshot import Sample, Snapshot
from tests.unit.lifecycle import cluster, serving
from tests.unit.worlds import KEY, NOW, after, allocation, controller, instance, node, of_kind, settle, snapshot


def samples(**changes: str) -> list[Sample]:
    """Output as on a controller; `sinfo="..."` changes the output of that command."""
    samples = take_samples(lambda *command: changes.get(command[0], f"{command[0]} prints\nso"))
    return [Sample.model_validate(one) for one in samples]


def seen(*nodes: str, **changes: str) -> Snapshot:
    shown = snapshot({name: node(partitions=["main"]) for name in nodes})
    return shown.model_copy(update={"samples": samples(**changes)})


def made(shown: Snapshot, workers: int = 1, **changes: Any) -> Detail:
    members = [serving(number) for number in range(2, 2 + workers)]
    places = {one.id: one for one in (allocation(number) for number in range(1, 3 + workers))}
    found = access_bundle.bundle(instance(**changes), shown, controller(status="ready"), members, places)
    assert found is not None
    return found


def test_it_names_hosts_account_partition_and_a_short_ssh_line() -> None:
    bundle = made(seen("w2"), workers=2)
    assert bundle["controller"] == {"hostname": "ctl", "host": "10.0.0.1", "port": 22, "username": "ops"}
    assert [one["host"] for one in bundle["workers"]] == ["10.0.0.2", "10.0.0.3"]
    assert bundle["submit"]["batch"].startswith("sbatch --account=default --partition=main ")
    assert bundle["ssh"]["command"] == "ssh -o StrictHostKeyChecking=yes ops@10.0.0.1"
    assert bundle["ssh"]["known_hosts"] == f"10.0.0.1 {KEY}"
    assert [one["command"] for one in bundle["commands"]] == [entry[1] for entry in USE]
    assert [one["command"] for one in bundle["health"]] == [entry[1] for entry in HEALTH]


def test_another_port_is_in_the_ssh_line_and_in_the_known_hosts_line() -> None:
    connection = {"host": "10.0.0.1", "port": 2222, "username": "ops", "host_keys": [KEY]}
    place = allocation(1, connection=connection)
    found = access_bundle.bundle(instance(), seen("w2"), controller(), [], {place.id: place})
    assert found is not None
    assert found["ssh"]["command"] == "ssh -o StrictHostKeyChecking=yes -p 2222 ops@10.0.0.1"
    assert found["ssh"]["known_hosts"] == f"[10.0.0.1]:2222 {KEY}"


def test_a_person_sees_the_ssh_line_and_the_line_for_known_hosts() -> None:
    ssh = made(seen("w2"))["ssh"]
    shown = lines({"ssh": ssh})
    assert f"  {ssh['command']}" in shown
    assert shown[shown.index("  first add this line to ~/.ssh/known_hosts:") + 1] == f"  {ssh['known_hosts']}"
    former = {"command": "ssh -o KnownHostsCommand=... ops@10.0.0.1", "known_hosts": "10.0.0.1 ssh-rsa A", "key": "x"}
    assert not any("known_hosts" in line for line in lines({"ssh": former})), "its command has the key"


def test_workers_that_do_not_serve_are_not_in_it() -> None:
    failed = serving(3, status="failed")
    places = {one.id: one for one in (allocation(1), allocation(2), allocation(3))}
    found = access_bundle.bundle(instance(), seen("w2"), controller(), [serving(2), failed], places)
    assert found is not None
    assert [one["hostname"] for one in found["workers"]] == ["w2"]


def test_a_look_without_examples_leaves_the_bundle_as_it_is() -> None:
    shown = snapshot({}).model_copy(update={"samples": None})
    assert access_bundle.bundle(instance(), shown, controller(), [], {allocation(1).id: allocation(1)}) is None
    assert access_bundle.renewed({"cluster_name": "gs0"}, None) is None


@pytest.mark.parametrize("moves_on", ["squeue", "sacct", "sdiag"])
def test_what_only_moves_on_with_time_does_not_renew_it(moves_on: str) -> None:
    later = seen("w2", **{moves_on: "something else"}).model_copy(update={"observed_at": NOW.replace(hour=9)})
    assert access_bundle.renewed(made(seen("w2")), made(later)) is None


def test_a_changed_cluster_renews_it() -> None:
    old = made(seen("w2"))
    assert access_bundle.renewed(None, old) == old
    assert access_bundle.renewed(old, made(seen("w2", sinfo="one more node"))) is not None
    assert access_bundle.renewed(old, made(seen("w2", "w3"), workers=2)) is not None
    assert access_bundle.renewed({"controller": "of an older runner"}, old) == old


def test_the_bundle_fits_however_much_a_cluster_prints() -> None:
    much = "\n".join("ä" * COLUMNS for _ in range(1000))
    loud = seen(*(f"w{n}" for n in range(2, 60)), sinfo=much, squeue=much, sacct=much, sdiag=much, scontrol=much)
    users = [{"name": f"user{n}", "uid": 2000 + n, "account": "a" * 30} for n in range(200)]
    bundle = made(loud, workers=60, config={"users": users})
    assert len(json.dumps(bundle).encode()) <= 16 * 1024
    assert bundle["more_workers"] >= 40
    assert bundle["submit"]["batch"]


def test_however_many_long_commands_a_controller_names_the_bundle_fits() -> None:
    many = [Sample(kind=kind, about="a" * 9000, command="c" * 9000) for kind in ("use", "health") for _ in range(500)]
    bundle = made(seen("w2").model_copy(update={"samples": many}))
    assert len(json.dumps(bundle).encode()) <= access_bundle.MOST_BYTES
    assert bundle["commands"]


def test_an_answer_is_clipped_to_its_head_and_its_newest_lines() -> None:
    lines = clipped("\n".join(f"line {n}" for n in range(100))).splitlines()
    assert len(lines) == LINES + 1
    assert (lines[0], lines[-1]) == ("line 0", "line 99")
    assert clipped("a \n\n b") == "a\n b"


def test_a_command_that_did_not_answer_is_shown_without_output() -> None:
    samples = take_samples(lambda *command: None if command[0] == "sacct" else "x")
    assert {one["command"].split()[0] for one in samples if one["output"] is None} == {"sacct"}


def test_jobs_are_not_shown_where_the_project_keeps_them_private() -> None:
    bundle = made(seen("w2", squeue="1 main mallory"), config={"slurm": {"PrivateData": "jobs"}})
    assert "mallory" not in json.dumps(bundle)
    assert "sinfo prints" in json.dumps(bundle)


def test_no_example_shows_the_names_of_jobs() -> None:
    commands = [command for _, command, _ in (*USE, *HEALTH) if command.split()[0] in ("squeue", "sacct")]
    assert all("format=" in command.lower() for command in commands)
    assert not any("Name" in field.partition("UserName")[0] for command in commands for field in command.split(","))


def test_it_is_written_with_the_instance_and_not_again_while_nothing_changes() -> None:
    now = cluster(serving(2))
    now = now.later(instance=now.instance.model_copy(update={"status_detail": None}))
    now, _, play = settle(now, decide)
    assert play is not None
    reported, steps, _ = settle(after(now, play, {}, seen("w2")), decide)
    assert [step.access is not None for step in of_kind(steps, SetInstance)] == [True]
    again = reported.later(
        outcomes={}, played=frozenset(), instance=reported.instance.model_copy(update={"status_detail": None})
    )
    again, _, play = settle(again, decide)
    assert play is not None
    _, steps, _ = settle(after(again, play, {}, seen("w2", squeue="another minute")), decide)
    assert [step.access for step in of_kind(steps, SetInstance)] == [None]


def test_a_person_sees_all_of_it_and_an_older_or_odd_bundle_does_no_harm() -> None:
    text = "\n".join(lines(made(seen("w2"))))
    for part in ("cluster gs0", "ops@10.0.0.1", "$ sinfo", "/etc/slurm/slurm.conf", "journalctl", "sbatch --account"):
        assert part in text
    assert lines({})
    assert lines({"commands": ["sinfo"], "workers": "x", "logs": "journalctl"})
