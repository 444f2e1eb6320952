"""How parts of the suite run: a part that did not run does not count as passed, and none outlives the suite."""

import fcntl
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.suite import __main__ as suite
from tests.suite import parts
from tests.suite.parts import Part
from tests.suite.pool import SHOWN_LINES, Pool, counted, last_lines, used
from tests.suite.results import Result, Run, Store, last_results, skips_by_reason, table
from tests.suite.tree import tree_hash


def python(name: str, code: str = "", images: tuple[str, ...] = ()) -> Part:
    return Part(name, (sys.executable, "-c", code), "fast", 1, images=images)


def run(store: Store, *chosen: Part, **options: float) -> tuple[Pool, list[str]]:
    shown: list[str] = []
    pool = Pool(store, tree_hash(), 2, shown.append, **options)
    pool.run(chosen)
    return pool, shown


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr("tests.suite.pool.ROOT", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(parts.ROOT))
    return Store(tmp_path / "parts")


def test_a_resumed_full_runs_what_is_left_with_its_images(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [python("e2e done", images=("x",)), python("e2e left", images=("x",))]
    monkeypatch.setattr(suite, "choose", lambda _: [python("image x"), *listed])
    monkeypatch.setattr(suite, "all_parts", lambda: listed)
    monkeypatch.setattr(suite, "Store", lambda: store)
    monkeypatch.setattr(suite, "tree_hash", lambda: "a" * 40)
    monkeypatch.setattr("tests.suite.pool.tree_hash", lambda: "a" * 40)
    runs: list[Run] = []
    monkeypatch.setattr(Run, "save", lambda run: runs.append(run))
    for slug in ("image-x", "e2e-done"):
        store.save(slug, replace(RESULT, part=slug.replace("-", " "), ended_at="2026-01-01T00:00:00+00:00"))
    assert suite._run(["full"], again=False, minutes=None, streams=2) == 0
    assert {one.part: one.status for one in runs[0].results} == {
        "e2e done": "reused",
        "image x": "passed",
        "e2e left": "passed",
    }


def test_a_failed_part_shows_the_end_of_its_output_without_colours(store: Store) -> None:
    noisy = python(
        "lint x", f"print(*range({SHOWN_LINES}), sep='\\n'); print('\\x1b[31mbroken\\x1b[0m'); raise SystemExit(1)"
    )
    _, shown = run(store, noisy)
    (output,) = [text for text in shown if "== output of lint x" in text]
    assert "(1 lines before these are in the file)\n1\n2\n" in output
    assert f"{SHOWN_LINES - 1}\nbroken\n== end of lint x" in output


def test_a_short_output_is_shown_whole() -> None:
    assert last_lines("a\nb\n") == "a\nb\n"


def test_a_part_begins_when_its_image_is_built(store: Store, tmp_path: Path) -> None:
    built = tmp_path / "built"
    make = python("image x", f"import time, pathlib; time.sleep(0.3); pathlib.Path({str(built)!r}).touch()")
    look = python("e2e x", f"import pathlib, sys; sys.exit(not pathlib.Path({str(built)!r}).exists())", ("x",))
    pool, _ = run(store, look, make)
    assert {one.part: one.status for one in pool.results} == {"image x": "passed", "e2e x": "passed"}


def test_a_part_whose_image_failed_is_reported_as_not_run(store: Store) -> None:
    pool, shown = run(
        store, python("e2e x", images=("x",)), python("image x", "print('no mirror'); raise SystemExit(1)")
    )
    assert {one.part: one.status for one in pool.results} == {"image x": "failed", "e2e x": "not run"}
    assert [one.reason for one in pool.results if one.status == "not run"] == ["image x failed"]
    assert "no mirror" in "".join(shown)


def test_output_is_shown_for_a_part_that_failed_and_no_other(store: Store) -> None:
    _, shown = run(store, python("a", "print('fine so far')"), python("b", "print('here is why'); raise SystemExit(3)"))
    text = "".join(shown)
    assert "here is why" in text and "fine so far" not in text


def test_no_part_begins_after_the_time_is_up(store: Store) -> None:
    pool, _ = run(store, python("a"), python("b"), stop_after=-1)
    assert [(one.part, one.status) for one in pool.results] == [("a", "not run"), ("b", "not run")]


def test_a_pytest_part_that_ran_no_test_fails(store: Store, tmp_path: Path) -> None:
    fake = tmp_path / "pytest"
    fake.write_text("#!/bin/sh\nexit 0\n")
    fake.chmod(0o755)
    part = Part("unit", ("pytest", "-q"), "fast", 1)
    pool = Pool(store, tree_hash(), 1, lambda _: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        pool.run([part])
    assert [one.status for one in pool.results] == ["failed"]


def test_cpu_of_orphans_counts_for_the_part_that_left_them(store: Store) -> None:
    burn = "import time; end = time.process_time() + 0.4\nwhile time.process_time() < end: pass"
    leave = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {burn!r}], start_new_session=True)"
    pool, _ = run(store, python("a", leave))
    assert pool.results[0].cpu > 0.4


