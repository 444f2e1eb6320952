"""Arguments and options that several commands share, and how their values are read."""

from typing import Annotated, Any

import typer

from runner.model.errors import RequestError

MEMBER_NAMES = "id, start of an id, node name, or inventory name (worker-1a2b3c4d)"

Json = Annotated[bool, typer.Option("--json", help="Answer with JSON on stdout.")]
Which = Annotated[
    str | None,
    typer.Option("--instance", "-i", help="The instance: id, start of an id, or name; default: the only one."),
]
OneOrAll = Annotated[
    str | None,
    typer.Option("--instance", "-i", help="Only this instance: id, start of an id, or name; default: every instance."),
]
Target = Annotated[str, typer.Argument(help="The instance: id, start of an id, or name.")]
Members = Annotated[str, typer.Option(help=f"Members, comma separated: {MEMBER_NAMES}.")]
Allocations = Annotated[str, typer.Option(help="Allocations, comma separated: id, start of an id, or name.")]
Component = Annotated[str, typer.Option("--component", help="component_key of the members.")]
Parameter = Annotated[list[str] | None, typer.Option("--parameter", "-p", help="A parameter KEY=VALUE, repeatable.")]
Reason = Annotated[str, typer.Option(help="A reason; it is part of the node's drain reason.")]
Deadline = Annotated[int | None, typer.Option(help="Seconds to wait for jobs that are in the way; default: no limit.")]
OnDeadline = Annotated[
    str | None,
    typer.Option(help="At the deadline: give_up (default; jobs run on), requeue or cancel the jobs. Needs --deadline."),
]
OnLeavingDeadline = Annotated[
    str | None,
    typer.Option(
        help="At the deadline: give_up (default; jobs run on), requeue or cancel the jobs. Needs --deadline. If a"
        " waiting job names the node, requeue clears its required nodes and cancel cancels it."
    ),
]
HostPatience = Annotated[
    int | None, typer.Option(help="Seconds a host may not answer before its node is removed without it; default: 600.")
]
RemoveHomes = Annotated[
    bool,
    typer.Option("--remove-homes", help="Delete the users' homes that the adapter made, on the root file system only."),
]


def split_list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def read_pairs(texts: list[str] | None) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for text in texts or []:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise RequestError(f"{text!r} is not KEY=VALUE")
        pairs[key] = int(value) if value.isdigit() else value
    return pairs


def given(values: dict[str, Any], more: list[str] | None = None) -> dict[str, Any]:
    """The parameters of an operation: the options that were used, and those of --parameter."""
    return {key: value for key, value in values.items() if value is not None} | read_pairs(more)
