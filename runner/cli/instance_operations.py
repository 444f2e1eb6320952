"""Commands for operations on a whole instance: op stop, start, restart and others."""

from typing import Annotated, Any

import typer

from runner.cli import follow, requests
from runner.cli.commands import as_operator
from runner.cli.options import Answer, Deadline, Json, OnDeadline, Parameter, RemoveHomes, Target, Timeout, Wait, given
from runner.observe.find import find_instance


def request(verb: str, target: str, answer: Answer, parameters: dict[str, Any]) -> None:
    with as_operator() as (client, loaded):
        instance = find_instance(client, loaded, target)
        made = requests.request_of_instance(client, instance, verb, parameters)
        follow.answer_operation(client, loaded, instance, made, answer)


def stop(
    target: Target,
    deadline: Deadline = None,
    on_deadline: OnDeadline = None,
    reason: Annotated[str | None, typer.Option(help="A reason; it is shown while the stop is under way.")] = None,
    parameter: Parameter = None,
    as_json: Json = False,
    wait: Wait = False,
    timeout: Timeout = None,
) -> None:
    """Let running jobs end and start no others, then stop every daemon. Waiting jobs and accounting are kept."""
    terms = {"deadline_seconds": deadline, "on_deadline": on_deadline, "reason": reason}
    request("stop", target, Answer(as_json, wait, timeout), given(terms, parameter))


def start(target: Target, as_json: Json = False, wait: Wait = False, timeout: Timeout = None) -> None:
    """Bring a stopped cluster back with the nodes it had."""
    request("start", target, Answer(as_json, wait, timeout), {})


def restart(
    target: Target,
    patience: Annotated[
        int | None, typer.Option(help="Seconds until every worker that served must serve again; default: 300.")
    ] = None,
    parameter: Parameter = None,
    as_json: Json = False,
    wait: Wait = False,
    timeout: Timeout = None,
) -> None:
    """Restart slurmdbd, slurmctld and every slurmd. Running jobs continue."""
    request("restart", target, Answer(as_json, wait, timeout), given({"patience_seconds": patience}, parameter))


def decommission(
    target: Target,
    deadline: Deadline = None,
    on_deadline: Annotated[
        str | None, typer.Option(help="At the deadline: give_up (default; jobs continue) or cancel the running jobs.")
    ] = None,
    keep_logs: Annotated[bool, typer.Option("--keep-logs", help="Keep the daemons' logs on the hosts.")] = False,
    remove_homes: RemoveHomes = False,
    abandon_unreachable: Annotated[
        bool,
        typer.Option("--abandon-unreachable", help="Finish without hosts that do not answer in --host-patience."),
    ] = False,
    host_patience: Annotated[int | None, typer.Option(help="Seconds a host may not answer; default: 600.")] = None,
    reason: Annotated[str | None, typer.Option(help="A reason; it is part of the nodes' drain reason.")] = None,
    parameter: Parameter = None,
    as_json: Json = False,
    wait: Wait = False,
    timeout: Timeout = None,
) -> None:
    """Take the whole cluster down and leave every host as it was found. This cannot be undone."""
    terms = {
        "deadline_seconds": deadline,
        "on_deadline": on_deadline,
        "keep_logs": keep_logs or None,
        "remove_homes": remove_homes or None,
        "abandon_unreachable": abandon_unreachable or None,
        "host_patience_seconds": host_patience,
        "reason": reason,
    }
    request("decommission", target, Answer(as_json, wait, timeout), given(terms, parameter))


def retry(target: Target, as_json: Json = False, wait: Wait = False, timeout: Timeout = None) -> None:
    """Try a failed deploy again. Members that are ready stay as they are."""
    request("retry", target, Answer(as_json, wait, timeout), {})


def rotate_credentials(target: Target, as_json: Json = False, wait: Wait = False, timeout: Timeout = None) -> None:
    """Give every host of a running cluster a new munge key at the same moment. Jobs continue."""
    request("rotate_credentials", target, Answer(as_json, wait, timeout), {})


def add_to(op: typer.Typer) -> None:
    """Add the verbs to those for members."""
    op.command("stop")(stop)
    op.command("decommission")(decommission)
    op.command("start")(start)
    op.command("restart")(restart)
    op.command("rotate-credentials")(rotate_credentials)
    op.command("retry")(retry)
