"""preload: load what every task needs once, before Ansible forks.

Ansible runs each task of each host in a process of its own, and loads all filters and tests in it on the first template:
a tenth of a second, again and again. Loaded in the parent they are simply there. Only plugins that stand in a play's way
before its first task can do that, and one that gives variables is the least of them: this one gives none.
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

    def get_vars(self, loader: Any, path: str, entities: Any, cache: bool = True) -> dict[str, Any]:
        return {}
