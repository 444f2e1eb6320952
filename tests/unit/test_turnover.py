"""What stands in Vault while a secret gives way to the next, also when two write at once."""

from typing import Any
from uuid import UUID

import pytest

from runner.act.key_rotation import STEPS, beside
from runner.act.vault import SecretsError, Vault, _LostRace

INSTANCE = UUID(int=7)


class FakeVault(Vault):
    """Vault's KV part in mind, with somebody else who may write between our read and our write."""

    def __init__(self) -> None:
        self.version, self.values = 0, dict[str, Any]()
        self.meanwhile: list[dict[str, Any]] = []

    def _login(self) -> None:
        pass

    def _read(self, instance_id: UUID) -> tuple[int, dict[str, Any]]:
        assert instance_id == INSTANCE
        return self.version, dict(self.values)

    def _write(self, instance_id: UUID, values: dict[str, Any], version: int) -> None:
        if self.meanwhile:
            self.version, self.values = self.version + 1, self.meanwhile.pop(0)
        if version != self.version:
            raise _LostRace
        self.version, self.values = version + 1, dict(values)


@pytest.fixture
def vault() -> FakeVault:
    made = FakeVault()
    made.values, made.version = {"munge_key": "old", "slurmdbd_password": "p"}, 1
    return made


def test_the_next_key_is_made_beside_and_the_current_one_still_handed_out(vault: FakeVault) -> None:
    coming = vault.runtime_secret(INSTANCE, "munge_key", "stage")
    assert coming not in ("old", "") and len(coming) > 100
    assert vault.runtime_secret(INSTANCE, "munge_key") == "old"
    assert vault.runtime_secret(INSTANCE, "munge_key", "stage") == coming, "staging again makes no other key"


def test_from_the_promotion_on_only_the_new_key_is_handed_out(vault: FakeVault) -> None:
    coming = vault.runtime_secret(INSTANCE, "munge_key", "stage")
    assert vault.runtime_secret(INSTANCE, "munge_key", "promote") == coming
    assert vault.values == {"munge_key": coming, "slurmdbd_password": "p"}, "the old one is nobody's any more"
    assert vault.runtime_secret(INSTANCE, "munge_key", "promote") == coming, "promoting again changes nothing"
    assert vault.runtime_secret(INSTANCE, "munge_key") == coming


def test_dropping_forgets_the_next_key_and_leaves_the_current_one(vault: FakeVault) -> None:
    coming = vault.runtime_secret(INSTANCE, "munge_key", "stage")
    assert vault.runtime_secret(INSTANCE, "munge_key", "drop") == "old"
    assert beside("munge_key") not in vault.values
    assert vault.runtime_secret(INSTANCE, "munge_key", "stage") != coming


def test_of_two_that_stage_at_once_both_get_the_same_key(vault: FakeVault) -> None:
    vault.meanwhile = [{**vault.values, beside("munge_key"): "theirs"}]
    assert vault.runtime_secret(INSTANCE, "munge_key", "stage") == "theirs"


def test_of_two_that_promote_at_once_the_later_one_changes_nothing(vault: FakeVault) -> None:
    vault.values[beside("munge_key")] = "new"
    vault.meanwhile = [{"munge_key": "new", "slurmdbd_password": "p"}]
    assert vault.runtime_secret(INSTANCE, "munge_key", "promote") == "new"
    assert vault.values == {"munge_key": "new", "slurmdbd_password": "p"}


def test_a_key_dropped_while_it_was_to_be_promoted_is_not_promoted(vault: FakeVault) -> None:
    vault.values[beside("munge_key")] = "new"
    vault.meanwhile = [{"munge_key": "old", "slurmdbd_password": "p"}]
    assert vault.runtime_secret(INSTANCE, "munge_key", "promote") == "old"


def test_writers_that_never_stop_are_an_error_that_may_pass(vault: FakeVault) -> None:
    vault.meanwhile = [{"munge_key": "old", "n": str(turn)} for turn in range(9)]
    with pytest.raises(SecretsError) as error:
        vault.runtime_secret(INSTANCE, "munge_key", "stage")
    assert (error.value.code, error.value.klass) == ("vault_busy", "retryable")


@pytest.mark.parametrize(
    ("name", "step"), [("munge_key", "burn"), ("slurmdbd_password", "stage"), ("other", "current")]
)
def test_what_is_not_offered_is_refused(vault: FakeVault, name: str, step: str) -> None:
    with pytest.raises(SecretsError) as error:
        vault.runtime_secret(INSTANCE, name, step)
    assert error.value.code == "secret_unknown" and vault.version == 1


@pytest.mark.parametrize("step", STEPS)
def test_every_step_makes_a_first_key_for_an_instance_that_has_none(step: str) -> None:
    vault = FakeVault()
    assert vault.runtime_secret(INSTANCE, "munge_key", step)
