"""Records are found by what tables show of them: the start of an id, or a name."""

from collections.abc import Callable
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from runner.model.errors import RequestError
from runner.observe.find import find_allocation, find_instance, find_member
from runner.platform.client import Client
from runner.settings import Settings
from runner.slurm.app import SLURM
from tests.unit.lifecycle import serving
from tests.unit.worlds import PROJECT, allocation, instance

SAME = [UUID("1a2b3c4d-0000-4000-8000-00000000000" + str(n)) for n in range(3)]


def find(text: str | None, *listed: Any) -> Any:
    class Platform:
        def instances(self, **_: Any) -> list[Any]:
            return list(listed)

    given: Any = {"base_url": "http://127.0.0.1:1", "project_id": PROJECT}
    return find_instance(cast(Client, Platform()), Settings(**given), text)


def test_the_8_characters_of_a_table_find_each_kind_of_record() -> None:
    one, member, place = instance(id=uuid4()), serving(2, id=uuid4()), allocation(2, id=uuid4())
    assert find(str(one.id)[:8], one, instance(id=uuid4())) == one
    assert find_member([member, serving(3)], str(member.id)[:8], SLURM) == member
    assert find_allocation([place, allocation(3)], str(place.id)[:8]) == place


def test_a_start_that_several_records_have_lists_those_and_no_others() -> None:
    other = uuid4()
    cases: list[Callable[[], Any]] = [
        lambda: find("1a2b", *(instance(id=one) for one in (*SAME, other))),
        lambda: find_member([serving(2, id=one) for one in (*SAME, other)], "1a2b", SLURM),
        lambda: find_allocation([allocation(2, id=one) for one in (*SAME, other)], "1a2b"),
    ]
    for case in cases:
        with pytest.raises(RequestError, match="1a2b matches 3") as refused:
            case()
        assert all(str(one) in str(refused.value) for one in SAME)
        assert str(other) not in str(refused.value)


def test_a_text_that_no_record_has_lists_what_there_is() -> None:
    with pytest.raises(RequestError, match="no instance nope") as refused:
        find("nope", instance(id=SAME[0], name="demo"))
    assert f"{SAME[0]} demo" in str(refused.value)


def test_a_deleted_instance_is_found_by_its_id_only_if_no_other_matches() -> None:
    gone, alive = instance(id=SAME[0], status="deleted", name="demo"), instance(id=SAME[1], name="demo")
    assert find("1a2b3c4d", gone, alive) == alive
    assert find("1a2b3c4d", gone) == gone
    with pytest.raises(RequestError):
        find("demo", gone)
    with pytest.raises(RequestError):
        find(None, gone)
