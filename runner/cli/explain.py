"""gpuaas-slurm explain: the whole story of one request, from the API alone; a log file adds its lines.

Five questions: which instance, which operation, which members, which correlation id, and what the runtime shows. Then,
in time order: who asked, what was decided and why, which plays ran on which hosts, and how it ended.
"""

import textwrap
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from runner.cli import follow, log_lines, requests, story, view
from runner.cli.commands import as_reader
from runner.cli.options import Json
from runner.cli.request_state import next_step
from runner.cli.story import Entry, Found
from runner.cli.tables import MOST_COLUMNS
from runner.model.errors import RequestError
from runner.model.names import host_name
from runner.model.plan import Detail
from runner.model.platform import AppInstance, Operation
from runner.platform.client import Client
from runner.settings import Settings
from runner.slurm import notes

RUNTIME = (
    "phase",
    "node_state",
    "slurmctld_state",
    "slurmd_state",
    "drain_reason",
    "jobs_remaining",
    "slurm_version",
    "last_runtime_observed_at",
)
RUNTIME_OF_INSTANCE = {"observed_at", "config_version", "versions", "workers"}
MEMBERS_SHOWN = 20
INDENT = " " * 13


def explain(
    correlation: Annotated[str, typer.Argument(help="A correlation id, or its start (six characters or more).")],
    logs: Annotated[
        list[str] | None,
        typer.Option("--log", help="Add the lines of this log of the runner (JSON lines); repeatable; - is stdin."),
    ] = None,
    as_json: Json = False,
) -> None:
    """The story of one request, in time order: who asked, what was decided and why, which plays ran on which hosts,
    what the runtime shows, how it ended, and what to do next.

    Also of work by hand (exec, trust) and of routine work (a look, a repair), by the id of that work.
    """
    with as_reader() as (client, loaded):
        found = [
            one
            for instance in client.instances(app_slug=loaded.app_slug)
            if (one := _found(client, loaded, instance, correlation))
        ]
    lines = log_lines.read(logs or [], correlation)
    if not found:
        also = f" The log has {len(lines)} lines with it." if lines else ""
        raise RequestError(
            f"no record of this project has the correlation id {correlation}.{also} gpuaas-slurm get operations lists"
            " them. The id of routine work stays on record until later work of its kind takes its place; the platform's"
            " audit and the runner's log (--log) have it longer"
        )
    accounts = [account(one, lines if len(found) == 1 else ()) for one in found]
    if as_json:
        view.print_json(accounts)
    else:
        shown = "\n\n".join("\n".join(text(one)) for one in accounts)
        view.out.print(view.plain(shown), markup=False, soft_wrap=True)


def _found(client: Client, settings: Settings, instance: AppInstance, correlation: str) -> Found | None:
    operations: Sequence[Operation] = requests.operations(client, instance)
    records = follow.read_records(client, settings, instance, operations)
    return story.find(records, client.events(instance.id), correlation)


def account(found: Found, log: Sequence[Entry]) -> Detail:
    """Everything about the id, as `--json` prints it."""
    instance, shown = found.instance, notes.instance(found.instance)
    runtime = {key: value for key, value in shown.stored_fields(RUNTIME_OF_INSTANCE).items() if value is not None}
    next_steps = [step for code in story.codes(found) if (step := next_step(code))]
    return {
        "correlation_ids": found.correlation_ids,
        "instance": {
            "id": str(instance.id),
            "name": instance.name,
            "status": instance.status,
            "health": instance.health,
            "reasons": [one.stored() for one in shown.reasons or []],
            "lifecycle": shown.lifecycle,
        },
        "operations": [
            {
                "id": str(one.id),
                "operation": one.operation,
                "of": "instance" if one.of_instance else one.component_key,
                "status": one.status,
                "requested_by": one.requested_by,
                "created_at": str(one.created_at) if one.created_at else None,
                "error": one.error,
            }
            for one in found.asked
        ],
        "members": [
            {
                "id": str(one.id),
                "name": host_name(one),
                "host": notes.of(one).hostname,
                "status": one.status,
                "error": error.stored() if (error := one.notes.last_adapter_error) else None,
                "runtime": story.runtime_of(one, RUNTIME),
            }
            for one in found.members
        ],
        "runtime": runtime,
        "events": [{"type": one.get("type"), "at": one.get("created_at")} for one in found.events],
        "story": [one.shown() for one in story.merged(story.entries(found), log)],
        "end": story.ending(found),
        "next": next_steps[0] if next_steps else story.without_error(found),
    }


def text(made: Detail) -> list[str]:
    """The account as lines of at most 100 columns: the five answers, the story, its end and the next step."""
    instance, members = made["instance"], made["members"]
    shown = [_line("correlation", ", ".join(made["correlation_ids"]))]
    shown += [
        _line("instance", f"{instance['id']} {instance['name'] or ''} is {instance['status']}, {instance['health']}")
    ]
    shown += [_error(reason) for reason in instance["reasons"]]
    for one in made["operations"]:
        shown += [_line("operation", f"{one['operation']} {one['of']} {one['id']} is {one['status']}")]
        shown += [_error(one["error"])] if one["error"] else []
    for one in members[:MEMBERS_SHOWN]:
        shown += [_line("member", f"{one['name']} on {one['host'] or 'an unknown host'} is {one['status']}")]
        shown += [_error(one["error"])] if one["error"] else []
        shown += [_line("", "; ".join(f"{key}: {value}" for key, value in one["runtime"].items()))]
    if len(members) > MEMBERS_SHOWN:
        shown += [_line("member", f"and {len(members) - MEMBERS_SHOWN} more: --json has them")]
    seen = [_line("runtime", f"{key}: {_flat(value)}") for key, value in made["runtime"].items()]
    shown += [*(seen or [_line("runtime", "not seen yet")]), ""]
    shown += [_shown_entry(one) for one in made["story"]]
    shown += ["", _line("end", made["end"]), _line("next", made["next"])]
    return [line for one in shown for line in one.split("\n")]


def _shown_entry(one: Detail) -> str:
    """One entry of the story: its time, its kind and its text; below a play its hosts."""
    at = str(one["at"] or "no time")[:19].replace("T", " ")
    hosts = [_wrapped(f"{'':32}{host}", 34) for host in one.get(story.HOSTS, [])]
    return "\n".join([_wrapped(f"{at:<19}  {one['kind']:<8} {one['text']}", 30), *hosts])


def _line(name: str, value: str) -> str:
    return _wrapped(f"{name:<13}{value}", len(INDENT))


def _error(error: Any) -> str:
    return _line("", f"{error.get('code')}: {error.get('message')}") if isinstance(error, dict) else ""


def _flat(value: Any) -> str:
    return ", ".join(f"{key} {one}" for key, one in value.items() if one) if isinstance(value, dict) else str(value)


def _wrapped(line: str, indent: int) -> str:
    flat = " ".join(line.splitlines()) if "\n" in line else line
    return textwrap.fill(flat, MOST_COLUMNS, subsequent_indent=" " * indent, break_on_hyphens=False)
