"""preload: set-up of the Ansible process before it forks and before it contacts a host.

Filters and tests: Ansible runs each task of each host in a new process, which loads all filters and tests at its first
template. That was a third of the CPU time of seven joins. Loaded in the parent process, they are inherited.

Output: Ansible prints text of hosts (warnings of a module, the message of a failure) unchanged. A terminal would
interpret control characters in it, and ansible-runner finds its events in the same stream by markers. So control
characters are not printed.

Only a vars plugin is loaded early enough. This one gives no variables.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ansible.plugins.loader import filter_loader, test_loader
from ansible.plugins.vars import BaseVarsPlugin
from ansible.utils.display import Display

DOCUMENTATION = r"""
name: preload
short_description: Load filters and tests before Ansible forks, and print no control characters
description: Gives no variables.
options:
  stage:
    description: Unused; every vars plugin has it.
    choices: [all, inventory, task]
"""

_CONTROL = {code: "?" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\r\t"}

for loader in (filter_loader, test_loader):
    list(loader.all())


def _without_control_characters(display: Callable[..., None]) -> Callable[..., None]:
    """Colours are added later, and ansible-runner writes its markers elsewhere: both stay."""

    @functools.wraps(display)
    def printed(self: Display, msg: str, *arguments: Any, **options: Any) -> None:
        display(self, msg.translate(_CONTROL) if isinstance(msg, str) else msg, *arguments, **options)

    return printed


Display.display = _without_control_characters(Display.display)


class VarsModule(BaseVarsPlugin):  # type: ignore[misc]
    REQUIRES_ENABLED = True

    def get_vars(self, *_arguments: Any, **_options: Any) -> dict[str, Any]:
        return {}
