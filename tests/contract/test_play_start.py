"""What may come between a claim and its play: a cancelled operation, a platform that hangs, an event it cannot take."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from runner.model import events
from runner.report import play_log, reporter
from runner.report.play_log import PlayLog
from tests.contract.scene import Scene
from tests.contract.simulated_hosts import run_once
from tests.platform_process import Doc

FIRST = 3  # the first machine that no member has


def add(scene: Scene, number: int) -> Doc:
    body = {"operation": "add", "component_key": "worker", "allocation_ids": [scene.project.allocation_ids[number]]}
    answer = scene.project.operator.post(f"{scene.path}/member-operations", body)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def shown(scene: Scene, asked: Doc) -> Doc:
    return dict(scene.project.operator.get(f"{scene.path}/member-operations/{asked['id']}").json())


def before_play(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Act when the first play of an operation is about to be written down."""
    real, acted = PlayLog.playing, list[bool]()

    @contextlib.contextmanager
    def playing(self: PlayLog, step: Any, world: Any) -> Iterator[Any]:
        if step.operations and not acted:
            acted.append(True)
            act()
        with real(self, step, world) as noted:
            yield noted

    monkeypatch.setattr(PlayLog, "playing", playing)


def test_no_play_begins_for_an_operation_that_is_known_to_be_cancelled(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled, other = add(scene, FIRST), add(scene, FIRST + 1)
    path = f"{scene.path}/member-operations/{cancelled['id']}"

    def cancel() -> None:
        assert scene.project.operator.patch(path, {"status": "cancelled"}).status_code == 200

    before_play(monkeypatch, cancel)
    scene.hosts.runs.clear()
    scene.tick("only")
    members = {one["allocation_id"]: one for one in scene.project.shown(scene.instance, "/members")}
    by_asked = {one["id"]: members[one["allocation_ids"][0]] for one in (cancelled, other)}
    joined = {str(one) for _, playbook, touched in scene.hosts.runs if playbook == "add_worker" for one in touched}
    assert joined == {by_asked[other["id"]]["id"]}
    assert (shown(scene, cancelled)["status"], shown(scene, other)["status"]) == ("cancelled", "succeeded")
    assert by_asked[cancelled["id"]]["adapter_detail"]["last_adapter_error"]["code"] == "operation_ended"
    runs = [one for one in shown(scene, other)["result"]["plays"] if one["playbook"] == "add_worker"]
    assert [one["result"] for one in runs] == ["stopped", "ok"], "the one that did not begin has an end on record"


def test_a_platform_that_hangs_holds_a_play_back_for_a_bounded_time(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (play_log, reporter):
        monkeypatch.setattr(module, "WRITE_SECONDS", 0.5)
    asked = [add(scene, number) for number in range(FIRST, FIRST + 5)]
    times: list[float] = []

    def hang() -> None:
        times.append(time.monotonic())
        path = f"{scene.path}/member-operations/"
        scene.project.platform.control.inject_fault("hang", path, method="PATCH", times=1_000, seconds=1.5)

    def begun() -> None:
        if len(times) == 1:
            times.append(time.monotonic())
            scene.project.platform.control.clear_faults()

    before_play(monkeypatch, hang)
    scene.hosts.meanwhile = begun
    scene.tick("only")
    assert len(times) == 2 and times[1] - times[0] < 2, "five writes would take 2.5 s, and more with other settings"
    for one in asked:
        found = shown(scene, one)
        joins = [play for play in found["result"]["plays"] if play["playbook"] == "add_worker"]
        assert found["status"] == "succeeded" and [play["result"] for play in joins] == ["ok"]


@pytest.mark.parametrize(("action", "how"), [("status", {"status": 503}), ("drop", {})])
def test_an_assumed_event_that_the_platform_cannot_take_holds_no_work_back(
    scene: Scene, action: str, how: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = add(scene, 0)  # the controller's own machine: it is refused
    scene.project.platform.control.inject_fault(action, f"{scene.path}/events$", method="POST", times=1_000, **how)
    began = time.monotonic()
    done = run_once(scene.project, assumed_events="all", observe_seconds=3600)
    assert (done.problems, shown(scene, asked)["status"]) == ([], "failed")
    assert time.monotonic() - began < 10, "it is tried once"
    logged = [line for line in "".join(capsys.readouterr()).splitlines() if events.OPERATION_FAILED in line]
    assert any("event refused by the platform" in line for line in logged), logged
