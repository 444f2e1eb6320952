"""preload: what has to be in place once, before Ansible forks and before it contacts a host.

Filters and tests: Ansible runs each task of each host in a process of its own, and loads all of them in it at the first
template, again and again: a third of what seven joins cost this machine. Loaded in the parent they are simply there.

Output: Ansible prints words of hosts (a module's warnings, a failure's message) as they come. A terminal obeys the
control characters in them, and ansible-runner takes its events from marked places in the same stream. So none is
printed.

Only a plugin that is called before the first task can do that; this one should give variables, and gives none.
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
    """Colours are added further in, and ansible-runner's marks are written past it: both stay."""

    @functools.wraps(display)
    def printed(self: Display, msg: str, *arguments: Any, **options: Any) -> None:
        display(self, msg.translate(_CONTROL) if isinstance(msg, str) else msg, *arguments, **options)

    return printed


Display.display = _without_control_characters(Display.display)


class VarsModule(BaseVarsPlugin):  # type: ignore[misc]
    REQUIRES_ENABLED = True

    def get_vars(self, *_arguments: Any, **_options: Any) -> dict[str, Any]:
        return {}
