"""Observes an instance's runtime outside of a tick, for `plan --live`."""

from typing import Any

from runner import context
from runner.act import play_secrets
from runner.act.play_queue import PlaySlot
from runner.act.plays import play
from runner.model import cause
from runner.model.app import App
from runner.model.world import World
from runner.platform.client import Client
from runner.settings import Settings


def look(client: Client, settings: Settings, app: App, world: World) -> Any:
    """A snapshot from a read-only play; None if there is nothing to observe."""
    step = app.look(world)
    if step is None:
        return None
    with (
        context.bound(cause.of_instance(world.instance)),
        play_secrets.access(client, settings, app, world.instance) as access,
    ):
        slot = PlaySlot(requested=True, hosts=1)
        return play(
            step, world, app, access, settings, on_member_event=lambda _: None, give_up=lambda: False, slot=slot
        ).snapshot
