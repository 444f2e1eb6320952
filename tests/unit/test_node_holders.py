"""Who holds a node, by its flags, its reason and the user that set it: a person, Slurm, or an operation of ours."""

import pytest
from ansible.module_utils.slurm import node_rules


@pytest.mark.parametrize(
    ("state", "flags", "reason", "by", "person", "set_down"),
    [
        ("DOWN", (), "broken fan", "root", True, True),
        ("DOWN", ("NOT_RESPONDING",), "Not responding", "slurm", False, False),
        ("DOWN", (), None, None, False, False),
        ("DOWN", ("DRAIN",), "broken fan", "root", True, False),
        ("IDLE", ("DRAIN",), "broken fan", "root", True, False),
        ("IDLE", ("DRAIN",), "gpuaas:manual: disk", "root", True, False),
        ("IDLE", ("DRAIN",), "gpuaas:1234: disk", "root", False, False),
        ("IDLE", ("DRAIN",), "Kill task failed", "root", False, False),
        ("IDLE", ("DRAIN",), "Low RealMemory", "slurm", False, False),
        ("IDLE", (), "old text", "root", False, False),
    ],
)
def test_whose_hold_it_is_is_read_from_reason_and_user(
    state: str, flags: tuple[str, ...], reason: str | None, by: str | None, person: bool, set_down: bool
) -> None:
    assert node_rules.is_held_by_person(state, flags, reason, by) is person
    assert node_rules.is_set_down_by_person(state, flags, reason, by) is set_down


@pytest.mark.parametrize(
    ("flags", "reason", "by", "holder"),
    [
        (set(), "fan", "alice", "none"),
        ({"DRAIN"}, "fan", "alice", "person"),
        ({"DRAIN"}, "gpuaas:manual: fan", "root", "person"),
        ({"DRAIN"}, "gpuaas:1234: fan", "root", "us"),
        ({"DRAIN"}, "Low RealMemory", "slurm", "slurm"),
        ({"DRAIN"}, "Kill task failed", "root", "slurm"),
        ({"DRAIN"}, None, "slurm", "slurm"),
    ],
)
def test_a_drain_has_one_holder(flags: set[str], reason: str | None, by: str, holder: str) -> None:
    assert node_rules.drain_holder(flags, reason, by) == holder


def test_a_down_node_that_an_operation_named_is_not_set_down_by_a_person() -> None:
    assert not node_rules.is_set_down_by_person("DOWN", (), "gpuaas:1234: disk", "root")
