"""A log line: its fields by contract/log-line.schema.json, whoever wrote it."""

import ast
import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from jsonschema import Draft202012Validator

from runner import context, log
from runner.cli import commands
from runner.model.cause import Cause
from runner.settings import Settings
from tests.log_lines import SCHEMA, Line, problems_of, read_lines
from tests.unit.worlds import PROJECT, controller, fresh_id, instance

ROOT = Path(__file__).resolve().parents[2]
LEVELS = ("debug", "info", "warning", "error", "exception")


@pytest.fixture
def stderr(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    yield lambda: capsys.readouterr().err
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def own(**changes: Any) -> Settings:
    return Settings(**{"base_url": "http://127.0.0.1:1", "project_id": PROJECT, "log_format": "json", **changes})


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Each call in the runner that writes a line, with its place."""
    for path in sorted((ROOT / "runner").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def test_the_schema_is_valid_and_describes_every_field() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert [name for name, field in SCHEMA["properties"].items() if not field.get("description")] == []


def test_every_field_that_the_code_writes_is_in_the_schema() -> None:
    written = {word.arg for _, call in calls() for word in call.keywords if word.arg} - {"exc_info"}
    assert len(written) > 20
    assert written - set(SCHEMA["properties"]) == set(), "add them to contract/log-line.schema.json"


def test_every_error_line_of_the_code_has_an_error_code() -> None:
    errors = [(where, call) for where, call in calls() if call.func.attr in ("error", "exception")]  # type: ignore[attr-defined]
    without = [where for where, call in errors if not any(word.arg in ("error_code", None) for word in call.keywords)]
    assert len(errors) >= 5
    assert [one for one in without if not one.startswith("runner/log.py")] == []


def test_a_line_of_a_tick_has_the_fields_of_the_platform_and_the_ids(stderr: Callable[[], str]) -> None:
    log.configure(own())
    one, member, operation = instance(), controller(), fresh_id()
    with context.for_instance(one), context.bound(Cause("corr-1", operation)), log.with_regions():
        log.know_regions({str(one.id): "eu-1", str(member.id): "eu:2"})
        log.get().info("play", playbook="deploy")
        log.get(member_id=member.id).error("x", error_code="disk_full")
    whole, of_member = read_lines(stderr())
    expected = {
        "level": "info",
        "service": "gpuaas-slurm",
        "event": "play",
        "correlation_id": "corr-1",
        "org_id": str(one.org_id),
        "project_id": str(PROJECT),
        "app_slug": one.app_slug,
        "app_instance_id": str(one.id),
        "operation_id": str(operation),
        "playbook": "deploy",
        "resource_name": f"core42:aicloud:eu-1:{one.org_id}:{PROJECT}:gpuaas-slurm/app-instances:{one.id}",
    }
    assert {name: value for name, value in whole.items() if name != "timestamp"} == expected
    assert "resource_name" not in of_member, "a region with a colon would make another resource's name"
    assert of_member["member_id"] == str(member.id)


def test_a_resource_is_not_named_without_its_region_or_outside_of_its_tick(stderr: Callable[[], str]) -> None:
    log.configure(own())
    one = instance()
    with context.for_instance(one), context.bound(Cause("c")):
        with log.with_regions():
            log.get().info("unknown yet")
            log.know_regions({str(one.id): "eu-1"})
        log.get().info("after it")
    assert [one for one in read_lines(stderr()) if "resource_name" in one] == []


def test_ids_of_a_span_pass_through(stderr: Callable[[], str]) -> None:
    log.configure(own())
    with structlog.contextvars.bound_contextvars(trace_id="a" * 32, span_id="b" * 16):
        log.get().info("x")
    (line,) = read_lines(stderr())
    assert (line["trace_id"], line["span_id"]) == ("a" * 32, "b" * 16)


def test_text_for_a_person_is_short(stderr: Callable[[], str]) -> None:
    log.configure(own().model_copy(update={"log_format": "text"}))
    one = instance()
    with context.for_instance(one), structlog.contextvars.bound_contextvars(trace_id="a" * 32):
        log.get().info("play", why="it was requested")
    (line,) = stderr().splitlines()
    assert "play" in line and "it was requested" in line and str(one.id)[:8] in line
    assert not any(word in line for word in (str(one.id), str(one.org_id), "service", "resource_name", "a" * 32))


def test_a_field_that_is_not_in_the_schema_and_an_error_without_a_code_are_wrong() -> None:
    good: Line = {"timestamp": "2026-01-02T03:04:05Z", "level": "info", "service": "gpuaas-slurm", "event": "x"}
    assert problems_of(good) == []
    bad: list[Line] = [
        {"made_up": 1},
        {"level": "error"},
        {"level": "critical"},
        {"service": "another"},
        {"timestamp": "yesterday"},
        {"member_id": str(fresh_id())},
        {"error_code": "Not A Code"},
        {"resource_name": "core42:aicloud::o:p:x:y"},
    ]
    assert [more for more in bad if not problems_of(good | more)] == []


# -- lines of others -----------------------------------------------------------------------------------------

SCRIPT = """
import logging, sys, threading, warnings
from pathlib import Path
from runner import log
from runner.settings import Settings
log.configure(Settings(base_url="http://127.0.0.1:1", project_id="{project}", log_format="json", log_level="debug"))
log.capture()
warnings.warn("something is old", DeprecationWarning, stacklevel=1)
warnings.warn("something is odd", UserWarning, stacklevel=1)
logging.getLogger("urllib3").warning("retrying %s", "a call")
logging.getLogger("httpx").info("HTTP Request: GET a secret")
logging.getLogger("ansible-runner").error("no such project")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
class Last:
    def __del__(self): raise OSError("in a finalizer")
Last()
raise RuntimeError("nobody expected this")
"""


def test_what_libraries_and_python_write_has_the_form_of_a_line() -> None:
    script = SCRIPT.format(project=PROJECT)
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    lines = read_lines(done.stderr)
    assert [line["logger"] for line in lines if "logger" in line] == ["py.warnings"] * 2 + ["urllib3", "ansible-runner"]
    uncaught = [line for line in lines if line["event"] == "uncaught exception"]
    texts = [line["exception"].splitlines()[-1].partition(":")[0] for line in uncaught]
    assert texts == ["ZeroDivisionError", "OSError", "RuntimeError"]
    assert {line["error_code"] for line in lines if line["level"] == "error"} == {"unexpected_error"}
    assert "a secret" not in done.stderr, "a library's own lines may quote a request"


@pytest.mark.parametrize(
    ("variables", "code", "text"),
    [
        ({"GPUAAS_LOG_FORMAT": "json"}, "settings_invalid", "GPUAAS_BASE_URL: is not set"),
        (
            {
                "GPUAAS_LOG_FORMAT": "json",
                "GPUAAS_BASE_URL": "http://127.0.0.1:1",
                "GPUAAS_PROJECT_ID": str(PROJECT),
                "GPUAAS_API_PATIENCE_SECONDS": "0",
            },
            None,
            "GPUAAS_SERVICE_ACCOUNT_ID",
        ),
    ],
)
def test_what_ends_a_service_is_a_line_of_its_log(
    variables: dict[str, str], code: str | None, text: str, tmp_path: Path
) -> None:
    argv = [str(Path(sys.executable).parent / "gpuaas-slurm"), "run"]
    # Its own directory for temporary files: a run removes what killed runners left in the shared one, and logs it.
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TMPDIR": str(tmp_path), **variables}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    lines = read_lines(done.stderr)
    assert any(text in line["problem"] for line in lines) and {line["level"] for line in lines} == {"error"}
    assert code is None or {line["error_code"] for line in lines} == {code}
    plain = subprocess.run(
        argv, env={**environment, "GPUAAS_LOG_FORMAT": "text"}, capture_output=True, text=True, check=False
    )
    assert plain.returncode == 2 and re.search(rf"^error: .*{text}", plain.stderr, re.MULTILINE)


def test_what_another_runner_prevents_has_an_exit_code_of_its_own() -> None:
    assert {kind.__name__: code for kind, code in commands.EXPECTED.items() if code == commands.HELD_BY_OTHER} == {
        "AnotherRunner": 3,
        "MemberHeld": 3,
    }


def test_a_library_may_not_break_the_log(stderr: Callable[[], str]) -> None:
    log.configure(own())
    record = logging.LogRecord("x", logging.WARNING, "f", 1, "%d", ("no number",), None)
    logging.raiseExceptions, before = False, logging.raiseExceptions
    try:
        log._AsLogLine().emit(record)
    finally:
        logging.raiseExceptions = before
    assert [json.loads(line) for line in stderr().splitlines()] == []
