"""What all commands share: how settings are read, and as whom the platform is asked."""

import contextlib
import os
from collections.abc import Iterator
from typing import Annotated

import typer

from runner import log, settings
from runner.platform.client import Client
from runner.settings import Settings

OK, FAILED, CANNOT, NOT_ALONE = 0, 1, 2, 3

Json = Annotated[bool, typer.Option("--json", help="Answer with JSON on stdout.")]
Which = Annotated[str | None, typer.Option("--instance", "-i", help="Id, its start, or a name; default: the only one.")]


def load() -> Settings:
    loaded = settings.load()
    settings.forget_secrets()
    _forget_ansible()
    log.configure(loaded)
    return loaded


def _forget_ansible() -> None:
    """The bundle's own file sets Ansible up: what a person has exported may make plays show secrets, or keep them."""
    for name in [one for one in os.environ if one.startswith("ANSIBLE_")]:
        del os.environ[name]


@contextlib.contextmanager
def as_person() -> Iterator[tuple[Client, Settings]]:
    loaded = load()
    with Client(loaded, person=True) as client:
        yield client, loaded


@contextlib.contextmanager
def as_reader() -> Iterator[tuple[Client, Settings]]:
    """For commands that only read: as the person if there is a token, else as the service account."""
    loaded = load()
    with Client(loaded, person=loaded.operator_token is not None) as client:
        yield client, loaded
