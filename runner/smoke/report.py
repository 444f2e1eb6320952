"""What a smoke run found, and how it is printed: rows of a table, JSON, JUnit and Markdown. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any
from xml.etree import ElementTree

from runner.smoke.plan import Planned, Step

_NOT_IN_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Outcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Result:
    """How one step ended. `detail` says what was seen, or why it failed or was skipped."""

    step: str
    chapter: str
    what: str
    outcome: Outcome
    detail: str = ""
    code: str | None = None
    seconds: float = 0.0
    correlation_id: str | None = None
    record_id: str | None = None

    @staticmethod
    def of(step: Step, outcome: Outcome, detail: str = "", **more: Any) -> "Result":
        return Result(step.name, step.chapter.name, step.what, outcome, detail, **more)


@dataclass(frozen=True)
class Report:
    run_id: str
    platform: str
    instance_id: str | None
    app_version: str
    began_at: str
    ended_at: str
    results: Sequence[Result]
    gaps: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    left_behind: str | None = None
    interrupted: bool = False

    def count(self, outcome: Outcome) -> int:
        return sum(one.outcome == outcome for one in self.results)

    @property
    def passed(self) -> bool:
        return not self.interrupted and self.count(Outcome.FAILED) == 0

    @property
    def sentence(self) -> str:
        counts = ", ".join(f"{self.count(one)} {one}" for one in Outcome)
        ending = "interrupted" if self.interrupted else "passed" if self.passed else "failed"
        return f"smoke run {self.run_id} {ending}: {counts}"


def plan_rows(plan: Sequence[Planned]) -> list[dict[str, Any]]:
    return [
        {
            "chapter": one.step.chapter.name,
            "step": one.step.name,
            "what": one.step.what,
            "left_out": f"left out: {one.left_out}" if one.left_out else None,
        }
        for one in plan
    ]


def rows(report: Report) -> list[dict[str, Any]]:
    return [
        {
            "step": f"{one.chapter}/{one.step}",
            "outcome": one.outcome,
            "seconds": f"{one.seconds:.0f}",
            "correlation": one.correlation_id,
            "detail": f"{one.code}: {one.detail}" if one.code else one.detail or None,
        }
        for one in report.results
    ]


def as_json(report: Report) -> dict[str, Any]:
    return {**asdict(report), "passed": report.passed}


def as_junit(report: Report) -> str:
    counts = {"tests": len(report.results), "failures": report.count(Outcome.FAILED)}
    counts["skipped"] = report.count(Outcome.SKIPPED)
    attributes = {
        "name": f"smoke {report.run_id}",
        "timestamp": report.began_at,
        "time": f"{sum(one.seconds for one in report.results):.3f}",
    }
    suite = ElementTree.Element("testsuite", attributes | {name: str(count) for name, count in counts.items()})
    _properties(suite, {"platform": report.platform, "instance_id": report.instance_id, "version": report.app_version})
    for one in report.results:
        case = ElementTree.SubElement(
            suite, "testcase", classname=f"smoke.{one.chapter}", name=one.step, time=f"{one.seconds:.3f}"
        )
        _properties(case, {"correlation_id": one.correlation_id, "record_id": one.record_id})
        if one.outcome == Outcome.FAILED:
            failure = ElementTree.SubElement(case, "failure", message=_xml(one.code or "failed"))
            failure.text = _xml(one.detail)
        elif one.outcome == Outcome.SKIPPED:
            ElementTree.SubElement(case, "skipped", message=_xml(one.detail))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _properties(parent: ElementTree.Element, values: Mapping[str, str | None]) -> None:
    listed = ElementTree.SubElement(parent, "properties")
    for name, value in values.items():
        if value:
            ElementTree.SubElement(listed, "property", name=name, value=_xml(value))


def _xml(text: str) -> str:
    """Messages come from an API, and XML cannot have every character."""
    return _NOT_IN_XML.sub("?", text)


def as_markdown(report: Report) -> str:
    lines = [
        f"# Smoke run {report.run_id}",
        "",
        report.sentence + ".",
        "",
        *(
            f"- {name}: `{_cell(value)}`"
            for name, value in (
                ("platform", report.platform),
                ("instance", report.instance_id or "none was made"),
                ("version", report.app_version),
                ("from", report.began_at),
                ("to", report.ended_at),
            )
        ),
    ]
    lines += [f"- left behind: {_cell(report.left_behind)}"] if report.left_behind else []
    lines += ["", "| step | result | seconds | correlation id | detail |", "| --- | --- | --- | --- | --- |"]
    for row, one in zip(rows(report), report.results, strict=True):
        cells = (row["step"], row["outcome"], row["seconds"], one.correlation_id or "", row["detail"] or "")
        lines.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    if report.gaps:
        lines += ["", "## Gaps", "", "| " + " | ".join(report.gaps[0]) + " |", "| " + "--- | " * len(report.gaps[0])]
        lines += [f"| {' | '.join(_cell(value) for value in gap.values())} |" for gap in report.gaps]
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    flat = " ".join(str(value).split())
    return flat.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
