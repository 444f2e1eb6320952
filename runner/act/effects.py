"""Steps that are not writes to the platform: read host keys, ask package policy, delete secrets."""

from dataclasses import replace

from runner import log
from runner.act import keyscan, package_policy
from runner.act.vault import SecretsError, Vault
from runner.intent.connection import read_address
from runner.intent.host_keys import fingerprint, pin
from runner.model.app import App
from runner.model.names import host_name
from runner.model.plan import AdapterError, ForgetSecrets, Pin, SetMember, Step, stamp
from runner.model.world import World
from runner.platform.client import Client
from runner.settings import Settings


def delete_secrets(step: ForgetSecrets, world: World, client: Client, settings: Settings, app: App) -> World:
    try:
        Vault(settings, app.runtime_secrets, client.meter, client.tracer).delete_secrets(world.instance.id)
    except SecretsError as error:
        log.get().warning("secrets not deleted", error_code=error.code, problem=error.message)
        return world.later(not_forgotten=AdapterError(error.code, error.message, "retryable"))
    return world.after(step)


def ask_policy(world: World, client: Client, settings: Settings, app: App) -> World:
    return world.later(packages=package_policy.resolve(client, settings, app, world.instance))


def read_host_keys(step: Pin, world: World) -> tuple[World, list[Step]]:
    """Read the keys of hosts that have none on record. Returns the writes that pin them, to be sent before any play."""
    members = {host_name(member): member for member in step.members}
    log.get().info("read host keys", members=len(members), why=step.why)
    scanned, problems = keyscan.scan(
        {name: read_address(world.allocations[member.allocation_id])[:2] for name, member in members.items()}  # type: ignore[index]
    )
    errors = {members[name].id: problem for name, problem in problems.items()}
    world = world.later(key_scan_errors={**world.key_scan_errors, **errors})
    writes: list[Step] = []
    for name, found in scanned.items():
        fingerprints = ", ".join(fingerprint(key.split()[1]) for key in found.keys)
        log.get(member_id=members[name].id).warning(
            "host keys pinned at first contact", address=found.address, keys=fingerprints
        )
        pinned = pin(found.keys, found.address, stamp(world.now))
        why = f"{found.address} showed {fingerprints}"
        pinning = SetMember(why, members[name], members[name].status, pinned, consumes_outcome=False)
        writes.append(replace(pinning, operation=step.operation, rule=step.rule, play_rule=step.play_rule))
    return world, writes
