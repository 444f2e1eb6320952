"""slurm.conf is stable, and nothing from outside can add a line to it or take one over."""

from pathlib import Path

import pytest
import yaml
from ansible.module_utils.host.errors import AdapterError
from ansible.module_utils.slurm.conf import Partition, is_intact, keep_controller_name, render, replace_settings

ROOT = Path(__file__).resolve().parents[2]
MAIN = Partition("main", "workers", "worker", default=True)
MANAGED: dict[str, object] = {"SlurmUser": "slurm", "ClusterName": "alpha", "MaxNodeCount": 10}


def test_the_same_settings_in_another_order_give_the_same_bytes() -> None:
    reversed_order = dict(reversed(MANAGED.items()))
    partitions = [Partition("b", "b-nodes", "x"), Partition("a", "a-nodes", "y", default=True)]
    assert render(MANAGED, {}, partitions) == render(reversed_order, {}, partitions[::-1])


def test_lines_are_sorted_and_partitions_follow_the_nodesets_they_name() -> None:
    text = render(MANAGED, {"MinJobAge": 60}, [MAIN])
    assert text.splitlines()[1:] == [
        "ClusterName=alpha",
        "MaxNodeCount=10",
        "MinJobAge=60",
        "SlurmUser=slurm",
        "NodeSet=workers Feature=worker",
        "PartitionName=main Default=YES MaxTime=INFINITE Nodes=workers State=UP",
    ]


def test_a_text_vouches_for_itself_until_a_byte_of_it_is_changed() -> None:
    text = render(MANAGED, {"MinJobAge": 60}, [])
    assert is_intact(text)
    for changed in (
        text + "\n",
        text.replace("60", "61"),
        text.partition("\n")[2],
        "",
        text.replace("Digest", "digest"),
    ):
        assert not is_intact(changed)


@pytest.mark.parametrize(
    "requested",
    [
        {"ClusterName": "mine"},
        {"clustername": "mine"},
        {"PartitionName": "mine Nodes=ALL"},
        {"Include": "/etc/shadow"},
        {"NodeName": "x"},
        {"MinJobAge": "1\nSlurmUser=root"},
        {"MinJobAge": "1 # rest"},
        {"MinJobAge": "1\\"},
        {"MinJobAge": ""},
        {"MinJobAge": None},
        {"MinJobAge": ["1"]},
        {"Min JobAge": "1"},
        {"MinJobAge": 1, "minjobage": 2},
        {"": "1"},
    ],
)
def test_a_request_that_could_do_more_than_set_one_setting_is_refused(requested: dict[str, object]) -> None:
    with pytest.raises(AdapterError) as refusal:
        render(MANAGED, requested, [])
    assert refusal.value.code == "config_refused"
    assert refusal.value.error_class == "intervention"


@pytest.mark.parametrize(
    "partitions",
    [
        [Partition("a b", "n", "f")],
        [Partition("a", "n m", "f")],
        [Partition("a", "n", "f State=DOWN")],
        [Partition("a", "n", "f", max_time="1 Nodes=ALL")],
        [Partition("a", "n", "f"), Partition("A", "n", "f")],
        [Partition("a", "n", "f", default=True), Partition("b", "n", "f", default=True)],
        [Partition("a", "n", "f"), Partition("b", "n", "g")],
    ],
)
def test_partitions_that_contradict_each_other_or_add_options_are_refused(partitions: list[Partition]) -> None:
    with pytest.raises(AdapterError) as refusal:
        render(MANAGED, {}, partitions)
    assert refusal.value.code == "config_refused"


def test_two_partitions_of_one_node_set_name_it_once() -> None:
    text = render({}, {}, [MAIN, Partition("night", "workers", "worker", max_time="8:00:00", state="DOWN")])
    assert text.splitlines()[1:] == [
        "NodeSet=workers Feature=worker",
        "PartitionName=main Default=YES MaxTime=INFINITE Nodes=workers State=UP",
        "PartitionName=night Default=NO MaxTime=8:00:00 Nodes=workers State=DOWN",
    ]


def test_the_roles_default_gives_the_lines_that_running_clusters_have() -> None:
    """Other bytes would be another configuration version, loaded on every cluster at its next tick."""
    default = yaml.safe_load((ROOT / "roles" / "slurmctld" / "defaults" / "main.yml").read_text())
    partitions = [Partition(**one) for one in default["slurmctld_partitions"]]
    assert render(MANAGED, {}, partitions) == render(MANAGED, {}, [MAIN])


def test_replacing_takes_out_what_is_empty_and_changes_the_rest() -> None:
    text = render(MANAGED, {}, [Partition("p", "n", "x")])
    changed = replace_settings(text, {"SlurmUser": "", "maxnodecount": "5"})
    assert "SlurmUser" not in changed
    assert "maxnodecount=5" in changed.splitlines()
    assert "MaxNodeCount=10" not in changed
    assert "NodeSet=n Feature=x" in changed.splitlines()


def served(host: str) -> str:
    return render(MANAGED | {"SlurmctldHost": host}, {}, [])


def test_a_cluster_that_serves_under_a_name_keeps_its_slurm_conf_to_the_byte() -> None:
    new = MANAGED | {"SlurmctldHost": "ctl(192.0.2.7)"}
    live = served("ctl(ctl.example.org)")
    assert render(keep_controller_name(new, live), {}, []) == live


@pytest.mark.parametrize(
    "good", [None, "", "nonsense", served("ctl(192.0.2.6)"), served("other(ctl.example.org)"), served("ctl")]
)
def test_otherwise_the_controllers_address_is_the_one_that_was_resolved(good: str | None) -> None:
    new = MANAGED | {"SlurmctldHost": "ctl(192.0.2.7)"}
    assert keep_controller_name(new, good) == new
