"""Exclusive access of one member to a host, and one error format for all modules.

The claim of a call that may change the host is checked under the lock (claim.py): the host must be free or serve the
call's instance, and the member must have no newer claim.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import IO, Any

from ..app import RUN_DIRECTORY, STATE_DIRECTORY
from .claim import ABSENT, Claim, check_claim, read_owner, record_claim
from .errors import AdapterError, from_os_error


@contextmanager
def host_lock(
    module: Any, doing: str, *, changes: bool = True, begin: bool = True, alone: bool = True, absent_ok: bool = False
) -> Iterator[bool]:
    """Gives whether the call's instance is on the host.

    A call without `changes` and a dry run are not refused. Without `begin` a host without a ledger gets neither mark
    nor ledger. `alone` waits for the other member on the same host. With `absent_ok` a host that has nothing of the
    instance is not an error: there is nothing to remove.
    """
    changes = changes and not module.check_mode
    try:
        with _lock() if alone and (changes or RUN_DIRECTORY.is_dir()) else nullcontext():
            yield _check_access(Claim.of(module.params), changes, begin, absent_ok)
    except OSError as error:
        problem = from_os_error(error, doing)
        module.fail_json(msg=problem.message, adapter_error=problem.as_dict())
    except AdapterError as error:
        module.fail_json(msg=error.message, adapter_error=error.as_dict())


def _check_access(claim: Claim, changes: bool, begin: bool, absent_ok: bool) -> bool:
    found = read_owner(claim)
    try:
        ours = check_claim(claim, found)
    except AdapterError as error:
        if changes and not (absent_ok and error.code in ABSENT):
            raise
        return False
    if changes:
        record_claim(claim, found, begin=begin)
        if begin:
            STATE_DIRECTORY.mkdir(mode=0o700, parents=True, exist_ok=True)
    return ours


@contextmanager
def _lock() -> Iterator[IO[str]]:
    """The file is under /run, which a clean-up does not remove: two calls could otherwise hold two locks."""
    RUN_DIRECTORY.mkdir(mode=0o711, parents=True, exist_ok=True)
    descriptor = os.open(RUN_DIRECTORY / "lock", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
