"""Exclusive access of one member to a host, and one error format for all modules.

The claim of a call that may change the host is checked under the lock (claim.py): the host must be free or serve the
call's instance, and the member must have no newer claim.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from ..app import RUN_DIRECTORY, STATE_DIRECTORY
from .claim import ABSENT, Claim, check_claim, read_owner, record_claim
from .errors import RETRYABLE, AdapterError, from_os_error
from .facts import utc_time

# A module goes on when its play is stopped or its runner dies, and may hang. So a call waits for a limited time only:
# longer than an installation from a slow mirror takes, and less than a play may last (GPUAAS_PLAY_TIMEOUT_SECONDS).
WAIT_SECONDS, LOOK_SECONDS = 1500.0, 0.2
HOLDER_BYTES = 400


@contextmanager
def host_lock(
    module: Any, doing: str, *, changes: bool = True, begin: bool = True, alone: bool = True, absent_ok: bool = False
) -> Iterator[bool]:
    """Gives whether the call's instance is on the host.

    A call without `changes` and a dry run are not refused. Without `begin` a host without a ledger gets neither mark
    nor ledger. `alone` waits for the other member on the same host, and for a call that a stopped play left. With
    `absent_ok` a host that has nothing of the instance is not an error: there is nothing to remove.
    """
    changes = changes and not module.check_mode
    claim = Claim.of(module.params)
    try:
        with _lock(claim, doing) if alone and (changes or RUN_DIRECTORY.is_dir()) else nullcontext():
            yield _check_access(claim, changes, begin, absent_ok)
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
def _lock(claim: Claim, doing: str) -> Iterator[None]:
    """The file is under /run, which a clean-up does not remove: two calls could otherwise hold two locks.

    It names its holder, for the error of a call that waits too long.
    """
    RUN_DIRECTORY.mkdir(mode=0o711, parents=True, exist_ok=True)
    lock = os.open(RUN_DIRECTORY / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        _wait_for(lock)
        holder = f"process {os.getpid()}, {doing} for member {claim.member} since {utc_time()}"
        os.ftruncate(lock, 0)
        os.pwrite(lock, holder.encode()[:HOLDER_BYTES], 0)
        yield
    finally:
        os.close(lock)


def _wait_for(lock: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise _busy(lock) from None
        time.sleep(LOOK_SECONDS)


def _busy(lock: int) -> AdapterError:
    holder = os.pread(lock, HOLDER_BYTES, 0).decode(errors="replace") or "a process that did not name itself"
    return AdapterError(
        "host_lock_busy",
        f"The lock of the host was not free within {WAIT_SECONDS:.0f} s. It is held by another call of the adapter:"
        f" {holder}. Nothing was changed, and it is tried again. If that does not help, find what that process waits"
        " for, or end it.",
        RETRYABLE,
    )
