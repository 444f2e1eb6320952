"""The table of explained journal lines is well made, and what is not in it is found."""

import json

import pytest

from tests.journal_table import ERR, TABLE, UNITS, Line, read_journal, read_munged, read_table, unexplained

ROWS = read_table(TABLE.read_text())


def test_every_row_names_known_series_and_units_the_cause_and_what_to_do() -> None:
    assert len(ROWS) > 8
    for row in ROWS:
        assert row.when in ("start", "jobs")
        assert set(row.series) <= {"22.05", "24.11"} and row.series
        assert set(row.units) <= set(UNITS) and row.units
        assert len(row.why) > 10 and len(row.remedy) > 5


@pytest.mark.parametrize(
    "message",
    [
        "error: something never seen",
        "error: Could not open node state file /var/lib/slurm/slurmctld/node_state: Permission denied",
        "error: NOTE: Trying backup state save file. Everything is lost",
        "error: slurm_send_node_msg: [socket:[1]] slurm_bufs_sendto(msg_type=REQUEST_PING) failed: Broken pipe",
        "error: Configured MailProg is invalid, and more",
        "fatal: mkdir(/var/spool): Permission denied",
        "a line at the priority of an error",
    ],
)
def test_a_line_that_is_not_in_the_table_is_found(message: str) -> None:
    line = Line("slurmctld", ERR if "priority" in message else 6, message)
    for series in ("22.05", "24.11"):
        assert unexplained([line], ROWS, series, "start", "jobs") == [line]


@pytest.mark.parametrize(
    ("unit", "message"),
    [
        (
            "slurmctld",
            "error: slurm_send_node_msg: [socket:[663697]] slurm_bufs_sendto(msg_type=SRUN_JOB_COMPLETE) failed:"
            " Connection reset by peer",
        ),
        ("slurmctld", "error: auth_p_get_host: Lookup failed for 10.89.3.3"),
    ],
)
def test_a_line_that_comes_with_jobs_is_explained_then_and_not_at_a_start(unit: str, message: str) -> None:
    line = Line(unit, 6, message)
    assert unexplained([line], ROWS, "24.11", "start", "jobs") == []
    assert unexplained([line], ROWS, "24.11", "start") == [line]


def test_an_explanation_counts_for_its_unit_and_its_series_only() -> None:
    message = "error: Configured MailProg is invalid"
    assert unexplained([Line("slurmctld", 6, message)], ROWS, "24.11", "start") == []
    assert unexplained([Line("slurmd", 6, message)], ROWS, "24.11", "start")
    assert unexplained([Line("slurmctld", 6, message)], ROWS, "22.05", "start")


def test_a_journal_is_read_from_any_process_and_with_any_bytes() -> None:
    entries = [
        {"_SYSTEMD_UNIT": "slurmd.service", "PRIORITY": "6", "MESSAGE": "slurmd-gs-2: error: no"},
        {"_SYSTEMD_UNIT": "init.scope", "UNIT": "munge.service", "PRIORITY": "3", "MESSAGE": "munge.service: Gone"},
        {"_SYSTEMD_UNIT": "slurmctld.service", "PRIORITY": "6", "MESSAGE": list("slurmctld: error: ä".encode())},
    ]
    assert read_journal("\n".join(map(json.dumps, entries))) == [
        Line("slurmd", 6, "error: no"),
        Line("munge", 3, "Gone"),
        Line("slurmctld", 6, "error: ä"),
    ]


def test_what_munged_writes_to_its_own_log_counts_by_its_level() -> None:
    text = (
        "2026-11-16 10:53:29 +0000 Info:      Unauthorized credential for client UID=64030 GID=64030\n"
        "2026-11-16 10:53:29 +0000 Error:     Found insecure key\n"
    )
    assert read_munged(text) == [Line("munge", ERR, "Found insecure key")]
