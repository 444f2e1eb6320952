"""What a person asks of a whole instance: op stop, start, restart and the like, as commands."""

from typing import Annotated, Any

import typer

from runner import operator, view
from runner.commands import Json, as_person
from runner.verbs import Parameter, Target, pairs

Deadline = Annotated[int | None, typer.Option(help="Seconds to wait for running jobs; default: for ever.")]


def ask(verb: str, target: str, as_json: bool, parameters: dict[str, Any]) -> None:
    """Send the request, leaving out what was not said."""
    said = {key: value for key, value in parameters.items() if value is not None}
    with as_person() as (client, loaded):
        instance = operator.find_instance(client, loaded, target)
        made = operator.request_of_instance(client, instance, verb, said)
        if as_json:
            view.print_json(made.model_dump(mode="json"))
        else:
            view.out.print(f"{verb} {made.id} is {made.status}; correlation {made.correlation_id}")


def start(target: Target, parameter: Parameter = None, as_json: Json = False) -> None:
    """Bring a stopped cluster back with the nodes it had."""
    ask("start", target, as_json, pairs(parameter))


def add_to(op: typer.Typer) -> None:
    """The verbs stand beside those for members."""
    op.command("start")(start)
