"""converge_host changes a host: see claimed.py."""

from __future__ import annotations

from ansible.plugins.loader import action_loader

ActionModule = action_loader.get("claimed", class_only=True)
