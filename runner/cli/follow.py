"""Answers to requests: at once, or when what was requested has ended (--wait). The person's own token is enough."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from uuid import UUID

import typer

from runner.cli import live, request_state, requests, view
from runner.cli.commands import INTERRUPTED, TIME_OVER
from runner.cli.options import Answer
from runner.cli.request_state import Records, RequestState
from runner.model.platform import AppInstance, Operation
from runner.platform.client import Client
from runner.settings import Settings

# A runner that is started by a timer may take this long to come.
LEAST_PATIENCE = 90


def read_records(client: Client, settings: Settings, instance: AppInstance, operations: Sequence[Operation]) -> Records:
    patience = timedelta(seconds=max(2 * settings.watch_seconds, LEAST_PATIENCE))
    return Records(instance, client.members(instance.id), operations, client.now(), patience)


def answer_deploy(client: Client, settings: Settings, made: AppInstance, answer: Answer) -> None:
    line = f"instance {made.id} is {made.status}; correlation {made.correlation_id}"
    if not answer.wait:
        view.show_record(made, line, "next: gpuaas-slurm run", as_json=answer.as_json)
        return

    def look() -> RequestState:
        operations = requests.operations(client, made)
        return request_state.of_deploy(read_records(client, settings, client.instance(made.id), operations))

    _follow(look, made, line, f"the deploy of {made.id}", made.id, answer)


def answer_operation(
    client: Client, settings: Settings, instance: AppInstance, made: Operation, answer: Answer
) -> None:
    line = f"{made.operation} {made.id} is {made.status}; correlation {made.correlation_id}"
    if not answer.wait:
        view.show_record(made, line, as_json=answer.as_json)
        return

    def look() -> RequestState:
        open_now = requests.operations(client, instance, status="accepted,running")
        found = next((one for one in open_now if one.id == made.id), None)
        found = found or client.operation_again(instance.id, made)
        return request_state.of_operation(found, read_records(client, settings, client.instance(instance.id), open_now))

    _follow(look, made, line, made.label, instance.id, answer)


def _follow(
    look: Callable[[], RequestState],
    made: AppInstance | Operation,
    line: str,
    what: str,
    instance_id: UUID,
    answer: Answer,
) -> None:
    console = view.err if answer.as_json else view.out  # with --json, stdout has the record alone
    console.print(line)
    code, seen = live.follow(look, console, answer.timeout)
    if code in (TIME_OVER, INTERRUPTED):
        why = "interrupted" if code == INTERRUPTED else f"not ended after {answer.timeout:g} s"
        view.err.print(f"{why}: {what} goes on, nothing was cancelled")
        view.err.print(f"to follow it: gpuaas-slurm status --watch --instance {instance_id}")
    elif seen and seen.failure:
        for text in seen.failure:
            view.err.print(view.plain(text))
    else:
        console.print(f"{what} is done")
    if answer.as_json:
        view.print_json((seen.record if seen else made).model_dump(mode="json"))
    raise typer.Exit(code)
