"""Record what translate is given in real runs: python -m tests.e2e.record_events [SUITE ...]

Brings up hosts of its own, runs ticks in this process and keeps every event of their plays, stripped to what
translate may read, under tests/unit/fixtures/events/SUITE/. Run it again when the roles report other things. The run
that matched no host (no_host_matched.jsonl) is of an earlier release: today such a play is not started.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from runner import translate
from runner.act import plays
from runner.loop.run import run
from runner.model.app import ReportReader
from runner.platform.client import Client
from runner.settings import Settings
from runner.slurm.app import SLURM
from sandbox.fleet.fleet import Fleet
from sandbox.fleet.hosts import HostSpec
from tests.e2e.cluster import deploy, fleet_named

FIXTURES = Path(__file__).resolve().parents[1] / "unit" / "fixtures" / "events"
# Of a result translate reads the first two, and for a failure what is shown to a person.
RESULT_FIELDS = ("member_report", "adapter_error", "msg", "censored", "unreachable", "failed")
BROKEN_SOURCES = (
    "rm -rf /etc/apt/sources.list.d/* /var/lib/apt/lists/*;"
    " echo 'deb http://127.0.0.1:9/debian none main' >/etc/apt/sources.list"
)


def stripped(event: Mapping[str, Any]) -> dict[str, Any]:
    data = event.get("event_data") or {}
    kept: dict[str, Any] = {
        name: data[name] for name in ("host", "task", "task_action", "ignore_errors") if name in data
    }
    result = data.get("res")
    if isinstance(result, dict):
        ended_well = event["event"] == "runner_on_ok"
        kept["res"] = {
            name: result[name] for name in RESULT_FIELDS if name in result and not (ended_well and name == "msg")
        }
    return {"event": event["event"], "event_data": kept}


@contextmanager
def recording(path: Path) -> Iterator[None]:
    """Write every event that plays of this process pass to translate into a file, one a line."""
    members: dict[str, str] = {}
    events: list[dict[str, Any]] = []

    def keep(event: translate.Event, member_readers: Mapping[str, ReportReader]) -> Any:
        members.update({name: str(member.id) for name, member in member_readers.items()})
        events.append(stripped(event))
        return translate.parse_event(event, member_readers)

    with mock.patch.object(plays, "parse_event", keep):
        yield
    if not events:
        raise RuntimeError(f"nothing was recorded for {path.name}: no play ran")
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [{"members": members}, *events]
    path.write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in lines))
    sys.stdout.write(f"{path}: {len(events)} events\n")


def settings_of(fleet: Fleet, **changes: Any) -> Settings:
    given = {
        name if name.startswith("VAULT_") else name.removeprefix("GPUAAS_").lower(): value
        for name, value in fleet.env().items()
    }
    return Settings(**{**given, **changes})


def record(suite: str) -> None:
    into = FIXTURES / suite
    with fleet_named("e2e-record") as fleet:
        fleet.ensure([*(HostSpec(f"gs-{n}", suite, warm=True) for n in (1, 2, 3, 5)), HostSpec("gs-4", suite)])
        fleet.exec("gs-4", ["sh", "-c", BROKEN_SOURCES])
        settings = settings_of(fleet, max_attempts=1)
        cluster = deploy(fleet, "gs-1", "gs-2")
        with Client(settings) as client:
            with recording(into / "deploy.jsonl"):
                run(client, settings, SLURM)
            cluster.add("gs-3", "gs-4")
            with recording(into / "apt_fails.jsonl"):
                run(client, settings, SLURM)
            cluster.add("gs-5")
            fleet.kill("gs-5")
            with recording(into / "unreachable.jsonl"):
                run(client, settings, SLURM)


if __name__ == "__main__":
    for name in sys.argv[1:] or ["bookworm", "trixie"]:
        record(name)
