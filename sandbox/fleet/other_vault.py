"""A Vault that is not the sandbox's, in which a fleet's platform keeps its secrets."""

from dataclasses import dataclass, field

from sandbox.fleet.errors import CannotRunError
from sandbox.platform.control_client import ControlClient, ControlError
from sandbox.platform.process import Running


@dataclass(frozen=True)
class OtherVault:
    """Its address, and a token that may make mounts, policies and AppRoles there."""

    address: str
    token: str = field(repr=False)


def use(control: ControlClient, vault: OtherVault, fleet: str, *, is_new: bool) -> None:
    """Have the platform keep its secrets there, from the beginning."""
    if not is_new and not control.other_vault():
        raise CannotRunError(f"fleet {fleet!r} keeps its secrets in its own stand-in; use another name")
    control.use_vault(vault.address, vault.token, f"gpuaas-sandbox-{fleet}"[:63])


def release(platform: Running | None) -> str | None:
    """Remove what was made there. Returns why it could not be: what the sandbox has itself goes in any case."""
    try:
        if platform is not None:
            ControlClient(platform.base_url, platform.admin_token).release_vault()
    except ControlError as error:
        return str(error)
    return None


def variables(control: ControlClient) -> dict[str, str]:
    """What a runner's settings have in place of the platform's own stand-in."""
    found = control.other_vault()
    if not found:
        return {}
    mounts = dict.fromkeys(("GPUAAS_VAULT_MOUNT", "GPUAAS_VAULT_APPROLE_MOUNT"), found["mount"])
    return {"VAULT_ADDR": found["address"], **mounts}
