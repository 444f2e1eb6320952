"""Claims on a host, and the action plugins that carry them."""

import sys
from pathlib import Path
from typing import Any

from ansible.module_utils.host.claim import Claim
from ansible.plugins.loader import action_loader

ROOT = Path(__file__).resolve().parents[2]
OURS, OTHER = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
MEMBER = "33333333-3333-4333-8333-333333333333"


def claim(number: int | None = 5, **more: Any) -> Claim:
    return Claim(OURS, MEMBER, number, **more)


def action(name: str) -> tuple[Any, dict[str, Any]]:
    """An action plugin's class as Ansible finds it, and what its file defines."""
    action_loader.add_directory(str(ROOT / "plugins" / "action"))
    found = action_loader.get(name, class_only=True)
    return found, vars(sys.modules[found.__module__])
