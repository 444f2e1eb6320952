"""What Vault has while a secret is replaced, also when two write at once."""

from typing import Any
from uuid import UUID

import pytest

from runner.act.key_rotation import STEPS, next_name
from runner.act.vault import LostRace, SecretsError, Vault
from runner.slurm.app import SLURM

INSTANCE = UUID(int=7)


class FakeVault(Vault):
    """A simulated KV part of Vault, with another writer that may write between our read and our write."""

    def __init__(self) -> None:
        self._runtime_secrets = SLURM.runtime_secrets
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
            raise LostRace
        self.version, self.values = version + 1, dict(values)


@pytest.fixture
def vault() -> FakeVault:
    made = FakeVault()
    made.values, made.version = {"munge_key": "old", "slurmdbd_password": "p"}, 1
    return made


def test_the_current_key_is_returned_while_the_next_one_is_staged(vault: FakeVault) -> None:
    coming = vault.runtime_secret(INSTANCE, "munge_key", "stage")
    assert coming not in ("old", "") and len(coming) > 100
    assert vault.runtime_secret(INSTANCE, "munge_key") == "old"
    assert vault.runtime_secret(INSTANCE, "munge_key", "stage") == coming, "staging again makes no other key"


def test_after_the_promotion_only_the_new_key_is_returned(vault: FakeVault) -> None:
    coming = vault.runtime_secret(INSTANCE, "munge_key", "stage")
    assert vault.runtime_secret(INSTANCE, "munge_key", "promote") == coming
    assert vault.values == {"munge_key": coming, "slurmdbd_password": "p"}, "the old one is not used any more"
    assert vault.runtime_secret(INSTANCE, "munge_key", "promote") == coming, "promoting again changes nothing"
    assert vault.runtime_secret(INSTANCE, "munge_key") == coming


def test_a_drop_removes_the_next_key_and_keeps_the_current_one(vault: FakeVault) -> None:
    coming = vault.runtime_secret(INSTANCE, "munge_key", "stage")
    assert vault.runtime_secret(INSTANCE, "munge_key", "drop") == "old"
    assert next_name("munge_key") not in vault.values
    assert vault.runtime_secret(INSTANCE, "munge_key", "stage") != coming


def test_two_runners_that_stage_at_once_get_the_same_key(vault: FakeVault) -> None:
    vault.meanwhile = [{**vault.values, next_name("munge_key"): "theirs"}]
    assert vault.runtime_secret(INSTANCE, "munge_key", "stage") == "theirs"


def test_the_later_of_two_promotions_changes_nothing(vault: FakeVault) -> None:
    vault.values[next_name("munge_key")] = "new"
    vault.meanwhile = [{"munge_key": "new", "slurmdbd_password": "p"}]
    assert vault.runtime_secret(INSTANCE, "munge_key", "promote") == "new"
    assert vault.values == {"munge_key": "new", "slurmdbd_password": "p"}


def test_a_key_dropped_while_it_was_to_be_promoted_is_not_promoted(vault: FakeVault) -> None:
    vault.values[next_name("munge_key")] = "new"
    vault.meanwhile = [{"munge_key": "old", "slurmdbd_password": "p"}]
    assert vault.runtime_secret(INSTANCE, "munge_key", "promote") == "old"


def test_permanent_write_conflicts_are_a_retryable_error(vault: FakeVault) -> None:
    vault.meanwhile = [{"munge_key": "old", "n": str(number)} for number in range(9)]
    with pytest.raises(SecretsError) as error:
        vault.runtime_secret(INSTANCE, "munge_key", "stage")
    assert (error.value.code, error.value.klass) == ("vault_busy", "retryable")


@pytest.mark.parametrize(
    ("name", "step"), [("munge_key", "burn"), ("slurmdbd_password", "stage"), ("other", "current")]
)
def test_an_unknown_secret_or_step_is_refused(vault: FakeVault, name: str, step: str) -> None:
    with pytest.raises(SecretsError) as error:
        vault.runtime_secret(INSTANCE, name, step)
    assert error.value.code == "secret_unknown" and vault.version == 1


@pytest.mark.parametrize("step", STEPS)
def test_every_step_generates_the_first_key_of_an_instance(step: str) -> None:
    vault = FakeVault()
    assert vault.runtime_secret(INSTANCE, "munge_key", step)
