"""Fetches a runtime secret by name: from the runner that started the play, or from Vault in a play by hand."""

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
  - Returns a secret of the adapter in Vault, which is created on first use.
  - In a play of the runner it asks the runner; in a play by hand it logs in to Vault with the VAULT_ settings.
  - It fails if ANSIBLE_DEBUG would print the secret or ANSIBLE_KEEP_REMOTE_FILES would leave it on hosts, which these
    settings do in spite of C(no_log).
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
      A step of a rotation that is made first. C(stage) creates the next secret and returns it, C(promote) replaces the
      current secret by the next one, C(drop) deletes the next one. Each may be repeated.
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
                return [play_secrets.fetch_secret(path, instance, name, step) for name in terms]
            from runner.slurm.app import SLURM  # by hand only: the runner of a play serves the secrets of its own app

            vault = Vault(settings.load(SLURM.settings), SLURM.runtime_secrets)
            return [vault.runtime_secret(UUID(instance), name, step) for name in terms]
        except (SecretsError, settings.SettingsError, OSError, ValueError) as error:
            raise AnsibleLookupError(f"runtime secret not available: {error}") from None
