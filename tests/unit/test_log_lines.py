"""`explain --log` reads what people have: files of other programs, binary data, endless lines."""

import json
import os
from pathlib import Path

import pytest

from runner.cli import log_lines
from runner.cli.log_lines import LINE_BYTES, MOST_LINES
from runner.cli.story import Entry
from runner.model.errors import RequestError

ID = "corr-123456"


def line(**fields: object) -> bytes:
    return json.dumps({"event": "play", "level": "info", "correlation_id": ID, **fields}).encode() + b"\n"


def read(tmp_path: Path, *parts: bytes) -> list[str]:
    (tmp_path / "log").write_bytes(b"".join(parts))
    return [one.text for one in log_lines.read([str(tmp_path / "log")], ID)]


def test_lines_of_the_id_are_found_among_everything_else(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        line(playbook="deploy", timestamp="2026-01-02T03:04:05.678Z"),
        line(correlation_id="another"),
        b"Nov 18 host gpuaas-slurm[7]: " + line(event="claim", timestamp="2026-01-02T03:04:05Z"),
        line(correlation_id="another", correlation_ids=[ID, "another"], event="shared"),
        b"plain text about correlation_id " + ID.encode() + b"\n",
    )
    assert found == ["info play; playbook=deploy", "info claim", f'info shared; correlation_ids=["{ID}", "another"]']


HOSTILE = [
    os.urandom(4096),
    b"\xff\xfe{\x00correlation_id" * 50,
    b'{"correlation_id": "' + ID.encode() + b'", "a": ' + b"[" * 100_000 + b"\n",
    b'{"correlation_id": ["' + ID.encode() + b'"]}\n',
    b"[" + line().strip() + b"]\n",
    b'{"correlation_id": null, "correlation_ids": {"a": 1}}\n',
    b"\n" * 1000,
    b"{" * 1000 + b"correlation_id",
]


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_line_is_passed_over(tmp_path: Path, hostile: bytes) -> None:
    assert read(tmp_path, line(event="before"), hostile, b"\n", line(event="after")) == ["info before", "info after"]


def test_of_an_endless_line_nothing_is_kept_and_the_next_one_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, line(x="y" * 3 * LINE_BYTES), line(event="after")) == ["info after"]


def test_what_is_shown_of_a_line_is_bounded_and_printable(tmp_path: Path) -> None:
    (shown,) = read(tmp_path, line(event="e" * 10_000, **{f"k{number}": "\x1b[2J" * 100 for number in range(100)}))
    assert shown.isprintable() and len(shown.encode()) <= log_lines.TEXT_BYTES


@pytest.mark.parametrize("time", ["yesterday", 7, "9999-12-31T00:00:00Z", "2026-01-02T03:04:05", None, {}])
def test_a_line_without_a_usable_time_comes_last(tmp_path: Path, time: object) -> None:
    (tmp_path / "log").write_bytes(line(timestamp=time))
    (found,) = log_lines.read([str(tmp_path / "log")], ID)
    assert found.at is None and found.place > Entry(None, "asked", "").place


def test_of_too_many_lines_the_last_are_kept_and_the_others_counted(tmp_path: Path) -> None:
    found = read(tmp_path, *(line(event=f"e{number}") for number in range(MOST_LINES * 2)))
    assert len(found) <= MOST_LINES + 1 and found[-2] == f"info e{MOST_LINES * 2 - 1}"
    assert found[-1] == f"{MOST_LINES * 2 + 1 - len(found)} earlier lines of the log are left out"


@pytest.mark.parametrize("name", ["/no/such/file", "/"])
def test_a_file_that_cannot_be_read_is_named(name: str) -> None:
    with pytest.raises(RequestError, match=f"--log {name}: "):
        log_lines.read([name], ID)
