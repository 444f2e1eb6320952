"""What a smoke run notes of a platform that answers its requests in another way than the contract says."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from runner.cli.smoke import asks
from runner.cli.smoke.run import CheckFailed, Run
from runner.model.errors import PlatformError, Rejected, Unavailable
from runner.model.gaps import Gaps
from runner.model.platform import AppInstance, Operation
from runner.slurm.smoke import steps
from runner.smoke.plan import Ask, correlation_id, nowhere
from tests.unit.worlds import allocation, instance

TABLE = {one.name: one for one in steps(2, same_node=False)}
ALLOCATIONS = [allocation(number) for number in (1, 2)]
Answer = Callable[[dict[str, Any]], Operation]


def operation(body: dict[str, Any], **changes: Any) -> Operation:
    own = {"id": uuid.uuid4(), "status": "accepted", "correlation_id": correlation_id("a-run", "operation")}
    return Operation.model_validate({**own, **body, **changes})


class Platform:
    """The client's methods that a request uses. `answer` makes what the platform returns for each body it is sent."""

    def __init__(self, answer: Answer, listed: list[AppInstance] | None = None) -> None:
        self.answer = answer
        self.sent: list[dict[str, Any]] = []
        self.listed = listed or []

    def create_operation(self, _instance: uuid.UUID, body: dict[str, Any], **_: Any) -> Operation:
        self.sent.append(body)
        return self.answer(body)

    def allocations(self) -> list[Any]:
        return ALLOCATIONS

    def instances(self, **_: Any) -> list[AppInstance]:
        return self.listed


def run_on(platform: Platform) -> Run:
    client: Any = platform
    settings: Any = type("Settings", (), {"app_slug": "x"})()
    found = [one.id for one in ALLOCATIONS]
    return Run("a-run", client, client, settings, found, Gaps(), found=instance())


def request(run: Run) -> Operation:
    step = TABLE["operation"]
    assert isinstance(step.does, Ask)
    return asks.request(run, step, step.does, lambda _: None)


def test_a_request_that_is_sent_twice_and_kept_once_is_no_gap() -> None:
    made = operation({"operation": "add"})
    platform = Platform(lambda _: made)
    run = run_on(platform)
    assert request(run) is made
    assert len(platform.sent) == 2 and platform.sent[0] == platform.sent[1] and len(run.gaps) == 0
    assert platform.sent[0]["allocation_ids"] == [str(nowhere("a-run"))]


def test_a_platform_that_keeps_both_is_not_idempotent() -> None:
    run = run_on(Platform(operation))
    with pytest.raises(CheckFailed) as failed:
        request(run)
    assert failed.value.code == "not_idempotent"
    assert [one.expected for one in run.gaps] == ["a repeated Idempotency-Key returns the first record"]


def test_another_correlation_id_than_the_one_that_was_sent_is_a_gap() -> None:
    made = operation({"operation": "add"}, correlation_id="its-own")
    run = run_on(Platform(lambda _: made))
    request(run)
    (gap,) = run.gaps
    assert "X-Correlation-Id" in gap.expected and "its-own" in gap.came


def test_where_the_platform_refuses_an_unknown_allocation_one_in_use_is_named() -> None:
    made = operation({"operation": "add"})

    def answer(body: dict[str, Any]) -> Operation:
        if body["allocation_ids"] == [str(nowhere("a-run"))]:
            raise Rejected("no such allocation", code="allocation_not_found", status=404)
        return made

    platform = Platform(answer)
    assert request(run_on(platform)) is made
    assert platform.sent[-1]["allocation_ids"] == [str(ALLOCATIONS[1].id)]


def test_a_platform_that_does_not_answer_is_not_taken_for_one_that_refuses() -> None:
    def answer(_body: dict[str, Any]) -> Operation:
        raise Unavailable("no answer", code="platform_unreachable")

    platform = Platform(answer)
    with pytest.raises(PlatformError):
        request(run_on(platform))
    assert len(platform.sent) == 1


def test_an_instance_with_the_name_of_a_run_and_another_correlation_id_is_refused() -> None:
    own = instance(correlation_id=correlation_id("a-run", "deploy"), name="other")
    assert run_on(Platform(operation, [own])).find("deploy") is own
    assert run_on(Platform(operation, [instance(name="smoke-b-run")])).find("deploy") is None
    theirs = instance(name="smoke-a-run", correlation_id="theirs")
    with pytest.raises(Exception, match="nothing shows that a smoke run made it"):
        run_on(Platform(operation, [theirs])).find("deploy")
    assert run_on(Platform(operation, [theirs.model_copy(update={"status": "deleted"})])).find("deploy") is None
