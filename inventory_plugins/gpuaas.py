"""The runner's inventory for ansible-playbook by hand: the same code, the same hosts, no secret."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleParserError
from ansible.plugins.inventory import BaseInventoryPlugin, Cacheable, Constructable

DOCUMENTATION = """
name: gpuaas
author: gpuaas-slurm
short_description: Members of the project's app instances as hosts
description:
  - Reads instances, members and allocations from the GPUaaS API with the settings the runner uses
    (GPUAAS_* in the environment, or the file named by GPUAAS_CONFIG).
  - A host is a member, in a group by its component_key and a group by its instance.
  - A member without a usable connection (an allocation that is not active, a record that does not validate) is left
    out with a warning.
  - Under C(gpuaas-slurm exec) a host has the number of its claim as C(gpuaas_fence). Without it modules refuse to
    change a host of a cluster.
  - C(slurm_package_source) is the answer of package policy to C(gpuaas-slurm exec). Without it a play installs nothing.
options:
  plugin:
    description: Names this plugin.
    required: true
    choices: [gpuaas]
  instance:
    description: Only this instance; an id, the start of an id, or a name.
    type: str
  cache:
    description: Keep the answer for later calls. Off by default, since a stale inventory is wrong.
    type: bool
    default: false
extends_documentation_fragment:
  - inventory_cache
"""

SUFFIXES = ("gpuaas.yml", "gpuaas.yaml")


class InventoryModule(BaseInventoryPlugin, Constructable, Cacheable):  # type: ignore[misc]
    NAME = "gpuaas"

    def verify_file(self, path: str) -> bool:
        return bool(super().verify_file(path)) and Path(path).name.endswith(SUFFIXES)

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        super().parse(inventory, loader, path, cache)
        self._read_config_data(path)
        for tree in self._trees(path, cache):
            self._add(tree["all"])

    def _trees(self, path: str, cache: bool) -> list[dict[str, Any]]:
        if not (cache and self.get_option("cache")):
            return self._fetch()
        self.load_cache_plugin()
        key = self.get_cache_key(path)
        if key not in self._cache:
            self._cache[key] = self._fetch()
        return list(self._cache[key])

    def _fetch(self) -> list[dict[str, Any]]:
        from runner import settings
        from runner.act import dns, inventory, package_policy, play_secrets
        from runner.intent.errors import IntentError
        from runner.loop import manual
        from runner.loop.run import select_instances
        from runner.model.errors import PlatformError, RequestError
        from runner.observe.find import find_instance
        from runner.platform.client import Client
        from runner.slurm.app import SLURM

        trees = []
        try:
            loaded = settings.load(SLURM.settings)
            fences = manual.read_claims(os.environ.get(manual.CLAIMS_VARIABLE))
            agents = play_secrets.read_agents(os.environ.get(play_secrets.AGENTS_VARIABLE))
            with Client(loaded, person=loaded.client_secret is None) as client:
                wanted = self.get_option("instance")
                only = find_instance(client, loaded, wanted).id if wanted else None
                allocations = {one.id: one for one in client.allocations()}
                for instance in select_instances(client, loaded, only):
                    record = client.members(instance.id)
                    members = [one for one in record if one.status != "deleted"]
                    attached = client.attachments(instance.id)
                    tree, problems = inventory.build(
                        SLURM,
                        instance,
                        members,
                        allocations,
                        terms=package_policy.manual_terms(SLURM, instance),
                        fences=fences,
                        first=manual.new_members(members),
                        on_record=record,
                        correlation=manual.read_correlation(os.environ.get(manual.CORRELATION_VARIABLE), members),
                        attachments=None if attached.unreadable else attached,
                        agents=agents,
                    )
                    for member_id, problem in problems.items():
                        self.display.warning(f"member {member_id} left out: {problem.message}")
                    for name, why in dns.resolve_hosts(tree, SLURM).items():
                        self.display.warning(f"{name} left out: {why.message}")
                    trees.append(tree)
        except settings.SettingsError as error:
            raise AnsibleParserError("; ".join(error.problems)) from None
        except (PlatformError, RequestError, IntentError) as error:
            raise AnsibleParserError(str(error)) from None
        return trees

    def _add(self, tree: dict[str, Any]) -> None:
        for name, variables in tree["hosts"].items():
            self.inventory.add_host(name)
            for key, value in variables.items():
                self.inventory.set_variable(name, key, value)
        for group, content in tree["children"].items():
            self.inventory.add_group(group)
            for name in content["hosts"]:
                self.inventory.add_child(group, name)
            for key, value in content.get("vars", {}).items():
                self.inventory.set_variable(group, key, value)
