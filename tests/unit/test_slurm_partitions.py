"""What the controller shows of its partitions, and which names may be given back to it."""

import pytest
from ansible.module_utils.host.errors import AdapterError
from ansible.module_utils.slurm.partitions import parse_partitions, to_change

ONE = "PartitionName=main AllowGroups=ALL Default=YES MaxTime=UNLIMITED Nodes=w1 State={} TotalCPUs=2 TotalNodes=1"


def test_each_partition_has_its_state() -> None:
    lines = [ONE.format("UP"), ONE.replace("main", "night").format("DRAIN")]
    assert parse_partitions("\n".join(lines)) == {"main": "UP", "night": "DRAIN"}


@pytest.mark.parametrize("answer", [None, "slurm_load_partitions error", ONE.format("PERHAPS")])
def test_what_cannot_be_read_is_unknown_and_not_nothing(answer: str | None) -> None:
    assert parse_partitions(answer) is None


def test_only_what_differs_is_changed_and_what_is_gone_is_left() -> None:
    wanted = {"main": "DOWN", "night": "DOWN", "gone": "DOWN"}
    assert to_change(wanted, {"main": "UP", "night": "DOWN", "day": "UP"}) == {"main": "DOWN"}


@pytest.mark.parametrize("wanted", [{"main State=UP": "DOWN"}, {"main": "UP NodeName=x"}, {"": "UP"}, {"-a": "UP"}])
def test_an_invalid_name_or_state_is_refused(wanted: dict[str, str]) -> None:
    with pytest.raises(AdapterError) as refusal:
        to_change(wanted, {"main": "UP"})
    assert refusal.value.code == "partition_refused"
