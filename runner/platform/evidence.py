"""Turns answers that differ from the contract into gaps, and logs each once.

A gap has no text of the platform's but status, code and names of fields: a body may quote a secret.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from runner import log
from runner.model.attachments import AttachmentStatus
from runner.model.errors import PlatformError
from runner.model.gaps import Basis, Gap, Gaps, Kind, PilotKind
from runner.model.platform import Health, InstanceStatus, MemberStatus, OperationStatus
from runner.platform import wire
from runner.platform.contract import STATED

GAP_LINE: Final = "gap in the platform's contract"
_WORD: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
# An answer that says that the path itself does not exist, and not that a record does not.
_NO_SUCH_PATH: Final = ("route_not_found", "path_not_found", "endpoint_not_found")
# Fields that belong to the app: a platform that refuses their content interprets it.
_OF_THE_APP: Final = (
    *("adapter_detail", "component_key", "placement_intent", "config"),
    *("access", "status_detail", "app_policy", "parameters", "result"),
)
# Every record of usage carries them, so an instance has to show them.
ATTRIBUTION: Final = (
    *("org_id", "app_slug", "operating_mode", "control_plane_scope"),
    *("runtime_backend", "correlation_id"),
)
# Fields that the adapter uses, and can do without for a while.
_USED: Final[Mapping[str, tuple[str, ...]]] = {
    "instance": (*ATTRIBUTION, "app_version", "health", "placement_intent", "access_credential_id"),
    "member": ("allocation_id", "adapter_detail"),
    "operation": ("parameters", "claimed_by", "lease_expires_at", "attempt", "requested_by"),
    "allocation": ("connection", "sku", "region"),
    "attachment": ("app_policy", "identities", "adapter_detail"),
}
# Those of them that no public document shows, as contract/openapi.yaml marks them.
_ASSUMED: Final = frozenset(
    {
        ("instance", "access_credential_id"),
        ("member", "allocation_id"),
        *(("attachment", name) for name in ("app_policy", "identities", "adapter_detail")),
    }
)
# What is done as long as a call does not exist, where it is not simply tried again.
_WITHOUT: Final = {
    "resolution": "a host gets no packages, unless GPUAAS_ARTIFACT_POLICY is none",
    "entitlement": "nothing is deployed or added, unless GPUAAS_ENTITLEMENT_POLICY is none",
}
_WORDS: Final[Mapping[str, frozenset[str]]] = {
    "instance": frozenset(InstanceStatus),
    "member": frozenset(MemberStatus),
    "operation": frozenset(OperationStatus),
    "attachment": frozenset(AttachmentStatus),
    "allocation": frozenset(
        {"requested", "provisioning", "active", "releasing", "released", "failed", "release_failed"}
    ),
}


def log_gap(gap: Gap) -> None:
    """One line for a gap that this process meets for the first time."""
    log.get().warning(GAP_LINE, **{name: value for name, value in gap.as_row().items() if value is not None})


def note_refusal(gaps: Gaps, method: str, path: wire.Path, error: PlatformError) -> None:
    """A call that failed for good, if the failure is one of the contract and not of the request."""
    kind, pilot, expected, meanwhile = _of_refusal(method, path, error)
    if expected:
        gaps.add(_gap(method, path, expected, _shown(error), kind, meanwhile, pilot))


def note_shape(gaps: Gaps, method: str, path: wire.Path, problem: str) -> None:
    """A successful answer that cannot be read. `problem` names fields and types, and quotes nothing."""
    expected = f"a {path.kind or 'record'} as the contract has it: {problem}"
    meanwhile = "the record counts as one that cannot be read: nothing is concluded from it"
    gaps.add(_gap(method, path, expected, "another shape", Kind.READ_SURFACE, meanwhile, PilotKind.PRIMITIVE))


def note_record(gaps: Gaps, method: str, path: wire.Path, record: Mapping[str, Any], *, versioned: bool) -> None:
    """Fields that a record lacks, and words that the contract does not have. `versioned`: it has to have an ETag."""
    kind = path.kind or ""
    for name in _USED.get(kind, ()):
        if name not in record:
            pilot = PilotKind.ATTRIBUTION if kind == "instance" and name in ATTRIBUTION else PilotKind.PRIMITIVE
            missing, basis = "the field counts as null", Basis.ASSUMED if (kind, name) in _ASSUMED else None
            gaps.add(_gap(method, path, f"the field {name}", "no such field", Kind.READ_SURFACE, missing, pilot, basis))
    if versioned and not record.get("etag"):
        missing = "writes are not guarded against each other: one runner at a time, by a lock on its machine"
        expected = "a version of the record: the header ETag, or the field etag"
        gaps.add(_gap(method, path, expected, "none", Kind.PRIMITIVE, missing, PilotKind.PRIMITIVE, Basis.ASSUMED))
    for field, words in (("status", _WORDS.get(kind)), ("health", frozenset(Health) if kind == "instance" else None)):
        word = record.get(field)
        if words and isinstance(word, str) and word not in words:
            expected = f"{field}: one of {', '.join(sorted(words))}"
            unknown = "the record is left alone, and the log names it"
            gaps.add(_gap(method, path, expected, _word(word), Kind.READ_SURFACE, unknown, PilotKind.PRIMITIVE))


def _of_refusal(method: str, path: wire.Path, error: PlatformError) -> tuple[Kind, PilotKind | None, str | None, str]:
    """Kind, what the core has to change, what was expected (None: it is not a gap), and what the adapter does."""
    event = method == "POST" and path.kind == "event"
    again = "nothing is concluded, and the next tick tries again"
    if error.status is None:
        return Kind.ENVIRONMENT, None, "an answer", again
    if error.status == 401:
        return Kind.ENVIRONMENT, None, "a token that this installation's credentials give", "nothing runs"
    if event and error.status in (400, 403, 404, 405, 422, 501):
        kind = Kind.PERMISSION if error.status == 403 else Kind.PRIMITIVE
        return kind, PilotKind.EVENT, "an event on the instance's timeline", "the report is written without the event"
    if error.status == 403:
        return Kind.PERMISSION, PilotKind.ACTION_KEY, "the action key for this call", "the call is not repeated"
    if error.status in (405, 501) or (error.status == 404 and not _of_a_record(error)):
        kind = Kind.READ_SURFACE if method == "GET" else Kind.PRIMITIVE
        return kind, PilotKind.PRIMITIVE, "the call exists", _WITHOUT.get(path.kind or "", again)
    if error.status == 429 and not error.context.get("retry_after"):
        waits = "the wait before each retry grows by itself"
        return Kind.READ_SURFACE, PilotKind.PRIMITIVE, "the header Retry-After with 429", waits
    if error.code == "bad_answer":
        return Kind.READ_SURFACE, PilotKind.PRIMITIVE, "a JSON object", again
    if error.status in (400, 422):
        details = json.dumps(error.context.get("details"), default=str)
        if found := next((name for name in _OF_THE_APP if re.search(rf"\b{name}\b", details)), None):
            expected = f"{found} is the app's, and is stored as it is"
            return Kind.PRIMITIVE, PilotKind.COUPLING, expected, "the write is given up and the problem reported"
        return Kind.APP, None, "the request is as the contract has it", "the write is given up and the problem reported"
    return Kind.ENVIRONMENT, None, None, ""


def _of_a_record(error: PlatformError) -> bool:
    """Whether the 404 is about a record: every such code ends alike."""
    return error.code.endswith("_not_found") and error.code not in _NO_SUCH_PATH


def _shown(error: PlatformError) -> str:
    return _word(error.code) if error.status is None else f"HTTP {error.status}, {_word(error.code)}"


def _word(text: str) -> str:
    return text if _WORD.fullmatch(text) else "a text that is not a word"


def _gap(
    method: str,
    path: wire.Path,
    expected: str,
    came: str,
    kind: Kind,
    meanwhile: str,
    pilot: PilotKind | None,
    basis: Basis | None = None,
) -> Gap:
    basis = basis or (Basis.STATED if (method, path.call) in STATED else Basis.ASSUMED)
    return Gap(f"{method} {wire.route(path)}", basis, expected, came, kind, meanwhile, pilot)
