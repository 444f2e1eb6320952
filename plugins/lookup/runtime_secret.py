"""Fetches a runtime secret by name, from the runner that started the play or, by hand, from Vault."""

from __future__ import annotations

import os
from typing import Any
from uuid import UUID

import ansible.constants as constants
from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

DOCUMENTATION = """
name: runtime_secret
author: gpuaas-slurm
short_description: A runtime secret of an app instance
description:
  - Returns a secret that the adapter keeps in Vault, making it on first use.
  - Inside the runner it asks the runner; in a play started by hand it logs in to Vault with the VAULT_ settings.
  - It gives none to an Ansible that would print it (ANSIBLE_DEBUG) or leave it on hosts (ANSIBLE_KEEP_REMOTE_FILES),
    which those settings do whatever C(no_log) says.
options:
  _terms:
    description: Names of the secrets, for example munge_key.
    required: true
  instance:
    description: The app instance's id.
    required: true
    type: str
  step:
    description: >-
      A step of the secret's turnover that is taken first. C(stage) makes the next one beside it and returns that,
      C(promote) puts the next one in its place, C(drop) forgets the next one. Each may be taken again.
    choices: [current, stage, promote, drop]
    default: current
    type: str
"""


class LookupModule(LookupBase):  # type: ignore[misc]
    def run(self, terms: list[str], variables: Any = None, **kwargs: Any) -> list[str]:
        self.set_options(var_options=variables, direct=kwargs)
        instance, step = self.get_option("instance"), self.get_option("step")
        from runner import settings
        from runner.act import play_secrets
        from runner.act.vault import SecretsError, Vault

        if constants.DEFAULT_DEBUG or constants.DEFAULT_KEEP_REMOTE_FILES:
            raise AnsibleLookupError(
                "runtime secret withheld: ANSIBLE_DEBUG would print it and ANSIBLE_KEEP_REMOTE_FILES would leave it on"
                " hosts. Unset them; -vvvv shows everything else"
            )
        try:
            path = os.environ.get(play_secrets.SOCKET_VARIABLE)
            if path:
                return [play_secrets.ask_server(path, instance, name, step) for name in terms]
            vault = Vault(settings.load())
            return [vault.runtime_secret(UUID(instance), name, step) for name in terms]
        except (SecretsError, settings.SettingsError, OSError, ValueError) as error:
            raise AnsibleLookupError(f"runtime secret not available: {error}") from None
