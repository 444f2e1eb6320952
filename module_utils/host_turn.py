"""One member's turn on a host: nobody else of us changes it meanwhile, and a failure has the one shape."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import IO, Any

from ansible.module_utils.adapter_error import AdapterError, from_os_error
from ansible.module_utils.converge_ledger import STATE_DIRECTORY


@contextmanager
def host_turn(module: Any, doing: str, *, begin: bool = True, alone: bool = True) -> Iterator[None]:
    """Two members may share a host, and the other may be converging at this moment: `alone` waits for it.

    Without `begin` a host that has nothing of ours is left without our directory, and there is nobody to wait for.
    """
    try:
        if begin:
            STATE_DIRECTORY.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _lock() if alone and STATE_DIRECTORY.is_dir() else nullcontext():
            yield
    except OSError as error:
        problem = from_os_error(error, doing)
        module.fail_json(msg=problem.message, adapter_error=problem.as_dict())
    except AdapterError as error:
        module.fail_json(msg=error.message, adapter_error=error.as_dict())


@contextmanager
def _lock() -> Iterator[IO[str]]:
    with (STATE_DIRECTORY / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
