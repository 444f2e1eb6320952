"""Values of labels. Each is from a closed set or of a bounded form, whatever the platform or a host sends."""

import re
from collections.abc import Collection, Mapping
from uuid import UUID

from runner.model.platform import Health, InstanceStatus, MemberStatus, OperationStatus
from runner.translate import RunResult

OTHER = "other"
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "LIST")
NO_ANSWER = "none"
STATUS_CLASSES = ("2xx", "3xx", "4xx", "5xx", NO_ANSWER)
RESULTS = (OperationStatus.SUCCEEDED.value, OperationStatus.FAILED.value, OperationStatus.CANCELLED.value)
PLAY_RESULTS = ("ok", "failed", "timeout", "stalled", "cancelled", "error")
HEALTHS = (*(one.value for one in Health), OTHER)
INSTANCE_STATUSES = (*(one.value for one in InstanceStatus if one != InstanceStatus.DELETED), OTHER)
MEMBER_STATUSES = (*(one.value for one in MemberStatus if one != MemberStatus.DELETED), OTHER)
VAULT_ROUTES = {
    "sys/wrapping/unwrap": re.compile(r"/v1/sys/wrapping/unwrap"),
    "auth/token/lookup-self": re.compile(r"/v1/auth/token/lookup-self"),
    "auth/{mount}/login": re.compile(r"/v1/auth/.+/login"),
    "{mount}/data/{path}": re.compile(r"/v1/.+?/data/.+"),
    "{mount}/metadata/{path}": re.compile(r"/v1/.+?/metadata/.+"),
}
_CLUSTER = re.compile(r"[A-Za-z0-9_-]{1,64}")


def one_of(value: object, values: Collection[str]) -> str:
    return value if isinstance(value, str) and value in values else OTHER


def status_class(status: int | None) -> str:
    return NO_ANSWER if status is None else one_of(f"{status // 100}xx", STATUS_CLASSES)


def vault_route(path: str) -> str:
    """The path of a call to Vault without mount and ids."""
    plain = path.partition("?")[0]
    return next((route for route, form in VAULT_ROUTES.items() if form.fullmatch(plain)), OTHER)


def play_result(result: RunResult | None) -> str:
    if result is None:
        return "error"
    codes = {outcome.error.code for outcome in result.outcomes.values() if outcome.error}
    for name in ("timeout", "stalled"):
        if f"play_{name}" in codes:
            return name
    if codes:
        return "failed"
    return "ok" if result.outcomes else "cancelled"


def cluster_labels(names: Mapping[UUID, str]) -> dict[UUID, str]:
    """A label for each instance. Clusters of the same name are told apart by the beginning of their instance's id."""
    plain = {one: name if _CLUSTER.fullmatch(name) else OTHER for one, name in names.items()}
    labels = list(plain.values())
    return {one: name if labels.count(name) == 1 else f"{name}-{one.hex[:8]}" for one, name in plain.items()}
