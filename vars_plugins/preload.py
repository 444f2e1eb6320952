"""preload: load what every task needs once, before Ansible forks.

Ansible runs each task of each host in a process of its own, and loads all filters and tests in it at the first
template, again and again: a third of what seven joins cost this machine. Loaded in the parent they are simply there.
Only a plugin that is called before the first task can do that; this one should give variables, and gives none.
"""

from __future__ import annotations

from typing import Any

from ansible.plugins.loader import filter_loader, test_loader
from ansible.plugins.vars import BaseVarsPlugin

DOCUMENTATION = r"""
name: preload
short_description: Load filters and tests before Ansible forks
description: Gives no variables.
options:
  stage:
    description: Unused; every vars plugin has it.
    choices: [all, inventory, task]
"""

for loader in (filter_loader, test_loader):
    list(loader.all())


class VarsModule(BaseVarsPlugin):  # type: ignore[misc]
    REQUIRES_ENABLED = True

    def get_vars(self, *_arguments: Any, **_options: Any) -> dict[str, Any]:
        return {}
