"""What is wished of a cluster, as one digest, and what became of it. Pure.

The controller's adapter_detail keeps `wish`, the digest of the wish that is live; `wish_refused`, the one that was
refused last and in whose words; and `change`, the one on trial now. So nothing is tried twice, and nothing is forgotten
half way.
"""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from runner.model.platform import AppInstance, Member

Detail = dict[str, Any]


def digest(instance: AppInstance) -> str:
    """The same wish gives the same digest, whether or not it can be fulfilled."""
    text = json.dumps([instance.app_version, instance.config or {}], sort_keys=True, default=str)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()[:16]


def people(instance: AppInstance) -> str:
    """The part of it that is about users, which every host has to have."""
    declared = (instance.config or {}).get("users") or []
    return "sha256:" + hashlib.sha256(json.dumps(declared, sort_keys=True, default=str).encode()).hexdigest()[:16]


def live(controller: Member) -> str | None:
    """The wish the cluster was last seen to serve; None before its first deploy is over."""
    known = controller.adapter_detail.get("wish")
    return known if isinstance(known, str) else None


def refused(controller: Member) -> Detail:
    """The wish that was refused last: digest, code and message; empty if none was."""
    known = controller.adapter_detail.get("wish_refused")
    return dict(known) if isinstance(known, dict) else {}


def on_trial(controller: Member) -> Detail:
    """The wish that is being tried; a run that was cut off leaves it here."""
    known = controller.adapter_detail.get("change")
    return dict(known) if isinstance(known, dict) else {}


def is_refused(instance: AppInstance, controller: Member) -> bool:
    return refused(controller).get("digest") == digest(instance)


def is_kept_back(instance: AppInstance, controller: Member) -> bool:
    """Whether a play must not render what is wished: it is not live, and not what is being tried."""
    known, wanted = live(controller), digest(instance)
    return known is not None and wanted != known and on_trial(controller).get("digest") != wanted


def is_pending(instance: AppInstance, controller: Member) -> bool:
    """Whether what is wished is neither live nor refused, or something is on trial still."""
    if on_trial(controller):
        return True
    known = live(controller)
    return known is not None and digest(instance) != known and not is_refused(instance, controller)


def dealt_with(controllers: Iterable[Member]) -> str | None:
    """The wish nobody has to come back to: the one that is live, or the one that was refused."""
    for controller in controllers:
        return str(refused(controller).get("digest") or "") or live(controller)
    return None


def reasons(controllers: Iterable[Member]) -> list[Detail]:
    """Why the cluster is not what is wished, for the instance's health."""
    return [
        {"member_id": str(one.id), "code": str(known.get("code")), "message": str(known.get("message"))[:1000]}
        for one in controllers
        if (known := refused(one))
    ]
