"""Faults on purpose: a platform that answers wrongly, late, in part or not at all, for as many calls as asked."""

import re
import threading
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _compiles(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return text


class Fault(BaseModel):
    """What happens to the next `times` requests that match, after `skip` of them were let through.

    status: answer with status, body and headers, without doing anything. garbage: 200 and bytes that are not JSON.
    truncate: do it, then cut the answer in the middle. hang: wait, then go on. drop: close the connection at once.
    apply_then_drop: do it, then close without an answer. abort_transaction: fail just before the commit.
    strip_etags: do it, but tell no ETag, in the header or the body. hold: do nothing, and answer nothing until the
    caller is gone. apply_then_hold: do it first. spoil: do it, but in the answer change the record whose id is
    `body.id`: its fields become `body.fields`, or it is left out of its list where there are none.
    """

    model_config = ConfigDict(extra="forbid")

    action: Literal[
        "status",
        "garbage",
        "truncate",
        "hang",
        "drop",
        "apply_then_drop",
        "abort_transaction",
        "strip_etags",
        "spoil",
        "hold",
        "apply_then_hold",
    ]
    path_regex: Annotated[str, AfterValidator(_compiles)]
    method: Annotated[str, AfterValidator(_compiles)] | None = None  # a regular expression too
    skip: int = Field(0, ge=0)
    times: int = Field(1, ge=1)
    status: int = Field(500, ge=200, le=599)
    body: Any = None
    headers: dict[str, str] = Field(default_factory=dict)
    seconds: float = Field(1.0, ge=0, le=600)


class Faults:
    def __init__(self) -> None:
        self._pending: list[Fault] = []
        self._lock = threading.Lock()
        self.held: list[str] = []  # requests whose callers wait for an answer that they will not get

    def add(self, fault: Fault) -> None:
        with self._lock:
            self._pending.append(fault.model_copy())

    def clear(self) -> None:
        with self._lock:
            self._pending.clear()

    def pending(self) -> list[Fault]:
        with self._lock:
            return [fault.model_copy() for fault in self._pending]

    def take(self, method: str, path: str) -> Fault | None:
        """The first fault for this request, used up by one."""
        with self._lock:
            for fault in self._pending:
                if re.fullmatch(fault.method or ".*", method) and re.search(fault.path_regex, path):
                    if fault.skip:
                        fault.skip -= 1
                        continue
                    fault.times -= 1
                    if fault.times == 0:
                        self._pending.remove(fault)
                    return fault
        return None
