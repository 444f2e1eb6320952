"""gpuaas-slurm trust: pin the ssh key of a host, after it changed on purpose or its note was lost."""

import uuid
from datetime import UTC, datetime
from typing import Annotated

import typer

from runner import context
from runner.cli import view
from runner.cli.commands import OK, load
from runner.cli.options import MEMBER_NAMES, AsServiceAccount, ByHandReason, Which
from runner.intent import host_keys
from runner.intent.connection import read_address
from runner.loop.by_hand import hand
from runner.loop.process_lock import ProcessLock
from runner.model.cause import Cause
from runner.model.errors import RequestError
from runner.model.member_notes import MemberNotes
from runner.model.names import host_name
from runner.model.plan import Detail, stamp
from runner.model.platform import Allocation, Member
from runner.observe.find import find_instance, find_member
from runner.platform.client import Client
from runner.slurm.app import SLURM


def trust(
    member: Annotated[str, typer.Argument(help=f"The member: {MEMBER_NAMES}.")],
    key: Annotated[str, typer.Option(help="The host's public key, as in /etc/ssh/ssh_host_ed25519_key.pub.")],
    reason: ByHandReason,
    instance: Which = None,
    as_service_account: AsServiceAccount = False,
) -> None:
    """Identify a member's host by this ssh key from now on. Take the key from the machine itself, not over ssh.

    Your token (GPUAAS_OPERATOR_TOKEN) puts it on record first, with the reason; `explain` shows the record by the
    correlation id that is printed.
    """
    loaded = load()
    with (
        ProcessLock(loaded) as process_lock,
        hand(loaded, reason, view.err.print, as_service_account=as_service_account) as person,
    ):
        one = find_instance(person.client, loaded, instance)
        process_lock.require_for(person.client, one)
        with Client(loaded) as client, context.bound(Cause(person.correlation_id)):
            found = find_member(client.members(one.id), member, SLURM)
            allocation = next((each for each in client.allocations() if each.id == found.allocation_id), None)
            detail = with_key(found, allocation, key) | _worked_on(person.correlation_id)
            pinned = host_keys.fingerprint(key.split()[1])
            with person.recorded(one, "trust", f"trust {host_name(found)} --key {pinned}", [found]) as ending:
                client.patch_member(found, {"adapter_detail": detail}, key=uuid.uuid4().hex)
                ending.exit_code = OK
        view.out.print(f"the host of {member} is identified by {pinned} from now on")


def _worked_on(correlation_id: str) -> Detail:
    """The member's record names this work, of which there is no trace."""
    return MemberNotes(correlation_id=correlation_id, trace_id=None).changes


def with_key(member: Member, allocation: Allocation | None, key: str) -> Detail:
    """The member's detail with the key pinned, and without the error about its former key."""
    if host_keys.read_keys([key]) is None:
        raise RequestError("--key is not an ssh public key. Pass type and key as in the .pub file: ssh-ed25519 AAAA...")
    if allocation is None:
        raise RequestError("the member has no allocation in this project, so it has no host whose key could be trusted")
    newer = host_keys.newer_note(member)
    if newer:
        raise RequestError(f"adapter_detail.{newer.message}")
    line = " ".join(key.split()[:2])
    published = (allocation.connection or {}).get("host_keys") or []
    if published and line not in [" ".join(str(one).split()[:2]) for one in published]:
        raise RequestError(
            "the platform has other keys for this host, and they take precedence. Correct them in the platform"
        )
    return (
        member.adapter_detail
        | host_keys.pin([line], read_address(allocation)[0], stamp(datetime.now(UTC)))
        | MemberNotes(host_key_changed=None).changes
        | (MemberNotes(last_adapter_error=None).changes if member.notes.error_code in host_keys.CODES else {})
    )
