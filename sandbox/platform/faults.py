"""Planted faults: the platform answers wrongly, late, in part or not at all, for a given number of calls."""

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
    """A fault for the next `times` matching requests, after the first `skip` of them.

    status: answer with status, body and headers, without doing anything. garbage: 200 and bytes that are not JSON.
    truncate: do it, then cut the answer in the middle. hang: wait, then go on. drop: close the connection at once.
    apply_then_drop: do it, then close without an answer. abort_transaction: fail just before the commit.
    strip_etags: do it, but without an ETag in header and body. hold: do nothing, and do not answer until the caller
    disconnects. apply_then_hold: do it first. spoil: do it, but change the record whose id is `body.id` in the answer:
    its fields become `body.fields`; without `body.fields` the record is left out of its list.
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
        self._unmet: list[Fault] = []
        self._lock = threading.Lock()
        self.held: list[str] = []  # requests that are not answered while their callers wait

    def add(self, fault: Fault) -> None:
        kept = fault.model_copy()
        with self._lock:
            self._pending.append(kept)
            self._unmet.append(kept)

    def mark_met(self, fault: Fault) -> None:
        """The fault changed the result of a request; a request that only matched it is not enough."""
        with self._lock:
            self._unmet = [one for one in self._unmet if one is not fault]

    def clear(self) -> list[Fault]:
        """Remove all faults. Returns those that no request met, which therefore tested nothing."""
        with self._lock:
            unmet, self._unmet = self._unmet, []
            self._pending.clear()
        return unmet

    def pending(self) -> list[Fault]:
        with self._lock:
            return [fault.model_copy() for fault in self._pending]

    def use_next(self, method: str, path: str) -> Fault | None:
        """The first fault that matches this request; its count goes down by one."""
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
