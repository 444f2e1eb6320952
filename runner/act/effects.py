"""What a step does beside the platform's records: read host keys, ask policy, delete secrets."""

from runner import log
from runner.act import keyscan, package_policy
from runner.act.vault import SecretsError, Vault
from runner.intent.connection import read_address
from runner.intent.host_keys import fingerprint, pin
from runner.model.names import host_name
from runner.model.plan import AdapterError, ForgetSecrets, Pin, SetMember, Step, stamp
from runner.model.world import World
from runner.platform.client import Client
from runner.settings import Settings


def forget_secrets(step: ForgetSecrets, world: World, settings: Settings) -> World:
    try:
        Vault(settings).forget(world.instance.id)
    except SecretsError as error:
        log.get().warning("secrets not deleted", problem=error.message)
        return world.later(not_forgotten=AdapterError(error.code, error.message, "retryable"))
    return world.after(step)


def ask_policy(world: World, client: Client, settings: Settings) -> World:
    return world.later(packages=package_policy.ask(client, settings, world.instance))


def read_host_keys(step: Pin, world: World) -> tuple[World, list[Step]]:
    """First sight: what the hosts show now, to be written before anything is run on them."""
    members = {host_name(member): member for member in step.members}
    log.get().info("read host keys", members=len(members), why=step.why)
    seen, problems = keyscan.scan(
        {name: read_address(world.allocations[member.allocation_id])[:2] for name, member in members.items()}  # type: ignore[index]
    )
    unread = {members[name].id: problem for name, problem in problems.items()}
    world = world.later(key_scan_errors={**world.key_scan_errors, **unread})
    writes: list[Step] = []
    for name, found in seen.items():
        known = ", ".join(fingerprint(key.split()[1]) for key in found.keys)
        log.get(member_id=members[name].id).warning(
            "host keys pinned at first sight", address=found.address, keys=known
        )
        noted = pin(found.keys, found.address, stamp(world.now))
        why = f"{found.address} showed {known}"
        writes.append(SetMember(why, members[name], members[name].status, noted, consumes_outcome=False))
    return world, writes
