"""What a person says of a machine whose ssh key changed on purpose, or whose note was lost: this is its key."""

import uuid
from datetime import UTC, datetime
from typing import Annotated

import typer

from runner import hostkeys, operator, view
from runner.commands import Which, load
from runner.inventory import read_address
from runner.plan import Detail, stamp
from runner.platform.client import Client
from runner.platform.models import Allocation, Member
from runner.verbs import MEMBER_NAMES


def trust(
    member: Annotated[str, typer.Argument(help=f"The member: {MEMBER_NAMES}.")],
    key: Annotated[str, typer.Option(help="The host's public key, as in /etc/ssh/ssh_host_ed25519_key.pub.")],
    instance: Which = None,
) -> None:
    """Have a member's host known by this ssh key from now on. Take the key from the machine itself, not from ssh."""
    loaded = load()
    with Client(loaded) as client:
        one = operator.find_instance(client, loaded, instance)
        found = operator.find_member(client.members(one.id), member)
        allocation = next((each for each in client.allocations() if each.id == found.allocation_id), None)
        said = noted(found, allocation, key)
        client.patch_member(
            found,
            {"adapter_detail": {**said, **found.unread}},
            key=uuid.uuid4().hex,
            correlation_id=found.correlation_id or one.correlation_id,
        )
        view.out.print(f"the host of {member} is known by {hostkeys.fingerprint(key.split()[1])} from now on")


def noted(member: Member, allocation: Allocation | None, key: str) -> Detail:
    """The member's detail with the key as the pinned one, and without what stood against it."""
    if hostkeys.read_keys([key]) is None:
        raise operator.AskedWrong("that is not an ssh public key: give the type and the key, as they stand in the file")
    if allocation is None:
        raise operator.AskedWrong("the member has no allocation in this project, so there is no host to know")
    line = " ".join(key.split()[:2])
    given = (allocation.connection or {}).get("host_keys") or []
    if given and line not in [" ".join(str(one).split()[:2]) for one in given]:
        raise operator.AskedWrong("the platform gives other keys for this host, and those count: correct them there")
    known = member.adapter_detail
    told = (known.get("last_adapter_error") or {}).get("code") in hostkeys.CODES
    return (
        known
        | hostkeys.pin([line], read_address(allocation)[0], stamp(datetime.now(UTC)))
        | {hostkeys.CHANGED: None}
        | ({"last_adapter_error": None} if told else {})
    )
