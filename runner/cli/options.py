"""Arguments and options that several commands share, and how their values are read."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

import typer

from runner.model.errors import RequestError
from runner.observe.find import read_uuid

MEMBER_NAMES = "id, start of an id, node name, or inventory name (worker-1a2b3c4d)"


class Form(StrEnum):
    """How a command prints records."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"


@dataclass(frozen=True)
class Answer:
    """How a request is answered: as JSON or not, at once or when what it asks for has ended."""

    as_json: bool
    wait: bool
    timeout: float | None

    def __post_init__(self) -> None:
        if self.timeout is not None and not self.wait:
            raise RequestError("--timeout limits --wait: pass both")


Json = Annotated[bool, typer.Option("--json", help="Answer with JSON on stdout.")]
Output = Annotated[
    Form,
    typer.Option(
        "--output", "-o", help="table: at most 100 columns, short ids; wide: every column, whole ids; json: as --json."
    ),
]
Wait = Annotated[bool, typer.Option("--wait", help="Follow it to its end. Exit code 1: it failed.")]
Timeout = Annotated[
    float | None,
    typer.Option(min=0, help="With --wait: seconds until it is no longer followed, exit code 4. Nothing is cancelled."),
]
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
ByHandReason = Annotated[str, typer.Option("--reason", help="Why; the record of this command keeps it.")]
AsServiceAccount = Annotated[
    bool,
    typer.Option(
        "--as-service-account", help="In an emergency, without a token of your own: the record names no person."
    ),
]
AppVersion = Annotated[
    str | None,
    typer.Option(help="Version of the app, one that `gpuaas-slurm app list` shows; default: that of this program."),
]
Credential = Annotated[
    str | None,
    typer.Option("--access-credential", help="Id of the hosts' ssh credential; default: GPUAAS_ACCESS_CREDENTIAL_ID."),
]
OperatorAccount = Annotated[
    str | None,
    typer.Option(
        help="Id of the only service account that may write the instance's state; default: GPUAAS_SERVICE_ACCOUNT_ID,"
        " and without it any of the project."
    ),
]
Deadline = Annotated[int | None, typer.Option(help="Seconds to wait for jobs that are in the way; default: no limit.")]
OnDeadline = Annotated[
    str | None,
    typer.Option(help="At the deadline: give_up (default; jobs continue), requeue or cancel them. Needs --deadline."),
]
OnLeavingDeadline = Annotated[
    str | None,
    typer.Option(
        help="At the deadline: give_up (default; jobs continue), requeue or cancel the jobs. Needs --deadline. If a"
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


def chosen_form(output: Form, as_json: bool) -> Form:
    if as_json and output is Form.WIDE:
        raise RequestError("--json has whole records: pass it without --output wide")
    return Form.JSON if as_json else output


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


def given_id(text: str, what: str) -> str:
    if read_uuid(text) is None:
        raise RequestError(f"{text!r} is not the id of {what}: pass the whole id, as the platform shows it")
    return str(UUID(text))
