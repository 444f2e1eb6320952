"""All settings: from the environment first, then from the file that GPUAAS_CONFIG names.

Over 300 lines, because every setting stands in one class, with what makes its value a wrong one.
"""

import os
import re
import socket
import tomllib
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import (
    AnyHttpUrl,
    BaseModel,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from runner.model import events
from runner.model.scope import ProjectScope, RuntimeScope, Scope, TenantScope

# Read once at start, then removed from the environment, so that child processes do not inherit them.
SECRET_VARIABLES = (
    *("GPUAAS_CLIENT_SECRET", "GPUAAS_OPERATOR_TOKEN", "VAULT_SECRET_ID", "VAULT_TOKEN"),
    *("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"),
)
NOT_SET = "is not set"
MOUNT = r"^[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*$"


T = TypeVar("T", bound=BaseModel)


class SettingsError(Exception):
    """Some settings are wrong; `problems` has one sentence for each."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


def default_runner_id() -> str:
    return f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:6]}"


def _default_state_directory() -> Path:
    """The directory that systemd gives; else the one it gives to our service, or a user's own.

    Root's own commands and the service share a lock by that. /var/lib/gpuaas-slurm is the ledger's on a cluster's host.
    """
    given = os.environ.get("STATE_DIRECTORY")
    if given:
        return Path(given.partition(":")[0])
    if os.geteuid() == 0:
        return Path("/var/lib/gpuaas-slurm-runner")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "gpuaas-slurm"


def read_listen_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, `[IPV6]:PORT` or `PORT`. Without a host it is loopback."""
    found = re.fullmatch(r"(?:(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[A-Za-z0-9.-]*)):)?(?P<port>[0-9]{1,5})", text)
    if found is None or int(found["port"]) > 65535:
        raise ValueError("must be a port, HOST:PORT or [IPV6]:PORT")
    return found["v6"] or found["host"] or "127.0.0.1", int(found["port"])


class Settings(BaseSettings):
    """Each variable is GPUAAS_ and the field's name in upper case, unless an alias is given."""

    model_config = SettingsConfigDict(env_prefix="GPUAAS_", extra="ignore", validate_default=True)

    base_url: AnyHttpUrl = Field(description="root of the platform, without /api/v1")
    org_id: uuid.UUID | None = Field(None, description="the tenant of the shared runtime")
    shared_runtime_id: uuid.UUID | None = Field(None, description="the one shared runtime this runner serves")
    project_id: uuid.UUID | None = Field(None, description="the one project this runner serves")
    ca_bundle: Path | None = Field(None, description="CA certificates to trust instead of the system's")
    contract: Path | None = Field(None, description="TOML file with the names in which this platform's API differs")
    app_slug: str = Field("slurm-reference", pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")

    service_account_id: uuid.UUID | None = None
    key_id: str | None = None
    client_secret: SecretStr | None = None
    private_key_file: Path | None = Field(None, description="signs the login, where the contract has it so")
    operator_token: SecretStr | None = None
    access_credential_id: uuid.UUID | None = Field(None, description="the ssh credential of a new instance")

    vault_addr: AnyHttpUrl | None = Field(None, validation_alias="VAULT_ADDR")
    vault_agent_addr: AnyHttpUrl | None = Field(
        None, validation_alias="VAULT_AGENT_ADDR", description="a Vault Agent or Proxy that is asked in Vault's place"
    )
    vault_namespace: str | None = Field(None, validation_alias="VAULT_NAMESPACE")
    vault_cacert: Path | None = Field(None, validation_alias="VAULT_CACERT")
    vault_capath: Path | None = Field(None, validation_alias="VAULT_CAPATH")
    vault_skip_verify: bool = Field(False, validation_alias="VAULT_SKIP_VERIFY", description="refused")
    vault_token: SecretStr | None = Field(None, validation_alias="VAULT_TOKEN")
    vault_token_file: Path | None = Field(
        None, validation_alias="VAULT_TOKEN_FILE", description="where a Vault Agent keeps its token; read at each use"
    )
    vault_role_id: str | None = Field(None, validation_alias="VAULT_ROLE_ID")
    vault_secret_id: SecretStr | None = Field(None, validation_alias="VAULT_SECRET_ID")
    vault_secret_id_file: Path | None = Field(None, validation_alias="VAULT_SECRET_ID_FILE")
    vault_approle_mount: str = Field("approle", pattern=MOUNT, description="where Vault has its AppRole login")
    vault_mount: str = Field("secret", pattern=MOUNT, description="the KV v2 mount of the runtime secrets")

    runner_id: str = Field(default_factory=default_runner_id, max_length=128)
    state_directory: Path = Field(
        default_factory=_default_state_directory, description="for the lock that is needed where there are no ETags"
    )
    lease_seconds: int = Field(120, ge=10, le=3600, description="how long a claim lasts if it is not renewed")
    max_attempts: int = Field(3, ge=1, le=20, description="tries for an error that may pass by itself")
    retry_seconds: int = Field(30, ge=0, le=3600, description="wait before the second try; doubles each time")
    observe_seconds: int = Field(45, ge=0, description="age of an observation after which a cluster is observed again")
    repair: bool = Field(True, description="whether drift of a running cluster is repaired, a bounded number of times")
    min_free_mb: int = Field(
        1024, ge=0, le=1_048_576, description="free space on the lead's host, in MiB, below which it is nearly full"
    )
    assumed_events: str = Field(
        events.NONE, description="types of events to post that the platform has not stated: none, all or a list"
    )
    artifact_policy: Literal["platform", "none"] = Field(
        "platform", description="who says where the app's packages come from; none: the platform has no such policy"
    )
    entitlement_policy: Literal["platform", "none"] = Field(
        "platform", description="who says which projects may use the app; none: the platform has no entitlements"
    )
    play_timeout_seconds: int = Field(1800, ge=30, le=86400)
    api_timeout_seconds: float = Field(10, gt=0, le=300)
    api_patience_seconds: float = Field(30, ge=0, le=600, description="how long one call is retried in all")
    parallel_instances: int = Field(
        16, ge=1, le=64, description="instances whose records are read or written at once; plays are counted apart"
    )
    parallel_plays: int = Field(8, ge=1, le=64, description="plays at once; stalled ones come on top, to twice as many")
    forks: int = Field(32, ge=1, le=512, description="hosts that one play works on at once")
    memory_mb: int = Field(
        2048, ge=128, le=1_048_576, description="memory in MiB for all plays together, with their forks"
    )
    stall_seconds: int = Field(60, ge=1, le=3600, description="a play without an event for this long counts as stalled")
    watch_seconds: float = Field(15, ge=0.2, le=3600, description="time from one pass over the instances to the next")
    metrics_listen: str | None = Field(None, description="address of the metrics endpoint of run --watch; none: off")
    metrics_file: Path | None = Field(None, description="text file with metrics for node_exporter; none: off")
    otel_exporter_otlp_endpoint: AnyHttpUrl | None = Field(
        None, validation_alias="OTEL_EXPORTER_OTLP_ENDPOINT", description="collector of traces; none: off"
    )
    otel_exporter_otlp_traces_endpoint: AnyHttpUrl | None = Field(
        None, validation_alias="OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", description="the same, with its whole path"
    )
    otel_exporter_otlp_headers: SecretStr | None = Field(None, validation_alias="OTEL_EXPORTER_OTLP_HEADERS")
    otel_exporter_otlp_traces_headers: SecretStr | None = Field(
        None, validation_alias="OTEL_EXPORTER_OTLP_TRACES_HEADERS"
    )
    otel_exporter_otlp_protocol: str | None = Field(None, validation_alias="OTEL_EXPORTER_OTLP_PROTOCOL")
    otel_exporter_otlp_traces_protocol: str | None = Field(None, validation_alias="OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
    otel_sdk_disabled: bool = Field(False, validation_alias="OTEL_SDK_DISABLED", description="traces off all the same")
    otel_traces_exporter: str = Field("otlp", validation_alias="OTEL_TRACES_EXPORTER")
    log_format: Literal["auto", "json", "text"] = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("shared_runtime_id")
    @classmethod
    def _of_a_tenant(cls, runtime: uuid.UUID | None, given: ValidationInfo) -> uuid.UUID | None:
        if runtime is not None and "org_id" in given.data and given.data["org_id"] is None:
            raise ValueError("needs GPUAAS_ORG_ID, the tenant that has the shared runtime")
        return runtime

    @field_validator("project_id")
    @classmethod
    def _one_scope(cls, project: uuid.UUID | None, given: ValidationInfo) -> uuid.UUID | None:
        tenant = given.data.get("org_id", True) or given.data.get("shared_runtime_id", True)
        if project is None and not tenant:
            raise ValueError(NOT_SET)
        if project is not None and (given.data.get("org_id") or given.data.get("shared_runtime_id")):
            raise ValueError(
                "excludes GPUAAS_ORG_ID and GPUAAS_SHARED_RUNTIME_ID: a runner serves a project's instances or one"
                " shared runtime. Unset one of them"
            )
        return project

    @field_validator("service_account_id")
    @classmethod
    def _of_a_project(cls, account: uuid.UUID | None, given: ValidationInfo) -> uuid.UUID | None:
        if account is not None and given.data.get("shared_runtime_id"):
            raise ValueError("is of a project: a shared runtime's operator has a key id and a secret alone. Unset it")
        return account

    @property
    def scope(self) -> Scope:
        """What this process works on; the validators let exactly one of the three through."""
        if self.project_id is not None:
            return ProjectScope(self.project_id)
        assert self.org_id is not None
        return RuntimeScope(self.org_id, self.shared_runtime_id) if self.shared_runtime_id else TenantScope(self.org_id)

    @field_validator("assumed_events")
    @classmethod
    def _known_events(cls, text: str) -> str:
        events.read_assumed(text)
        return text

    @field_validator("metrics_listen")
    @classmethod
    def _listenable(cls, address: str | None) -> str | None:
        if address is not None:
            read_listen_address(address)
        return address

    @field_validator("metrics_file")
    @classmethod
    def _for_node_exporter(cls, path: Path | None) -> Path | None:
        if path is not None and (path.suffix != ".prom" or not path.is_absolute()):
            raise ValueError("must be an absolute path that ends in .prom: node_exporter reads no other file")
        return path

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Host and port of the metrics endpoint."""
        return read_listen_address(self.metrics_listen) if self.metrics_listen is not None else None

    @property
    def traces_url(self) -> str | None:
        """Where spans are sent; None if traces are off."""
        if self.otel_sdk_disabled or "otlp" not in self.otel_traces_exporter.split(","):
            return None
        if self.otel_exporter_otlp_traces_endpoint is not None:
            return str(self.otel_exporter_otlp_traces_endpoint)
        return (
            f"{str(self.otel_exporter_otlp_endpoint).rstrip('/')}/v1/traces"
            if self.otel_exporter_otlp_endpoint is not None
            else None
        )

    @field_validator(
        "otel_exporter_otlp_endpoint",
        "otel_exporter_otlp_traces_endpoint",
        "otel_exporter_otlp_protocol",
        "otel_exporter_otlp_traces_protocol",
        mode="before",
    )
    @classmethod
    def _empty_is_unset(cls, value: object) -> object:
        """As OpenTelemetry has it."""
        return None if value == "" else value

    @field_validator("otel_sdk_disabled", mode="before")
    @classmethod
    def _only_true_is_true(cls, value: object) -> bool:
        """As OpenTelemetry has it."""
        return str(value).strip().lower() == "true"

    @field_validator("ca_bundle", "contract", "private_key_file", "vault_cacert")
    @classmethod
    def _readable(cls, path: Path | None) -> Path | None:
        if path is not None and not path.is_file():
            raise ValueError(f"no such file: {path}")
        return path

    @field_validator("vault_capath")
    @classmethod
    def _directory(cls, path: Path | None) -> Path | None:
        if path is not None and not path.is_dir():
            raise ValueError(f"no such directory: {path}")
        return path

    @field_validator(
        "base_url",
        "vault_addr",
        "vault_agent_addr",
        "otel_exporter_otlp_endpoint",
        "otel_exporter_otlp_traces_endpoint",
    )
    @classmethod
    def _without_login(cls, url: AnyHttpUrl | None) -> AnyHttpUrl | None:
        """Addresses appear in messages, so they must not contain a password."""
        if url is not None and (url.username or url.password):
            raise ValueError("an address must not contain a user or a password; there are settings for that")
        return url

    @field_validator("vault_skip_verify")
    @classmethod
    def _verified(cls, skip: bool) -> bool:
        if skip:
            raise ValueError(
                "is refused: Vault's certificate is always checked. Unset it, and name the CA by VAULT_CACERT"
            )
        return skip

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (env_settings, init_settings)  # the file's values come in as init values: environment wins

    def of_app(self, kind: type[T]) -> T:
        """The app's own settings alone: decisions get them, and no secret of the runner."""
        return kind(**{name: getattr(self, name) for name in kind.model_fields if hasattr(self, name)})


def _file_values(path: Path, fields: Mapping[str, FieldInfo]) -> dict[str, Any]:
    """The settings file: the same names in lower case, VAULT_* ones as vault_*."""
    try:
        values = tomllib.loads(path.read_text())
    except OSError as error:
        raise SettingsError([f"GPUAAS_CONFIG: cannot read {path}: {error.strerror}"]) from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError([f"GPUAAS_CONFIG: {path} is not TOML: {error}"]) from None
    unknown = sorted(set(values) - set(fields))
    if unknown:
        raise SettingsError([f"{path}: unknown setting {name!r}" for name in unknown])
    return {(fields[name].validation_alias or name): value for name, value in values.items()}  # type: ignore[misc]


def load(of_app: type[BaseModel]) -> Settings:
    """Read and validate the runner's settings and those of the app, which may give ours another default.

    SettingsError names every wrong setting, and quotes no value that could be a secret.
    """
    kind: type[Settings] = create_model("Settings", __base__=(of_app, Settings))  # type: ignore[arg-type]
    config = os.environ.get("GPUAAS_CONFIG")
    values = _file_values(Path(config), kind.model_fields) if config else {}
    try:
        return kind(**values)
    except ValidationError as error:
        raise SettingsError([_message(problem["loc"], problem["msg"]) for problem in error.errors()]) from None


def _message(location: tuple[int | str, ...], message: str) -> str:
    name = str(location[0])
    variable = name if name.isupper() else f"GPUAAS_{name.upper()}"
    message = message.removeprefix("Value error, ") if message.endswith(NOT_SET) else message
    if message == "Field required":
        message = NOT_SET
    return f"{variable}: {message}"


def clear_secrets() -> None:
    """Remove secrets from the environment, so that child processes do not inherit them."""
    for variable in [one for one in os.environ if one.upper() in SECRET_VARIABLES]:
        del os.environ[variable]
