"""`python -m examples.web_farm run`: the runner of the web farm, with the settings of docs/usage/settings.md."""

import sys

import typer

from examples.web_farm.farm import WEB_FARM, FarmSettings
from runner import log, settings
from runner.act.vault import SecretsError
from runner.loop import hardening
from runner.loop import run as loop
from runner.loop.dry_run import dry_run
from runner.loop.process_lock import AnotherRunner, ProcessLock
from runner.model.errors import PlatformError
from runner.model.plan import shown
from runner.observe.world import observe
from runner.platform.client import Client
from runner.settings import Settings, SettingsError

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)


def load() -> Settings:
    loaded = settings.load(FarmSettings)
    settings.clear_secrets()
    hardening.clear_ansible_settings()
    log.configure(loaded)
    log.capture()
    return loaded


@app.command()
def run() -> None:
    """Carry out what is requested. Exit code 0: nothing failed; 1: an operation failed; 2: it could not run."""
    loaded = load()
    with Client(loaded) as client, ProcessLock(loaded) as process_lock:
        total = loop.run(client, loaded, WEB_FARM, process_lock=process_lock)
    raise typer.Exit(2 if total.problems else 1 if total.failed_operations else 0)


@app.command()
def plan() -> None:
    """What the next tick would do, and why. Touches no host."""
    loaded = load()
    with Client(loaded) as client:
        for one in loop.select_instances(client, loaded):
            for step in dry_run(observe(client, one, loaded, WEB_FARM), WEB_FARM):
                typer.echo("{step}: {subject}: {why}".format(**shown(step)))


def main() -> None:
    hardening.protect_memory()
    try:
        app()
    except (AnotherRunner, PlatformError, SecretsError, SettingsError) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
