"""From attachments to who may submit where, and to one Unix user for each identity.

Over 300 lines, because who may submit and who is which user are decided from the same attachments.
"""

from typing import Any
from uuid import UUID

import pytest
from ansible.module_utils.slurm.accounting_state import Wanted as HostWanted
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.model.attachments import Attachment
from runner.model.limits import size
from runner.model.platform import Unreadable
from runner.slurm.tenant.accounting_state import CLOSED, Limits, Wanted, parse_remembered
from runner.slurm.tenant.desired import Desired, account_name, desired, partitions, tenant_name
from runner.slurm.tenant.identities import DERIVED_BASE, HIGHEST_ID, derived, digest_of
from runner.slurm.tenant.memory import as_text, from_notes, from_slurm
from tests.unit.attachments import ORG, TO_MAIN, A, B, C, attached, person
from tests.unit.fake_accounting import FakeAccounting
from tests.unit.test_accounting_steps import apply

PA, PB, PC = map(account_name, (A, B, C))
# A runner of another version, or elsewhere, must derive the same.
FIXED = ("u_61ee70245876", 1484495881)
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMDo0Kz2oO2eJ0Tt6wE8N9dXq0cR6a0y6l3Yk1V9m5aT"


def want(*attachments: Attachment, **more: Any) -> Desired:
    """After a look at Slurm, which remembers no user unless the test says so."""
    return desired("gs0", ORG, attachments, **{"in_slurm": {}, **more})


def accounts(found: Desired) -> dict[str, tuple[bool, tuple[str, ...]]]:
    return {one.name: (one.open, one.users) for one in found.wanted.accounts}


def codes(found: Desired) -> list[tuple[UUID, str]]:
    return [(one.attachment_id, one.code) for one in found.kept_out]


# -- who may submit ------------------------------------------------------------------------------------------------


def test_an_attachment_without_a_policy_may_submit_nowhere() -> None:
    found = want(attached(A, person("s", username="ann"), app_policy={}))
    assert accounts(found) == {PA: (False, ("ann",))}
    assert found.wanted.partitions == {"main": ()}


def test_an_allowed_project_is_in_the_partitions_of_its_policy_with_its_limits() -> None:
    policy = {**TO_MAIN, "limits": {"gpus": 4, "wall_minutes": 90}}
    found = want(
        attached(A, "s", app_policy=policy),
        attached(B, "t", app_policy={"submit": True, "partitions": ["own"]}),
        contributors=[B],
    )
    assert found.wanted.partitions == {"main": (PA,), PB: (PB,)}
    assert {one.name: one.limits for one in found.wanted.accounts} == {
        PA: Limits(gpus=4, wall_minutes=90),
        PB: Limits(),
    }


def test_contributed_workers_are_for_their_project_unless_its_policy_shares_them() -> None:
    both = {"submit": True, "partitions": ["main", "own"]}
    alone = want(attached(A, "s"), attached(B, "t", app_policy=both), contributors=[B])
    assert alone.wanted.partitions[PB] == (PB,)
    shared = want(attached(A, "s"), attached(B, "t", app_policy={**both, "share_workers": True}), contributors=[B])
    assert shared.wanted.partitions[PB] == tuple(sorted((PA, PB)))


@pytest.mark.parametrize("status", ["requested", "suspended", "paused"])
def test_only_an_active_attachment_is_open_and_the_others_keep_their_users(status: str) -> None:
    found = want(attached(A, person("s", username="ann"), status=status))
    assert accounts(found) == {PA: (False, ("ann",))}
    assert codes(found) == ([(A, "attachment_closed")] if status == "paused" else [])


def test_users_of_a_project_that_leaves_are_on_the_hosts_for_their_last_jobs_only() -> None:
    """A pending job would never start, and be waited for without end: without a user on the list it is cancelled."""
    found = want(attached(A, person("s", username="ann"), status="detaching"))
    assert accounts(found) == {PA: (False, ())} and [one.name for one in found.people.values()] == ["ann"]


def test_a_detached_project_has_an_account_and_no_users() -> None:
    found = want(attached(A, "s", status="detached"))
    assert accounts(found) == {PA: (False, ())} and found.people == {}


def test_an_attachment_that_is_absent_or_unreadable_has_no_account_on_the_list() -> None:
    broken = Unreadable("attachment", str(B), "status: Field required")
    found = want(attached(A, "s"), unreadable=[broken])
    assert set(accounts(found)) == {PA}
    assert codes(found) == [(B, "attachment_unreadable")]


