"""Whether a call may change this host: a host serves one app instance, and an older claim than the newest is refused.

The instance's id is in the ledger, and in a mark in /etc that an operator finds. The newest claim number of each member
is under /run. It stays there after the member was removed, so a late call is refused. After a reboot it is gone, and
the ledger alone decides.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..app import NAME, RUN_DIRECTORY, TITLE
from .baseline import read_host_state
from .errors import INTERVENTION, REPAIRABLE, RETRYABLE, AdapterError
from .facts import utc_time
from .ledger import LEDGER, Document, read, write, write_atomically

MARK = Path("/etc") / NAME / "owner.json"
FENCES = RUN_DIRECTORY / "fences.json"
CLEAN_UP = "ansible-playbook -i 'HOST,' -u USER playbooks/clean_host.yml -e gpuaas_clean_instance={}"

# Codes of errors that mean: the host has nothing of the call's instance.
ABSENT = ("host_in_use", "host_left_over", "not_a_member")
# Added to every call of a changing module by its action plugin (plugins/action/claimed.py).
CLAIM_ARGUMENT: dict[str, Any] = {
    "claim": {
        "type": "dict",
        "default": {},
        "options": {
            "instance": {"type": "str"},
            "member": {"type": "str"},
            "number": {"type": "int"},
            "first": {"type": "bool", "default": False},
            "touched": {"type": "bool", "default": False},
            "unfenced": {"type": "bool", "default": False},
        },
    }
}


@dataclass(frozen=True)
class Claim:
    """The member that a call is for, and the number of its claim, from the inventory."""

    instance: str | None = None
    member: str | None = None
    number: int | None = None
    first: bool = False  # the first play of the member
    touched: bool = False  # by the platform's record, a member of the instance changed this host before
    unfenced: bool = False  # an operator overrides the check of the number

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Claim:
        return cls(**{key: value for key, value in (params.get("claim") or {}).items() if value is not None})


@dataclass(frozen=True)
class HostOwner:
    """The instance that the host serves, read from the host."""

    mark: str | None = None
    ledger: Document | None = None
    number: int | None = None  # the newest claim number of the member

    @property
    def instance(self) -> str | None:
        return self.mark or (self.ledger.instance if self.ledger else None)


def check_claim(claim: Claim, found: HostOwner) -> bool:
    """Whether the instance is on the host already. Raises the reason why the call may not change the host."""
    named = [one for one in (found.mark, found.ledger.instance if found.ledger else None) if one]
    if named and claim.instance is None and not claim.unfenced:
        raise _claim_required(named[0])
    for instance in named:
        if instance != claim.instance:
            raise _in_use(instance)
    if claim.unfenced:
        return found.ledger is not None
    if found.ledger is not None and found.instance is None and claim.instance and not claim.touched:
        raise _left_over_without_id()
    if claim.number is None:
        if found.instance:
            raise _claim_required(found.instance)
        return found.ledger is not None
    if found.number is not None and claim.number < found.number:
        raise AdapterError(
            "fenced",
            f"The call has claim number {claim.number} for member {claim.member}, but the host has seen {found.number}."
            " Nothing was changed. Another runner has the newer claim and continues.",
            RETRYABLE,
        )
    if found.ledger is None and not claim.first:
        raise AdapterError(
            "not_a_member",
            f"The host has nothing of instance {claim.instance}: the member was removed, or the host was reinstalled."
            " Nothing was changed. To use the host, remove the member and add it again.",
            INTERVENTION,
        )
    return found.ledger is not None


def read_owner(claim: Claim) -> HostOwner:
    """The owner of the host. A file that cannot be read is an error, not an absent owner."""
    return HostOwner(read_mark(), read(LEDGER), _numbers().get(claim.member or "", {}).get("number"))


def record_claim(claim: Claim, found: HostOwner, *, begin: bool) -> None:
    """Write the claim number and the instance's id before the change. The caller holds the host's lock."""
    if claim.instance is None or (claim.number is None and not claim.unfenced):
        return  # a role without a runner: a mark would make its next call fail
    if claim.number is not None and claim.member and claim.number != found.number:
        numbers = _numbers() | {claim.member: {"instance": claim.instance, "number": claim.number}}
        write_atomically(FENCES, json.dumps({"members": numbers}, indent=1, sort_keys=True).encode(), mode=0o600)
    if found.ledger is None and not begin:
        return
    if found.mark is None:
        write_mark(claim.instance)
    if found.ledger is None:
        LEDGER.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write(LEDGER, Document(baseline=read_host_state(), instance=claim.instance))
    elif found.ledger.instance is None:
        write(LEDGER, replace(found.ledger, instance=claim.instance))


def read_mark() -> str | None:
    """The instance in the mark; None without a mark."""
    try:
        return str(uuid.UUID(json.loads(MARK.read_text())["instance"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise AdapterError(
            "mark_unreadable",
            f"{MARK} on the host cannot be read, so the instance that the host serves is unknown. Nothing was changed."
            f" Compare with the instance in {LEDGER}, correct or remove the file, then retry.",
            INTERVENTION,
        ) from None


def write_mark(instance: str) -> None:
    MARK.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    document = {
        "instance": instance,
        "since": utc_time(),
        "meaning": f"This host serves the {TITLE} cluster of the GPUaaS app instance named here. If that instance is"
        f" gone, clean the host with: {CLEAN_UP.format(instance)}",
    }
    write_atomically(MARK, json.dumps(document, indent=1).encode(), mode=0o644)


def remove_mark() -> None:
    """The last step of a clean-up. A directory with other files stays."""
    MARK.unlink(missing_ok=True)
    if MARK.parent.is_dir() and not any(MARK.parent.iterdir()):
        MARK.parent.rmdir()


def _numbers() -> dict[str, dict[str, Any]]:
    try:
        members = json.loads(FENCES.read_text())["members"]
        return {str(key): {**value, "number": int(value["number"])} for key, value in members.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise AdapterError(
            "fences_unreadable",
            f"{FENCES} on the host cannot be read, so the newest claim is unknown. Nothing was changed."
            " Make sure that no play runs for this host, remove the file, then retry.",
            REPAIRABLE,
        ) from None


def _in_use(instance: str) -> AdapterError:
    return AdapterError(
        "host_in_use",
        f"The host serves instance {instance}. Nothing was changed. Remove the worker from that instance first, or"
        " choose another allocation.",
        INTERVENTION,
        instance=instance,
    )


def _left_over_without_id() -> AdapterError:
    return AdapterError(
        "host_left_over",
        f"The host has {LEDGER} of an earlier cluster without an instance, and no record of this instance explains it."
        f" Nothing was changed. Clean the host with `{CLEAN_UP.format('none')}`, then retry.",
        INTERVENTION,
    )


def _claim_required(instance: str) -> AdapterError:
    return AdapterError(
        "claim_required",
        f"The host serves instance {instance}, and the play has no claim on it. Nothing was changed. Run it as"
        f" `{NAME} exec --instance {instance} --reason 'WHY' -- ansible-playbook -i gpuaas.yml ...`; in an emergency"
        f" add `-e gpuaas_app_instance_id={instance} -e gpuaas_unfenced=true`.",
        INTERVENTION,
    )
