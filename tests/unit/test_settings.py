"""Settings are validated at start, each wrong one with its own sentence."""

import os
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import pytest

from runner import settings
from runner.model import events
from runner.model.world import Policy
from runner.observe.world import _policy
from runner.slurm.app import SLURM
from runner.slurm.settings import SlurmSettings

GOOD = {
    "GPUAAS_BASE_URL": "http://127.0.0.1:1",
    "GPUAAS_PROJECT_ID": "00000000-0000-0000-0000-000000000001",
}


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in list(os.environ):
        if name.startswith(("GPUAAS_", "VAULT_", "OTEL_")):
            monkeypatch.delenv(name)
    return monkeypatch


def use(clean: pytest.MonkeyPatch, **values: str) -> None:
    for name, value in (GOOD | values).items():
        clean.setenv(name, value)


def test_every_wrong_setting_is_named(clean: pytest.MonkeyPatch) -> None:
    use(clean, GPUAAS_PROJECT_ID="mine", GPUAAS_LEASE_SECONDS="1", GPUAAS_CA_BUNDLE="/nowhere", VAULT_ADDR="vault")
    with pytest.raises(settings.SettingsError) as error:
        settings.load(SlurmSettings)
    text = "\n".join(error.value.problems)
    for name in ("GPUAAS_PROJECT_ID", "GPUAAS_LEASE_SECONDS", "GPUAAS_CA_BUNDLE", "VAULT_ADDR"):
        assert name in text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VAULT_ADDR", "canary"),
        ("VAULT_ADDR", "https://user:canary@vault:8200"),
        ("VAULT_AGENT_ADDR", "canary"),
        ("VAULT_AGENT_ADDR", "http://user:canary@127.0.0.1:8100"),
        ("VAULT_CACERT", "/nowhere"),
        ("VAULT_CAPATH", "/etc/hostname"),
        ("VAULT_SKIP_VERIFY", "true"),
        ("VAULT_SKIP_VERIFY", "1"),
        ("GPUAAS_VAULT_MOUNT", "../canary"),
        ("GPUAAS_VAULT_APPROLE_MOUNT", "canary?"),
        ("GPUAAS_BASE_URL", "http://user:canary@127.0.0.1:1"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:canary@127.0.0.1:1"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "canary"),
    ],
)
def test_the_error_of_a_wrong_setting_does_not_quote_its_value(
    clean: pytest.MonkeyPatch, name: str, value: str
) -> None:
    use(clean, **{name: value})
    with pytest.raises(settings.SettingsError) as error:
        settings.load(SlurmSettings)
    (problem,) = error.value.problems
    assert problem.startswith(f"{name}: ") and "canary" not in problem


def test_vaults_certificate_is_checked_whatever_is_set(clean: pytest.MonkeyPatch) -> None:
    use(clean, VAULT_SKIP_VERIFY="yes")
    with pytest.raises(settings.SettingsError, match=r"always checked.*VAULT_CACERT"):
        settings.load(SlurmSettings)
    clean.setenv("VAULT_SKIP_VERIFY", "false")
    settings.load(SlurmSettings)


def test_the_manual_lists_every_setting_of_vault_and_of_ours() -> None:
    manual = (Path(__file__).resolve().parents[2] / "docs" / "usage" / "settings.md").read_text()
    for name, field in (settings.Settings.model_fields | SlurmSettings.model_fields).items():
        assert f"`{field.validation_alias or f'GPUAAS_{name.upper()}'}`" in manual


def test_every_number_of_the_policy_comes_from_its_setting(clean: pytest.MonkeyPatch) -> None:
    of_app = SlurmSettings().model_dump()
    defaults = {
        name: value for name, value in asdict(Policy()).items() if name not in ("app", "adapter_version")
    } | of_app
    numbers = {name: value for name, value in defaults.items() if name != "assumed_events"}
    changed = {name: not value if isinstance(value, bool) else value + 1 for name, value in numbers.items()}
    use(clean, **{f"GPUAAS_{name.upper()}": str(value) for name, value in changed.items()}, GPUAAS_ASSUMED_EVENTS="all")
    changed["assumed_events"] = events.ASSUMED
    policy = _policy(settings.load(SlurmSettings), SLURM)
    assert isinstance(policy.app, SlurmSettings)
    assert {**asdict(policy), **policy.app.model_dump()} == {
        **changed,
        "app": policy.app,
        "adapter_version": version("gpuaas-slurm"),
    }


def test_a_missing_setting_is_named_by_its_variable() -> None:
    with pytest.raises(settings.SettingsError) as error:
        settings.load(SlurmSettings)
    assert error.value.problems == ["GPUAAS_BASE_URL: is not set", "GPUAAS_PROJECT_ID: is not set"]


def test_the_environment_takes_precedence_over_the_file(clean: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('lease_seconds = 60\nmax_attempts = 7\nvault_addr = "http://vault:8200"\n')
    use(clean, GPUAAS_CONFIG=str(file), GPUAAS_MAX_ATTEMPTS="2")
    loaded = settings.load(SlurmSettings)
    assert (loaded.lease_seconds, loaded.max_attempts) == (60, 2)
    assert str(loaded.vault_addr) == "http://vault:8200/"


@pytest.mark.parametrize("text", ["lease_secnds = 60", "not toml at all ="])
def test_a_file_with_a_mistake_is_an_error(clean: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(text)
    use(clean, GPUAAS_CONFIG=str(file))
    with pytest.raises(settings.SettingsError):
        settings.load(SlurmSettings)


def test_secrets_show_in_no_error_and_no_representation(clean: pytest.MonkeyPatch) -> None:
    use(clean, GPUAAS_CLIENT_SECRET="canary-1", VAULT_SECRET_ID="canary-2", GPUAAS_OPERATOR_TOKEN="canary-3")
    assert "canary" not in repr(settings.load(SlurmSettings))
    clean.setenv("GPUAAS_MAX_ATTEMPTS", "none")
    with pytest.raises(settings.SettingsError) as error:
        settings.load(SlurmSettings)
    assert "canary" not in str(error.value)


def test_secrets_are_not_passed_on_to_children(clean: pytest.MonkeyPatch) -> None:
    use(clean, GPUAAS_CLIENT_SECRET="canary-1", VAULT_TOKEN="canary-2")
    settings.clear_secrets()
    assert not any("canary" in value for value in os.environ.values())


def test_roots_commands_and_the_service_share_a_directory(clean: pytest.MonkeyPatch) -> None:
    """Not that of a cluster's host. Without it, the lock would not keep a person's command and the service apart."""
    unit = (Path(__file__).parents[2] / "deploy/systemd/gpuaas-slurm.service").read_text()
    (given,) = (line.partition("=")[2] for line in unit.splitlines() if line.startswith("StateDirectory="))
    clean.delenv("STATE_DIRECTORY", raising=False)
    clean.setattr(os, "geteuid", lambda: 0)
    assert settings._default_state_directory() == Path("/var/lib", given)
