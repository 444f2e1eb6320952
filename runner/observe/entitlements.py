"""Reads which projects may use the app."""

from runner import log
from runner.model.entitlements import Entitlements
from runner.model.errors import NotFound, PlatformError, Unavailable
from runner.observe.other_instances import WAIT_SECONDS
from runner.platform.client import Client
from runner.settings import Settings

PRESENT = "GPUAAS_ENTITLEMENT_POLICY is none, but the platform has entitlements and answered: unset it"


def read(client: Client, settings: Settings) -> Entitlements:
    """One attempt: what runs does not wait for the answer, and what is to begin is asked about again in the next tick.

    `GPUAAS_ENTITLEMENT_POLICY=none` states that the platform has no entitlements. It is asked all the same.
    """
    required = settings.entitlement_policy != "none"
    try:
        with client.clone(patience=0, timeout=WAIT_SECONDS) as client:
            found = client.entitlements(app_slug=settings.app_slug)
    except NotFound:
        return Entitlements(missing=True, required=required)
    except PlatformError as error:
        log.get().warning("entitlements not readable", error_code=error.code, problem=str(error))
        problem = f"{error.code}, HTTP {error.status}" if error.status else error.code
        # An answer that is not understood is a no. Without an answer nothing is concluded.
        if isinstance(error, Unavailable) and error.code != "bad_answer":
            return Entitlements(held=f"whether the project may use the app cannot be read ({problem})")
        return Entitlements(unreadable=problem)
    if not required:
        log.get().error("wrong setting", error_code="entitlement_policy_present", problem=PRESENT)
        return Entitlements(held=PRESENT)
    return Entitlements(tuple(found), unreadable=str(found.unreadable[0]) if found.unreadable else None)
