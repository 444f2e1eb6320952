"""slurm.conf is stable, and nothing from outside can add a line to it or take one over."""

import pytest
from ansible.module_utils.host.errors import AdapterError
from ansible.module_utils.slurm.conf import is_intact, keep_controller_name, render, replace_settings

MANAGED: dict[str, object] = {"SlurmUser": "slurm", "ClusterName": "alpha", "MaxNodeCount": 10}


def test_the_same_settings_in_another_order_give_the_same_bytes() -> None:
    reversed_order = dict(reversed(MANAGED.items()))
    sets: dict[str, dict[str, object]] = {"b": {"Feature": "x"}, "a": {"Feature": "y"}}
    assert render(MANAGED, {}, sets, {}) == render(reversed_order, {}, dict(reversed(sets.items())), {})


def test_lines_are_sorted_and_partitions_follow_the_nodesets_they_name() -> None:
    text = render(
        MANAGED, {"MinJobAge": 60}, {"workers": {"Feature": "worker"}}, {"main": {"Nodes": "workers", "Default": True}}
    )
    assert text.splitlines()[1:] == [
        "ClusterName=alpha",
        "MaxNodeCount=10",
        "MinJobAge=60",
        "SlurmUser=slurm",
        "NodeSet=workers Feature=worker",
        "PartitionName=main Default=YES Nodes=workers",
    ]


def test_a_text_vouches_for_itself_until_a_byte_of_it_is_changed() -> None:
    text = render(MANAGED, {"MinJobAge": 60}, {}, {})
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
        render(MANAGED, requested, {}, {})
    assert refusal.value.code == "config_refused"
    assert refusal.value.error_class == "intervention"


def test_a_name_that_is_more_than_a_name_is_refused() -> None:
    with pytest.raises(AdapterError):
        render(MANAGED, {}, {"a b": {}}, {})


def test_replacing_takes_out_what_is_empty_and_changes_the_rest() -> None:
    text = render(MANAGED, {}, {"n": {"Feature": "x"}}, {})
    changed = replace_settings(text, {"SlurmUser": "", "maxnodecount": "5"})
    assert "SlurmUser" not in changed
    assert "maxnodecount=5" in changed.splitlines()
    assert "MaxNodeCount=10" not in changed
    assert "NodeSet=n Feature=x" in changed.splitlines()


def served(host: str) -> str:
    return render(MANAGED | {"SlurmctldHost": host}, {}, {}, {})


def test_a_cluster_that_serves_under_a_name_keeps_its_slurm_conf_to_the_byte() -> None:
    new = MANAGED | {"SlurmctldHost": "ctl(192.0.2.7)"}
    live = served("ctl(ctl.example.org)")
    assert render(keep_controller_name(new, live), {}, {}, {}) == live


@pytest.mark.parametrize(
    "good", [None, "", "nonsense", served("ctl(192.0.2.6)"), served("other(ctl.example.org)"), served("ctl")]
)
def test_otherwise_the_controllers_address_is_the_one_that_was_resolved(good: str | None) -> None:
    new = MANAGED | {"SlurmctldHost": "ctl(192.0.2.7)"}
    assert keep_controller_name(new, good) == new
