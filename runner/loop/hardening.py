"""What a process does before anything else: it holds the secrets of a tick, and starts plays."""

import ctypes
import os
import resource

PR_SET_DUMPABLE = 4


def protect_memory() -> None:
    """No core files, and no access by other processes. Child processes inherit the limit, but not the flag."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Without the flag no debugger can attach, and /proc/PID/environ, which still has the settings, is closed too.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)


def clear_ansible_settings() -> None:
    """Only the bundle's own file configures Ansible: exported settings may make plays print or keep secrets."""
    for name in [one for one in os.environ if one.startswith("ANSIBLE_")]:
        del os.environ[name]
