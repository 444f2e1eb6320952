"""Protects the memory of this process, which holds the secrets of a tick, from core files and other processes."""

import ctypes
import resource

PR_SET_DUMPABLE = 4


def protect_memory() -> None:
    """To be called before anything else. Child processes inherit the limit, but not the flag."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Without the flag no debugger can attach, and /proc/PID/environ, which still has the settings, is closed too.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)
