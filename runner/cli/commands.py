"""What all commands share: exit codes, settings, and the identity with which they call the platform."""

import contextlib
import os
from collections.abc import Iterator

from runner import log, settings
from runner.platform.client import Client
from runner.settings import Settings
from runner.slurm.app import SLURM

OK, FAILED, CANNOT_RUN, HELD_BY_OTHER, TIME_OVER = 0, 1, 2, 3, 4
INTERRUPTED = 130  # as a shell reports Ctrl-C


def load() -> Settings:
    loaded = settings.load(SLURM.settings)
    settings.clear_secrets()
    _clear_ansible_settings()
    log.configure(loaded)
    return loaded


def _clear_ansible_settings() -> None:
    """Only the bundle's own file configures Ansible: exported settings may make plays print or keep secrets."""
    for name in [one for one in os.environ if one.startswith("ANSIBLE_")]:
        del os.environ[name]


@contextlib.contextmanager
def as_operator() -> Iterator[tuple[Client, Settings]]:
    loaded = load()
    with Client(loaded, person=True) as client:
        yield client, loaded


@contextlib.contextmanager
def as_reader() -> Iterator[tuple[Client, Settings]]:
    """For commands that only read: as the operator if there is a token, else as the service account."""
    loaded = load()
    with Client(loaded, person=loaded.operator_token is not None) as client:
        yield client, loaded
