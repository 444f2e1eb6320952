"""Commands for operations on a whole instance: op stop, start, restart and others."""

from typing import Annotated, Any

import typer

from runner.cli import requests, view
from runner.cli.commands import Json, as_person
from runner.cli.member_operations import Deadline, OnDeadline, Parameter, RemoveHomes, Target, pairs


def ask(verb: str, target: str, as_json: bool, parameters: dict[str, Any]) -> None:
    """Send the request, without the parameters that were not given."""
    given = {key: value for key, value in parameters.items() if value is not None}
    with as_person() as (client, loaded):
        instance = requests.find_instance(client, loaded, target)
        made = requests.request_of_instance(client, instance, verb, given)
        if as_json:
            view.print_json(made.model_dump(mode="json"))
        else:
            view.out.print(f"{verb} {made.id} is {made.status}; correlation {made.correlation_id}")


def stop(
    target: Target,
    deadline: Deadline = None,
    on_deadline: OnDeadline = None,
    reason: Annotated[str | None, typer.Option(help="A reason; it is shown while the stop is under way.")] = None,
    parameter: Parameter = None,
    as_json: Json = False,
) -> None:
    """Let running jobs end and start no others, then stop every daemon. Waiting jobs and accounting are kept."""
    terms = {"deadline_seconds": deadline, "on_deadline": on_deadline, "reason": reason}
    ask("stop", target, as_json, terms | pairs(parameter))


def start(target: Target, parameter: Parameter = None, as_json: Json = False) -> None:
    """Bring a stopped cluster back with the nodes it had."""
    ask("start", target, as_json, pairs(parameter))


def restart(
    target: Target,
    patience: Annotated[
        int | None, typer.Option(help="Seconds until every worker that served must serve again; default: 300.")
    ] = None,
    parameter: Parameter = None,
    as_json: Json = False,
) -> None:
    """Restart slurmdbd, slurmctld and every slurmd. Running jobs run on."""
    ask("restart", target, as_json, {"patience_seconds": patience} | pairs(parameter))


def decommission(
    target: Target,
    deadline: Deadline = None,
    on_deadline: Annotated[
        str | None, typer.Option(help="At the deadline: give_up (default; jobs run on) or cancel the running jobs.")
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
    ask("decommission", target, as_json, terms | pairs(parameter))


def retry(target: Target, as_json: Json = False) -> None:
    """Try a failed deploy again. Members that are ready stay as they are."""
    ask("retry", target, as_json, {})


def rotate_credentials(target: Target, as_json: Json = False) -> None:
    """Give every host of a running cluster a new munge key at the same moment. Jobs run on."""
    ask("rotate_credentials", target, as_json, {})


def add_to(op: typer.Typer) -> None:
    """The verbs stand beside those for members."""
    op.command("stop")(stop)
    op.command("decommission")(decommission)
    op.command("start")(start)
    op.command("restart")(restart)
    op.command("rotate-credentials")(rotate_credentials)
    op.command("retry")(retry)