@pytest.mark.parametrize(
    "policy",
    [
        {"submit": "yes", "partitions": ["main"]},
        {"submit": True, "partitions": ["gpu"]},
        {"submit": True, "partitions": ["main"], "limits": {"gpus": "4"}},
        {"submit": True, "partitions": ["main"], "limits": {"gpus": -1}},
        {"submit": True, "partitions": ["main"], "limits": {"nodes": 1}},
        {"submit": True, "partitions": ["main"], "allow": "all"},
    ],
)
def test_a_policy_that_cannot_be_read_allows_nothing_and_is_named(policy: dict[str, Any]) -> None:
    found = want(attached(A, "s", app_policy=policy), attached(B, "t"))
    assert [one.open for one in found.wanted.accounts] == [False, True]
    assert codes(found) == [(A, "attachment_closed")]


def test_two_projects_with_the_same_account_name_do_not_share_it() -> None:
    twin = UUID(f"{A.hex[:12]}{'9' * 20}")
    found = want(attached(A, "s"), attached(twin, "t"))
    [(attachment, code)] = codes(found)
    assert code == "account_collision"
    [account] = found.wanted.accounts
    assert account.project_id == str(A if attachment == twin else twin)
    kept = found.notes[UUID(account.project_id)].changes
    both = [attached(A, "s", created_at=None), attached(twin, "t")]
    turned = [
        one.model_copy(update={"adapter_detail": kept}) if str(one.id) == account.project_id else one for one in both
    ]
    assert want(*turned).wanted.accounts[0].project_id == account.project_id


def test_jobs_of_a_leaving_project_are_cancelled_only_if_its_policy_says_so() -> None:
    cancel = {**TO_MAIN, "detach_jobs": "cancel"}
    found = want(
        attached(A, status="detaching", app_policy=cancel),
        attached(B, status="detaching"),
        attached(C, app_policy=cancel),
    )
    assert found.cancelled == (PA,)


def test_partitions_of_slurm_conf_do_not_depend_on_who_is_admitted() -> None:
    assert [one["name"] for one in partitions([B, A])] == ["main", PA, PB]
    assert all(one["account_list"] for one in partitions([B]))
    assert len({one["nodeset"] for one in partitions([A, B])}) == 3


def test_names_of_accounts_are_12_digits_of_their_ids() -> None:
    assert (tenant_name(ORG), PA) == ("t_0a0000000000", "p_aaaaaaaa0000")


# -- users ---------------------------------------------------------------------------------------------------------


def test_a_derived_user_is_the_same_everywhere_and_above_local_numbers() -> None:
    one = derived(digest_of("idp|ann"))
    assert one == derived(digest_of("idp|ann")) and one.name == f"u_{one.digest}"
    assert DERIVED_BASE <= one.uid <= HIGHEST_ID and one.gid == one.uid
    assert (one.name, one.uid) == FIXED
    assert len({derived(digest_of(f"s{number}")).uid for number in range(2000)}) == 2000


def test_values_of_the_platform_win_over_the_rule() -> None:
    found = want(attached(A, person("s", username="ann", uid=2000, gid=3000, ssh_keys=[KEY, "command=x " + KEY])))
    assert found.host_users() == {
        "slurm_users": [{"name": "ann", "uid": 2000, "gid": 3000, "shell": "/bin/bash"}],
        "slurm_user_keys": {"ann": [KEY]},
    }


def test_one_subject_in_two_projects_is_one_user() -> None:
    found = want(attached(A, person("s", username="ann")), attached(B, "s"))
    assert accounts(found) == {PA: (True, ("ann",)), PB: (True, ("ann",))}
    assert len(found.host_users()["slurm_users"]) == 1


@pytest.mark.parametrize(
    "second",
    [
        person("t", username="ann"),
        person("t", username="tom", uid=2000),
        person("t", username="tom", uid=2001, gid=2000),
        person("s", uid=2001),
        person("s", username="ann", gid=2002),
    ],
)
def test_an_identity_that_conflicts_with_an_earlier_one_is_kept_out_and_named(second: dict[str, Any]) -> None:
    first = attached(A, person("s", username="ann", uid=2000))
    found = want(attached(B, second), first)
    assert accounts(found)[PA] == (True, ("ann",)) and accounts(found)[PB] == (True, ())
    assert codes(found) == [(B, "identity_conflict")]
    assert second["subject"] in found.kept_out[0].message


@pytest.mark.parametrize(
    "bad",
    [
        {"username": "root"},
        {"username": "systemd-x"},
        {"username": "Ann"},
        {"username": "a b"},
        {"username": "-rf"},
        {"username": "a" * 32},
        {"username": ""},
        {"username": derived(digest_of("other")).name},
        {"uid": 0},
        {"uid": 999},
        {"uid": 65534},
        {"uid": 2**31},
        {"gid": 0},
    ],
)
def test_a_name_or_number_of_the_system_is_refused(bad: dict[str, Any]) -> None:
    found = want(attached(A, person("s", **bad), "t"))
    assert len(accounts(found)[PA][1]) == 1
    expected = ["identity_invalid"] if bad != {"username": ""} else [codes(found)[0][1]]
    assert [code for _, code in codes(found)] == expected


