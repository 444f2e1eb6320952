"""What keeps a host out of a cluster is found before it joins, and reported in terms an operator can use."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.host.errors import AdapterError
from ansible.module_utils.slurm.join_terms import check_join_terms, series

VARIABLES = Path(__file__).parents[2] / "roles" / "preflight" / "vars" / "main.yml"
WINDOW = yaml.safe_load(VARIABLES.read_text())["preflight_slurm_window"]


def host(version: str = "24.11", skew: float = 0.0, slurm: dict[str, int] | None = None) -> dict[str, Any]:
    return {"slurm_version": version, "skew": skew, "users": {"slurm": slurm}}


def controller(version: str = "24.11.5", skew: float = 0.0) -> dict[str, Any]:
    return {"slurm_version": version, "skew": skew, "slurm_user": {"uid": 64030, "gid": 64030}, "accepts": WINDOW}


def refusal(found: dict[str, Any], asked: dict[str, Any]) -> AdapterError:
    with pytest.raises(AdapterError) as raised:
        check_join_terms(found, asked, max_skew_seconds=60)
    assert raised.value.error_class == "intervention"
    return raised.value


@pytest.mark.parametrize(
    ("worker", "ruler"),
    [("24.11.5-4+deb13u1", "24.11.5"), ("22.05", "22.05.8"), ("23.11", "24.11.0"), ("9.1", "9.1.2")],
)
def test_a_worker_within_the_window_may_join(worker: str, ruler: str) -> None:
    check_join_terms(host(worker), controller(ruler), max_skew_seconds=60)


@pytest.mark.parametrize(("worker", "ruler"), [("24.11.5", "22.05.8"), ("22.05.8", "24.11.5"), ("9.0", "9.1.2")])
def test_a_worker_outside_the_window_is_refused_with_both_versions_named(worker: str, ruler: str) -> None:
    error = refusal(host(worker), controller(ruler))
    assert error.code == "version_incompatible"
    assert series(worker) in error.message
    assert series(ruler) in error.message


def test_the_clock_is_judged_against_the_controllers_and_named_in_seconds() -> None:
    check_join_terms(host(skew=100.0), controller(skew=90.0), max_skew_seconds=60)
    assert "95 s ahead" in refusal(host(skew=100.0), controller(skew=5.0)).message
    assert "65 s behind" in refusal(host(skew=-70.0), controller(skew=-5.0)).message


def test_a_slurm_user_of_another_number_is_refused_and_a_missing_one_is_not() -> None:
    check_join_terms(host(slurm=None), controller(), max_skew_seconds=60)
    check_join_terms(host(slurm={"uid": 64030, "gid": 64030}), controller(), max_skew_seconds=60)
    assert refusal(host(slurm={"uid": 64030, "gid": 999}), controller()).code == "uid_mismatch"
