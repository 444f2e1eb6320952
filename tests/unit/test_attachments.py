"""Attachments as the API sends them: what cannot be read is named, and allows nothing."""

from typing import Any
from uuid import uuid4

import pytest

from runner.model.attachments import Attachment, read_attachment
from runner.model.platform import Unreadable
from tests.unit.attachments import A, attached, person

PLAIN = {"id": str(uuid4()), "project_id": str(uuid4()), "status": "active"}


def test_an_attachment_with_the_least_fields_contributes_nothing() -> None:
    found = read_attachment(PLAIN)
    assert isinstance(found, Attachment)
    assert (found.may_contribute, found.trusted_contributor, found.app_policy) == (False, False, {})
    assert found.is_active and found.is_known and found.read_identities() == ([], [])


def test_a_status_that_is_not_known_is_kept_and_is_not_active() -> None:
    found = read_attachment({**PLAIN, "status": "paused"})
    assert isinstance(found, Attachment)
    assert not found.is_known and not found.is_active and found.status == "paused"


@pytest.mark.parametrize(
    "change",
    [
        {"id": "x"},
        {"project_id": None},
        {"status": None},
        {"may_contribute": "true"},
        {"trusted_contributor": 1},
        {"app_policy": []},
        {"identities": {}},
        {"identities": [{}] * 2001},
        {"adapter_detail": "x"},
    ],
)
def test_a_record_that_cannot_be_read_is_unreadable_and_not_absent(change: dict[str, Any]) -> None:
    found = read_attachment({**PLAIN, **change})
    assert isinstance(found, Unreadable)
    assert found.kind == "attachment" and found.problem


@pytest.mark.parametrize("given", [None, [], "x", 3])
def test_what_is_no_object_is_unreadable(given: Any) -> None:
    assert isinstance(read_attachment(given), Unreadable)


@pytest.mark.parametrize(
    "bad",
    [
        7,
        {},
        {"subject": ""},
        {"subject": "a b"},
        {"subject": "x\n"},
        {"subject": "s", "uid": "1000"},
        {"subject": "s", "uid": True},
        {"subject": "s", "gid": -1},
        {"subject": "s", "username": 7},
        {"subject": "s", "ssh_keys": "key"},
    ],
)
def test_one_identity_that_cannot_be_read_does_not_hide_the_others(bad: Any) -> None:
    people, problems = attached(A, "ann", bad).read_identities()
    assert [one.subject for one in people] == ["ann"]
    assert len(problems) == 1 and problems[0].problem


def test_two_entries_of_a_subject_that_differ_are_both_left_out() -> None:
    people, problems = attached(A, "ann", person("bob", uid=2000), person("bob", uid=2001), "ann").read_identities()
    assert [one.subject for one in people] == ["ann"]
    assert [one.subject for one in problems] == ["bob"]