def remembered(found: Desired, *attachments: Attachment) -> list[Attachment]:
    """The same attachments as the platform has them after a pass."""
    return [one.model_copy(update={"adapter_detail": found.notes[one.id].changes}) for one in attachments]


def test_a_renamed_identity_keeps_its_unix_name() -> None:
    [noted] = remembered(want(attached(A, person("s", username="ann"))), attached(A, person("s", username="anna")))
    assert accounts(want(noted)) == {PA: (True, ("ann",))}


@pytest.mark.parametrize("thief", [person("t", username="ann"), person("t", username="tom", uid=2000)])
def test_name_and_number_of_a_removed_identity_are_never_given_to_another(thief: dict[str, Any]) -> None:
    before = want(attached(A, person("s", username="ann", uid=2000)))
    [noted] = remembered(before, attached(A, thief))
    assert accounts(want(noted)) == {PA: (True, ())}
    assert codes(want(noted)) == [(A, "identity_conflict")]


def on_host(found: Wanted) -> HostWanted:
    """As the module reads it."""
    return HostWanted.read(found.plain())


@pytest.mark.parametrize(
    "people", ["ann", ["ann"], {"s": 1}, {"s": "ann"}, {"s": "ann:x:1"}, {"s": f"ann:{2**31}:2000"}, {"s": "Ann:1:1"}]
)
def test_a_note_of_people_that_cannot_be_read_keeps_the_account_closed(people: Any) -> None:
    broken = attached(A, "s").model_copy(update={"adapter_detail": {"account": PA, "people": people}})
    found = want(broken, attached(B, "t"))
    assert set(accounts(found)) == {PB} and PA not in found.wanted.partitions["main"]
    assert codes(found) == [(A, "note_unreadable")] and A not in found.notes


def look(fake: FakeAccounting) -> dict[str, list[str]]:
    return parse_remembered("".join(f"{name}|{one.description}\n" for name, one in fake.qos.items()))


def in_slurm(found: Wanted) -> FakeAccounting:
    fake = FakeAccounting(partitions={"main": frozenset({CLOSED})})
    apply(fake, on_host(found))
    return fake


def test_what_the_records_forgot_is_rebuilt_from_slurm_and_the_other_way() -> None:
    both = attached(A, person("s", username="ann", uid=2000), "t"), attached(B, person("r", username="rob"))
    before = want(*both)
    memory = look(in_slurm(before.wanted))
    # The records are lost, and ann has left: no one gets her name.
    after = want(attached(A, "t", person("x", username="ann")), both[1], in_slurm=memory)
    assert codes(after) == [(A, "identity_conflict")]
    assert {one.digest for one in from_slurm({PA: memory[PA]})} == {digest_of("s"), digest_of("t")}
    # Slurm has lost its text: the records give the same again.
    again = want(*remembered(before, *both))
    assert [one.memory for one in again.wanted.accounts] == [one.memory for one in before.wanted.accounts]
    assert {one.name for one in from_notes(before.notes[A])} == {"ann", derived(digest_of("t")).name}


def test_slurm_gets_no_subject_and_only_the_digest_of_a_derived_user() -> None:
    found = want(attached(A, person("idp|ann", username="ann"), "idp|tom"))
    [account] = found.wanted.accounts
    tom = derived(digest_of("idp|tom"))
    assert "idp" not in account.memory and account.memory.count("=") == 1 and tom.name not in account.memory
    assert {one.name for one in from_slurm(look(in_slurm(found.wanted)))} == {"ann", tom.name}
    assert as_text([]) == ""


@pytest.mark.parametrize(
    "text", ["", "Normal QOS default", "g2,abc", "g1,abc", "g1,0123456789ab=Root:0:0", "g1,0123456789ab=x:9999999999:1"]
)
def test_a_text_that_a_person_changed_names_no_user(text: str) -> None:
    assert from_slurm(parse_remembered(f"{PA}|{text}\n")) == []


def test_a_text_of_what_is_no_project_names_no_user() -> None:
    assert parse_remembered("normal|g1,0123456789ab=ann:2000:2000\n") == {}


def test_without_a_look_at_slurm_only_a_user_that_is_certain_is_let_in() -> None:
    first = attached(A, person("s", username="ann"), "t")
    unseen = want(first, in_slurm=None)
    assert accounts(unseen) == {PA: (True, ())} and unseen.unnamed == {A} and unseen.kept_out == ()
    seen = want(first)
    [noted] = remembered(seen, attached(A, person("s", username="ann"), "t", "u", person("v", username="vic")))
    later = want(noted, in_slurm=None)
    assert later.unnamed == {A} and set(later.people) == {digest_of("s"), digest_of("t"), digest_of("u")}
    again = want(*remembered(seen, first), in_slurm=None)
    assert again.wanted == seen.wanted and not again.unnamed