def test_hosts_clusters_and_their_cpu_are_added_up(tmp_path: Path) -> None:
    (tmp_path / "usage").write_text('{"host": 1}\n{"host": 1}\n{"cluster": 1}\n{"host_cpu": 2.5}\n')
    (tmp_path / "cost").write_text('{"cpu": 1.5}')
    assert used(tmp_path / "usage", tmp_path / "cost") == {"cpu": 4.0, "hosts": 2, "clusters": 1}


def test_tests_are_counted_from_the_report(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    skip = '<testcase name="{}"><skipped message="no sudo" type="pytest.skip"/></testcase>'
    cases = "".join(skip.format(name) for name in ("test_b", "test_a"))
    report.write_text(
        f'<testsuites><testsuite tests="9" failures="1" errors="2" skipped="2">{cases}</testsuite></testsuites>'
    )
    found = counted(report)
    assert found == {"passed": 4, "failed": 3, "skipped": 2, "skips": dict.fromkeys(("test_a", "test_b"), "no sudo")}
    with_skips = replace(RESULT, skips={"test_b": "no sudo", "test_a": "no sudo", "test_c": "not root"})
    assert skips_by_reason([RESULT, with_skips]) == ["unit: no sudo: test_a, test_b", "unit: not root: test_c"]


RESULT = Result("unit", "a" * 40, "passed", 12.4, 11.0, passed=3, ended_at="2026-01-01T00:00:00+00:00")


def test_only_a_pass_at_the_same_tree_is_reused(store: Store) -> None:
    store.save("unit", RESULT)
    store.save("contract", replace(RESULT, status="failed"))
    assert store.passed("unit", "a" * 40) == RESULT
    assert store.passed("unit", "b" * 40) is None
    assert store.passed("contract", "a" * 40) is None


def test_a_result_without_a_tree_is_not_kept(store: Store) -> None:
    store.save("unit", replace(RESULT, tree=""))
    assert store.latest("unit") is None and store.passed("unit", "") is None


def test_the_newest_result_names_the_tree_of_a_part(store: Store) -> None:
    store.save("unit", RESULT)
    store.save("unit", replace(RESULT, tree="b" * 40, ended_at="2026-01-02T00:00:00+00:00"))
    shown = last_results([("unit", store.latest("unit")), ("contract", None)], "a" * 40)
    assert "passed, at another tree" in shown and "bbbbbbbb" in shown and "not run" in shown


def test_a_run_is_kept_and_printed_with_its_sum(tmp_path: Path) -> None:
    Run("fast", "a" * 40, 90.0, 30.0, 20.0, [RESULT, replace(RESULT, part="lint", status="reused")]).save(tmp_path)
    kept = Run.last(directory=tmp_path)
    assert kept and kept.seconds == 90.0 and kept.ok
    shown = table(kept).splitlines()
    assert shown[-1].split() == ["./dev", "test", "fast", "90", "31", "0", "0", "3", "aaaaaaaa"]
    assert [line.split()[0] for line in shown[2:]] == ["unit", "lint", "setup", "./dev"]


def test_a_short_run_does_not_overwrite_the_table_of_a_long_one(tmp_path: Path) -> None:
    for what in ("test", "unit"):
        Run(what, "a" * 40, 1.0, 0.0, 0.0, [RESULT]).save(tmp_path)
    found = Run.last("test", tmp_path)
    assert found and found.what == "test"
    assert Run.last("full", tmp_path) is None


def test_a_tree_is_identified_by_its_files_committed_or_not(tmp_path: Path) -> None:
    def git(*argv: str) -> str:
        return subprocess.run(["git", *argv], cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    (tmp_path / "a").write_text("1")
    first = tree_hash(tmp_path)
    git("add", "a")
    git("-c", "user.name=t", "-c", "user.email=t@example.invalid", "commit", "-qm", "a")
    assert first == tree_hash(tmp_path) == git("rev-parse", "HEAD^{tree}")
    (tmp_path / "a").write_text("2")
    changed = tree_hash(tmp_path)
    (tmp_path / "b").write_text("new")
    assert len({first, changed, tree_hash(tmp_path)}) == 3
    assert git("status", "--short") == "M a\n?? b", "the index is left as it was"


def test_without_git_there_is_no_hash(tmp_path: Path) -> None:
    assert tree_hash(tmp_path) == ""


def test_variables_of_a_shell_do_not_change_what_a_part_runs(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTEST_ADDOPTS", "MOLECULE_VERIFY", "GPUAAS_EVERY_POINT"):
        monkeypatch.setenv(name, "x")
    look = "import os; assert not {'PYTEST_ADDOPTS', 'MOLECULE_VERIFY', 'GPUAAS_EVERY_POINT'} & set(os.environ)"
    pool, shown = run(store, python("a", look))
    assert [one.status for one in pool.results] == ["passed"], shown


def test_a_part_that_does_not_end_is_ended_and_fails(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.suite.pool.PART_SECONDS", 0.5)
    monkeypatch.setattr("tests.suite.pool.CLEAN_UP_SECONDS", 0.5)
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"
    pool, _ = run(store, python("hangs", deaf), python("waits", "import time; time.sleep(600)"))
    assert {(one.status, one.reason) for one in pool.results} == {("failed", "no end within 0 s")}


def test_a_part_whose_result_cannot_be_read_fails_and_others_go_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(usage: Path, _: Path) -> dict[str, float]:
        if "bad" in str(usage):
            raise OSError("no space left on device")
        return {}

    monkeypatch.setattr("tests.suite.pool.used", unreadable)
    pool, _ = run(store, python("bad"), python("good"))
    assert {one.part: one.status for one in pool.results} == {"bad": "failed", "good": "passed"}


def test_a_part_that_another_run_has_under_way_is_not_run_twice(store: Store) -> None:
    with (store.folder("a") / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        pool, _ = run(store, python("a"))
    assert [(one.status, one.reason) for one in pool.results] == [("failed", "another run of this part is under way")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_part_outlives_a_suite_that_was_ended(tmp_path: Path, number: signal.Signals) -> None:
    """The part runs under `measure`, which its parent starts in a session of its own."""
    mark = tmp_path / "ended"
    part = f"import time\ntry:\n    print('up', flush=True); time.sleep(600)\nfinally: open({str(mark)!r}, 'w')"
    argv = [sys.executable, "-m", "tests.suite.measure", str(tmp_path / "cost"), sys.executable, "-c", part]
    start = f"import subprocess; subprocess.Popen({argv!r}, start_new_session=True).wait()"
    suite_process = subprocess.Popen([sys.executable, "-c", start], cwd=parts.ROOT, stdout=subprocess.PIPE)
    assert suite_process.stdout
    assert suite_process.stdout.readline() == b"up\n"
    suite_process.send_signal(number)
    suite_process.wait(10)
    deadline = time.monotonic() + 10
    while not mark.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert mark.exists()
