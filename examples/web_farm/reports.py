"""What hosts of a web farm report, read as data: a type and a size for each value. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from examples.web_farm.components import BALANCER
from runner.model.app import Report
from runner.model.host_data import TEXT_BYTES, Reader, flag, matching, printable, read_value, texts

_DETAIL: Mapping[str, Reader] = {
    "config_version": matching(re.compile(r"[A-Za-z0-9_.:-]{0,160}")),
    "host_cleaned": flag,
    "host_touched": flag,
    "residue": texts,
}
Answers = dict[str, int]  # HTTP status by the address of a web member; -1: no answer


@dataclass(frozen=True)
class FarmReports:
    id: UUID
    component: str
    most: int  # more addresses than the farm has members are not accepted

    def accepts(self, action: str) -> bool:
        return action == "member_report"

    def read(self, report: Mapping[str, Any], at: datetime | None) -> Report:
        detail, dropped = dict[str, Any](), list[str]()
        reported = report.get("detail")
        for key, value in reported.items() if isinstance(reported, dict) else ():
            try:
                detail[key] = read_value(_DETAIL[key], value)
            except (KeyError, ValueError, TypeError):
                dropped.append(printable(key, 60))
        phase = report.get("phase")
        return Report(
            phase=None if phase is None else printable(phase, TEXT_BYTES),
            detail=detail,
            snapshot=self._answers(report.get("snapshot")),
            dropped=tuple(dropped),
        )

    def _answers(self, reported: object) -> Answers | None:
        """Only the balancer says who answers it."""
        if self.component != BALANCER or not isinstance(reported, dict) or len(reported) > self.most:
            return None
        return {printable(key, 255): value for key, value in reported.items() if type(value) is int}
