"""Where metrics are shown: an endpoint that listens on loopback, and a file with gauges only."""

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prometheus_client.parser import text_string_to_metric_families

from runner.model.plan import Finish
from runner.settings import Settings, SettingsError, read_listen_address
from runner.slurm.app import SLURM
from runner.telemetry import exposition
from runner.telemetry.start import metering
from tests.unit import hostile
from tests.unit.shown_metrics import Shown, operation, seconds_before
from tests.unit.worlds import NOW, node, snapshot, world

ROOT = Path(__file__).resolve().parents[2]
VALUES = {"GPUAAS_BASE_URL": "http://127.0.0.1:1", "GPUAAS_PROJECT_ID": str(UUID(int=1))}


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in VALUES.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def made(**changes: Any) -> Settings:
    return Settings(**changes)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9465", ("127.0.0.1", 9465)),
        (":9465", ("127.0.0.1", 9465)),
        ("0.0.0.0:9465", ("0.0.0.0", 9465)),
        ("[::1]:9465", ("::1", 9465)),
        ("localhost:0", ("localhost", 0)),
    ],
)
def test_the_endpoint_is_on_loopback_unless_an_address_is_given(text: str, address: tuple[str, int]) -> None:
    assert read_listen_address(text) == address


@pytest.mark.parametrize("text", ["", "70000", "host", "http://127.0.0.1:1", "a b:1", "::1:9465", *hostile.TEXTS])
def test_another_form_of_the_address_is_refused(text: str) -> None:
    if re.fullmatch(r"[0-9]{1,5}", text):
        return
    with pytest.raises(ValueError, match="PORT"):
        read_listen_address(text)


@pytest.mark.parametrize("path", ["metrics.prom", "/tmp/metrics.txt", "/tmp/metrics"])
def test_a_file_that_node_exporter_would_not_read_is_refused(variables: pytest.MonkeyPatch, path: str) -> None:
    with pytest.raises(ValueError, match=r"ends in \.prom"):
        made(metrics_file=path)


def test_the_file_has_gauges_only_and_is_replaced_at_once(tmp_path: Path) -> None:
    shown = Shown()
    shown.meter.tick_ended(2, failed=True)
    shown.meter.wrote(Finish("", operation(created_at=seconds_before(100)), "failed", {}), NOW)
    shown.meter.saw(world(snapshot=snapshot({"w1": node()})))
    path = tmp_path / "gpuaas.prom"
    path.write_text("old")
    before = path.stat().st_ino
    exposition.write_file(shown.meter.registry, path)
    families = list(text_string_to_metric_families(path.read_text()))
    assert {one.type for one in families} == {"gauge"}
    values = {(s.name, *(v for _, v in sorted(s.labels.items()))): s.value for one in families for s in one.samples}
    assert values["gpuaas_run_ticks", "failed"] == 1
    assert values["gpuaas_run_operations", "failed", "drain"] == 1
    assert values["gpuaas_run_tick_duration_seconds",] == 2
    assert values["slurm_nodes", "gs00000000"] == 1
    assert path.stat().st_ino != before and path.stat().st_mode & 0o777 == 0o644
    assert [one.name for one in tmp_path.iterdir()] == ["gpuaas.prom"]


def test_a_file_that_cannot_be_written_leaves_the_old_one_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "gpuaas.prom").mkdir()  # a directory cannot be replaced by a file
    exposition.write_file(Shown().meter.registry, tmp_path / "gpuaas.prom")
    exposition.write_file(Shown().meter.registry, tmp_path / "nowhere" / "gpuaas.prom")
    assert [one.name for one in tmp_path.iterdir()] == ["gpuaas.prom"]


def test_the_file_is_written_at_the_end_and_in_each_pass_but_the_first(
    variables: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "gpuaas.prom"
    with metering(made(metrics_file=path), SLURM.metrics, stays=False) as meter:
        meter.passed([])
        assert not path.exists(), "nothing is known in the first pass, and the values of the last run would be lost"
        meter.passed([])
        path.unlink()
    assert "gpuaas_last_pass_timestamp_seconds" in path.read_text()


def test_an_address_that_is_in_use_ends_the_command(variables: pytest.MonkeyPatch) -> None:
    with (
        exposition.served(Shown().meter.registry, "127.0.0.1", 0) as port,
        pytest.raises(SettingsError, match=r"GPUAAS_METRICS_LISTEN: cannot listen on 127\.0\.0\.1 port"),
        metering(made(metrics_listen=str(port)), SLURM.metrics, stays=True),
    ):
        pass
    assert not [one for one in threading.enumerate() if "serve_forever" in one.name]


def test_without_a_setting_nothing_is_loaded_and_nothing_listens() -> None:
    code = (
        "import sys, threading; from runner.cli import main; from runner.settings import Settings\n"
        "from runner.telemetry.start import metering; from runner.slurm.app import SLURM\n"
        "for own, stays in ((Settings(), True), (Settings(metrics_listen='0'), False)):\n"
        "    with metering(own, SLURM.metrics, stays=stays) as meter:\n"
        "        assert not meter.is_on and threading.active_count() == 1\n"
        "print([one for one in sys.modules if one.startswith(('prometheus_client', 'http.server', 'wsgiref'))])\n"
        "with metering(Settings(metrics_listen='0'), SLURM.metrics, stays=True): pass\n"
        "print('prometheus_client' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=VALUES, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[:1] + done.stdout.splitlines()[-1:] == ["[]", "True"], done.stderr
