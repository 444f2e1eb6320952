"""Whether a call may change this host: a host serves one app instance, and a call older than the newest claim is late.

The instance's id is in the ledger and in a mark outside the ledger's directory, which a person finds. The newest number
of each member is under /run, and stays there after the member was removed: a call that comes late finds it. After a
reboot it is gone, and then the ledger alone decides.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..app import NAME, RUN_DIRECTORY, TITLE
from .baseline import take
from .errors import INTERVENTION, REPAIRABLE, RETRYABLE, AdapterError
from .ledger import LEDGER, Document, read, write, write_atomically

MARK = Path("/etc") / NAME / "owner.json"
FENCES = RUN_DIRECTORY / "fences.json"
CLEAN_UP = "ansible-playbook -i 'HOST,' -u USER playbooks/clean_host.yml -e gpuaas_clean_instance={}"

# Codes that say that nothing of the call's instance is on the host.
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
    """For whom a call is made, as the inventory says."""

    instance: str | None = None
    member: str | None = None
    number: int | None = None
    first: bool = False  # the member is brought up for the first time
    touched: bool = False  # its record says that a member of the instance changed this host before
    unfenced: bool = False  # a person takes the responsibility: the number does not count

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Claim:
        return cls(**{key: value for key, value in (params.get("claim") or {}).items() if value is not None})


@dataclass(frozen=True)
class Holding:
    """Whom the host serves, as found on it."""

    mark: str | None = None
    ledger: Document | None = None
    number: int | None = None  # the newest that the member came with

    @property
    def instance(self) -> str | None:
        return self.mark or (self.ledger.instance if self.ledger else None)


def judge(claim: Claim, found: Holding) -> bool:
    """Whether the instance is on the host already; raises what keeps the call from changing anything."""
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
            f"The call carries number {claim.number} for member {claim.member}, and the host has seen {found.number}."
            " A newer claim exists, so this run stops. Nothing was changed.",
            RETRYABLE,
        )
    if found.ledger is None and not claim.first:
        raise AdapterError(
            "not_a_member",
            f"Nothing of instance {claim.instance} is on the host: the member was removed, or the host was reinstalled."
            " Nothing was changed. If the machine is to serve, remove the member and add it again.",
            INTERVENTION,
        )
    return found.ledger is not None


def look(claim: Claim) -> Holding:
    """What the host says about its owner. What cannot be read is an error: it is not the same as nothing."""
    return Holding(read_mark(), read(LEDGER), _numbers().get(claim.member or "", {}).get("number"))


def hold(claim: Claim, found: Holding, *, begin: bool) -> None:
    """Write the number and the instance's id, before the change that they are for. The host's lock is held."""
    if claim.instance is None or (claim.number is None and not claim.unfenced):
        return  # a role by itself: a mark would keep it from going on
    if claim.number is not None and claim.member and claim.number != found.number:
        numbers = _numbers() | {claim.member: {"instance": claim.instance, "number": claim.number}}
        write_atomically(FENCES, json.dumps({"members": numbers}, indent=1, sort_keys=True).encode(), mode=0o600)
    if found.ledger is None and not begin:
        return
    if found.mark is None:
        write_mark(claim.instance)
    if found.ledger is None:
        LEDGER.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write(LEDGER, Document(baseline=take(), instance=claim.instance))
    elif found.ledger.instance is None:
        write(LEDGER, replace(found.ledger, instance=claim.instance))


def read_mark() -> str | None:
    """The instance that the mark names; None without a mark."""
    try:
        return str(uuid.UUID(json.loads(MARK.read_text())["instance"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise AdapterError(
            "mark_unreadable",
            f"{MARK} on the host cannot be read, so it is not known whom the host serves. Nothing was changed. Look at"
            f" the instance in {LEDGER}, write it back or remove the file, then retry.",
            INTERVENTION,
        ) from None


def write_mark(instance: str) -> None:
    MARK.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    document = {
        "instance": instance,
        "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "meaning": f"This host serves the {TITLE} cluster of the GPUaaS app instance named here. If that instance is"
        f" gone, clean the host with: {CLEAN_UP.format(instance)}",
    }
    write_atomically(MARK, json.dumps(document, indent=1).encode(), mode=0o644)


def remove_mark() -> None:
    """The last thing of a clean-up. A directory with something else in it stays."""
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
            f"{FENCES} on the host cannot be read, so it is not known which claim is the newest. Nothing was changed."
            " See that no play runs for this host, remove the file, then retry.",
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
        f"The host has {LEDGER} of an earlier cluster, which names no instance, and no member of this instance is known"
        f" to have changed it. Nothing was changed. Clean it with `{CLEAN_UP.format('none')}`, then retry.",
        INTERVENTION,
    )


def _claim_required(instance: str) -> AdapterError:
    return AdapterError(
        "claim_required",
        f"The host serves instance {instance}, and the play carries no claim on it. Nothing was changed. Run it as"
        f" `{NAME} exec --instance {instance} -- ansible-playbook -i gpuaas.yml ...`; in an emergency add"
        f" `-e gpuaas_app_instance_id={instance} -e gpuaas_unfenced=true`.",
        INTERVENTION,
    )
