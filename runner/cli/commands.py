"""What all commands share: exit codes, settings, and the identity with which they call the platform."""

import contextlib
import os
from collections.abc import Iterator

import typer

from runner import log, settings
from runner.act.vault import SecretsError
from runner.loop import hardening, manual
from runner.loop.process_lock import AnotherRunner
from runner.model.errors import PlatformError, RequestError
from runner.model.platform import InstanceStatus
from runner.model.scope import TenantScope
from runner.platform.client import Client
from runner.settings import Settings, SettingsError
from runner.slurm.app import SLURM

OK, FAILED, CANNOT_RUN, HELD_BY_OTHER, TIME_OVER = 0, 1, 2, 3, 4
INTERRUPTED = 130  # as a shell reports Ctrl-C


def load() -> Settings:
    loaded = settings.load(SLURM.settings)
    settings.clear_secrets()
    hardening.clear_ansible_settings()
    log.configure(loaded)
    log.capture()
    return loaded


def require_one_scope(loaded: Settings) -> None:
    """A runner works on a project or on one runtime; a tenant alone is enough for a person's commands."""
    if isinstance(loaded.scope, TenantScope):
        raise settings.SettingsError(
            ["GPUAAS_SHARED_RUNTIME_ID: is not set. With GPUAAS_ORG_ID it names the shared runtime to serve"]
        )


# What ends a command with a sentence and an exit code, and never with a traceback.
EXPECTED: dict[type[Exception], int] = {
    SettingsError: CANNOT_RUN,
    AnotherRunner: HELD_BY_OTHER,
    manual.MemberHeld: HELD_BY_OTHER,
    PlatformError: CANNOT_RUN,
    RequestError: CANNOT_RUN,
    SecretsError: CANNOT_RUN,
    FileNotFoundError: CANNOT_RUN,
}
_NAMED = {SettingsError: "settings_invalid", AnotherRunner: "another_runner"}


def exit_code(error: Exception) -> int:
    return next(code for kind, code in EXPECTED.items() if isinstance(error, kind))


def problems(error: Exception) -> list[str]:
    return error.problems if isinstance(error, SettingsError) else [str(error)]


@contextlib.contextmanager
def as_service() -> Iterator[bool]:
    """Report what ends the command in its log, if the log is wanted as JSON: a collector reads nothing else.

    Yields whether it is so. Without that, sentences on stderr are for a person.
    """
    only_lines = os.environ.get("GPUAAS_LOG_FORMAT") == "json"
    try:
        yield only_lines
    except tuple(EXPECTED) as error:
        if not only_lines:
            raise
        if isinstance(error, SettingsError):
            log.configure_json()
        code = log.error_code(error, _NAMED.get(type(error)))
        for problem in problems(error):
            log.get().error("run ended with an error", problem=problem, **code)
        raise typer.Exit(exit_code(error)) from None


@contextlib.contextmanager
def as_operator() -> Iterator[tuple[Client, Settings]]:
    with _as(load(), person=True) as caller:
        yield caller


@contextlib.contextmanager
def as_reader() -> Iterator[tuple[Client, Settings]]:
    """For commands that only read: as the operator if there is a token, else as the service account."""
    loaded = load()
    with _as(loaded, person=loaded.operator_token is not None) as caller:
        yield caller


@contextlib.contextmanager
def _as(loaded: Settings, *, person: bool) -> Iterator[tuple[Client, Settings]]:
    """A client of the settings' scope. A tenant's administrator who names no runtime gets the only one there is."""
    with contextlib.ExitStack() as opened:
        client = opened.enter_context(Client(loaded, person=person))
        if isinstance(loaded.scope, TenantScope):
            listed = client.instances(app_slug=loaded.app_slug)
            alive = [one.id for one in listed if one.status != InstanceStatus.DELETED]
            if len(alive) == 1:
                loaded = loaded.model_copy(update={"shared_runtime_id": alive[0]})
                client = opened.enter_context(Client(loaded, person=person))
        yield client, loaded
