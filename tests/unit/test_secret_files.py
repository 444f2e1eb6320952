"""A secret in a file of the operator: read if its content and its mode are right, else refused with the reason."""

import os
from pathlib import Path

import pytest

from runner.platform.secret_files import SecretFileError, read

CANARY = "hvs.canary-3b1e"


def refusal(path: Path) -> SecretFileError:
    with pytest.raises(SecretFileError) as error:
        read("VAULT_TOKEN_FILE", path)
    assert "VAULT_TOKEN_FILE" in str(error.value) and str(path) in str(error.value)
    assert "canary" not in str(error.value).replace(str(path), "")
    return error.value


def kept(path: Path, text: str, mode: int) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o440, 0o640])
def test_a_file_that_only_owner_and_group_can_read_is_accepted(tmp_path: Path, mode: int) -> None:
    assert read("VAULT_TOKEN_FILE", kept(tmp_path / "token", f"{CANARY}\n", mode)) == CANARY


def test_a_link_is_followed_to_the_file_whose_mode_counts(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(kept(tmp_path / "token", CANARY, 0o600))
    assert read("VAULT_TOKEN_FILE", link) == CANARY
    (tmp_path / "token").chmod(0o644)
    assert "0644" in str(refusal(link))


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o660, 0o620])
def test_a_file_open_to_others_is_refused_with_its_mode(tmp_path: Path, mode: int) -> None:
    error = refusal(kept(tmp_path / "token", CANARY, mode))
    assert f"{mode:04o}" in str(error) and "revoke what was in it" in str(error) and error.klass == "intervention"


def test_a_missing_file_is_a_retryable_error(tmp_path: Path) -> None:
    assert refusal(tmp_path / "token").klass == "retryable"


@pytest.mark.parametrize("text", ["", "\n", f"{CANARY} {CANARY}", f"{CANARY}\nX-Other: 1", '{"token":"canary"}', "ü"])
def test_content_that_is_not_a_single_token_is_refused(tmp_path: Path, text: str) -> None:
    assert refusal(kept(tmp_path / "token", text, 0o600)).klass == "intervention"


def test_a_path_that_is_not_a_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path, tmp_path / "pipe"):
        assert refusal(path).klass == "intervention"
