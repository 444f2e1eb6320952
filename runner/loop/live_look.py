"""A look at an instance's runtime outside of a tick, for a person who wants to plan with live data."""

from typing import Any

from runner.act import play_secrets
from runner.act.play_queue import Turn
from runner.act.plays import play
from runner.model.app import App
from runner.model.world import World
from runner.platform.client import Client
from runner.settings import Settings


def look(client: Client, settings: Settings, app: App, world: World) -> Any:
    """A snapshot from a read-only play; None if nothing can be looked at."""
    step = app.look(world)
    if step is None:
        return None
    with play_secrets.access(client, settings, world.instance) as access:
        turn = Turn(requested=True, forks=1, number=0)
        return play(
            step, world, app, access, settings, listen=lambda _: None, give_up=lambda: False, turn=turn
        ).snapshot
