"""gpuaas-slurm gaps: where the platform's contract lacks what the adapter needs, as known and as met now."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
import yaml

from runner.act.bundle import bundle_dir
from runner.cli import view
from runner.cli.commands import FAILED, OK, load, require_one_scope
from runner.cli.options import Form, Json, Output, chosen_form
from runner.cli.tables import Columns, Row, Section
from runner.model.errors import PlatformError
from runner.model.gaps import Basis, Gap, Gaps, Kind, PilotKind
from runner.observe.walk import walk
from runner.platform.client import Client

COLUMNS = Columns(("kind", "pilot", "basis"), ("call", "expected", "came", "meanwhile"))


def gaps(
    only_known: Annotated[
        bool, typer.Option("--known", help="Only those known beforehand: nothing is called.")
    ] = False,
    as_json: Json = False,
    output: Output = Form.TABLE,
) -> None:
    """Gaps in the platform's contract: those known beforehand, and those that a read-only walk meets now.

    The walk makes every read of the runner, with the runner's own identity. Exit code 0: it met none; 1: it met some;
    2: it could not be made.
    """
    form = chosen_form(output, as_json)
    before = read_known(bundle_dir() / "app" / "gaps.yaml")
    met, failure = Gaps(), None
    if not only_known:
        loaded = load()
        require_one_scope(loaded)
        with Client(loaded, gaps=met) as client:
            failure = _walk(client, loaded.app_slug)
    if form is Form.JSON:
        found = [one.as_row() for one in met]
        view.print_json({"known": [one.as_row() for one in before], "met": found, "left_out": met.left_out})
    else:
        sections = [Section(COLUMNS, rows(before), "no gap is known")]
        if not only_known:
            heading = f"met now: {len(met)}" + (f", and {met.left_out} more" if met.left_out else "")
            sections += [Section(COLUMNS, [], heading), Section(COLUMNS, rows(met), "every answer was as expected")]
        view.show(sections, wide=form is Form.WIDE)
    if failure:
        raise failure
    raise typer.Exit(FAILED if len(met) else OK)


def _walk(client: Client, app_slug: str) -> PlatformError | None:
    """Why the walk could not begin: a login that fails is evidence, too, so it is shown first."""
    try:
        walk(client, app_slug)
    except PlatformError as error:
        return error
    return None


def read_known(path: Path) -> list[Gap]:
    """The gaps of app/gaps.yaml."""
    return [
        Gap(
            call=one["call"],
            basis=Basis(one["basis"]),
            expected=one["expected"],
            came=one["came"],
            kind=Kind(one["kind"]),
            meanwhile=one["meanwhile"],
            pilot=PilotKind(one["pilot"]) if one.get("pilot") else None,
        )
        for one in yaml.safe_load(path.read_text())
    ]


def rows(found: Iterable[Gap]) -> list[Row]:
    return [one.as_row() for one in found]