def test_a_record_that_lost_its_notes_gives_each_identity_its_former_user() -> None:
    before = want(attached(A, person("s", username="ann", uid=2000), "t"))
    renamed = attached(A, person("s", username="anna"), "t")
    after = want(renamed, in_slurm=look(in_slurm(before.wanted)))
    assert after.people == before.people and after.wanted.accounts == before.wanted.accounts


def test_what_slurm_remembers_stays_though_no_record_has_it_any_more() -> None:
    fake = in_slurm(want(attached(A, person("s", username="ann", uid=2000))).wanted)
    apply(fake, on_host(want(attached(A, person("x", username="xia"))).wanted))
    assert {one.name for one in from_slurm(look(fake))} == {"ann", "xia"}
    thief = want(attached(B, person("y", username="ann")), in_slurm=look(fake))
    assert codes(thief) == [(B, "identity_conflict")]


def test_notes_of_a_large_project_stay_within_the_record() -> None:
    people = [person(f"idp|{number:032}", username=f"user{number}") for number in range(150)]
    large = attached(A, *people, *(f"idp|derived{number:030}" for number in range(400)))
    found = want(large)
    kept = found.notes[A].people or {}
    assert sum(text.startswith("user") for text in kept.values()) == 150
    assert len(str(found.notes[A].changes)) < 16 * 1024


def test_identities_that_the_record_has_no_room_for_are_kept_out_and_named() -> None:
    people = [person(f"idp|{number:032}", username=f"user{number:03}") for number in range(400)]
    first = want(attached(A, *people[300:], "derived"))
    before = {"adapter_detail": first.notes[A].changes}
    found = want(attached(A, *people, "derived", **before), attached(B, people[0]))
    assert size(found.notes[A].changes) < 13 * 1024
    users = accounts(found)[PA][1]
    assert derived(digest_of("derived")).name in users and "user000" in accounts(found)[PB][1]
    kept_out = [one for one in codes(found) if one == (A, "identities_too_many")]
    assert len(kept_out) == 401 - len(users) > 0
    on_record = {text.partition(":")[0] for text in (found.notes[A].people or {}).values()}
    assert {one for one in users if one.startswith("user")} <= on_record
    assert len(accounts(first)[PA][1]) == 101 and set(accounts(first)[PA][1]) <= set(users), "who was there stays"
    hosts = {one["name"] for one in found.host_users()["slurm_users"]}
    assert hosts == {*users, "user000"}, "who is let in nowhere gets no Unix user"


# -- by property ---------------------------------------------------------------------------------------------------

SUBJECTS = ["s", "t", "u"]
POLICIES = [
    {},
    TO_MAIN,
    {"submit": True, "partitions": ["own"]},
    {"submit": False, "partitions": ["main"]},
    {"submit": 1},
]


@st.composite
def worlds(draw: st.DrawFn) -> list[Attachment]:
    return [
        attached(
            project,
            *(
                person(subject, username=draw(st.sampled_from([None, "ann", "bob"])))
                for subject in draw(st.sets(st.sampled_from(SUBJECTS)))
            ),
            status=draw(st.sampled_from(["requested", "active", "suspended", "detaching", "detached", "new"])),
            app_policy=draw(st.sampled_from(POLICIES)),
        )
        for project in draw(st.sets(st.sampled_from([A, B, C])))
    ]


@given(st.lists(worlds(), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_for_any_attachments_in_any_order_only_who_is_allowed_can_submit(history: list[list[Attachment]]) -> None:
    """The whole way from attachments to what Slurm accepts, with the notes of one pass given to the next."""
    fake = FakeAccounting(partitions=dict.fromkeys(["main", PB], frozenset({CLOSED})))
    details: dict[UUID, dict[str, Any]] = {}
    names: dict[str, str] = {}
    for attachments in history:
        given_now = [one.model_copy(update={"adapter_detail": details.get(one.id, {})}) for one in attachments]
        found = want(*given_now, contributors=[B], in_slurm=look(fake))
        details |= {project: notes.changes for project, notes in found.notes.items()}
        apply(fake, on_host(found.wanted))
        for user, account, partition in fake.accepted():
            [one] = [one for one in attachments if account_name(one.project_id) == account]
            named = one.app_policy["partitions"]
            assert one.status == "active" and one.app_policy["submit"] is True
            assert (partition == "main" and "main" in named) or (partition == account and "own" in named)
            digest = next(person.digest for person in found.people.values() if person.name == user)
            assert digest in {digest_of(identity.subject) for identity in one.read_identities()[0]}
        for person_found in found.people.values():
            assert names.setdefault(person_found.name, person_found.digest) == person_found.digest
        assert want(*reversed(given_now), contributors=[B], in_slurm=look(fake)).wanted.plain() == found.wanted.plain()
