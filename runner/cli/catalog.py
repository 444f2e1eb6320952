"""gpuaas-slurm app: the app in the platform's catalog. For the people who publish it, and who choose a version."""

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from runner.act import bundle
from runner.cli import view
from runner.cli.commands import FAILED, OK, as_operator
from runner.cli.options import Json
from runner.model.errors import Conflict, NotFound, RequestError
from runner.platform.client import Client

catalog = typer.Typer(help="The app in the catalog: check it, publish it, list its versions.", no_args_is_help=True)
Manifest = Annotated[Path | None, typer.Option("--manifest", help="A manifest; default: the one of this program.")]
METHODS = ("get", "post", "patch", "put", "delete")


def _read(path: Path | None) -> tuple[Any, list[str]]:
    """A manifest, and what is wrong with it. Nothing but files is read."""
    from runner.intent import manifest  # loads jsonschema, which takes as long as the rest of the program

    path = path or bundle.bundle_dir() / "app" / "manifest.yaml"
    try:
        found = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise RequestError(f"{path} cannot be read as YAML: {error}") from None
    contract = bundle.bundle_dir() / "contract"
    schema = yaml.safe_load((contract / "manifest.schema.json").read_text())
    return found, manifest.problems(found, schema, _calls(contract / "openapi.yaml"))


def _calls(contract: Path) -> set[str]:
    """The calls whose action key an app's manifest names."""
    # The C parser reads the contract in a tenth of the time, where there is one.
    document = yaml.load(contract.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - a safe one
    operations = [item[method] for item in document["paths"].values() for method in METHODS if method in item]
    return {
        one["operationId"]
        for one in operations
        if one.get("security") != [] and one.get("x-needs-action-key", True) and "x-gpuaas-action-key" not in one
    }


def _answer(found: Any, wrong: Sequence[str], done: str, *, as_json: bool, **more: Any) -> None:
    """End with exit code 1 and every problem, or say what was done."""
    named = {name: found.get(name) if isinstance(found, dict) else None for name in ("app_slug", "version")}
    if as_json:
        view.print_json({**named, "valid": not wrong, "problems": list(wrong), **more})
    else:
        for problem in wrong:
            view.err.print(f"error: {view.plain(problem)}")
        if not wrong:
            view.out.print(view.plain(f"{named['app_slug']} {named['version']} {done}"))
    raise typer.Exit(FAILED if wrong else OK)


@catalog.command("validate")
def validate(manifest: Manifest = None, as_json: Json = False) -> None:
    """Check a manifest without a platform. Exit code 1: it has problems."""
    found, wrong = _read(manifest)
    _answer(found, wrong, "is a valid manifest", as_json=as_json)


@catalog.command("publish")
def publish(manifest: Manifest = None, as_json: Json = False) -> None:
    """Put a version into the catalog, where it never changes; the same again changes nothing.

    Exit code 1: it is not valid, or the catalog has this version with another content.
    """
    found, wrong = _read(manifest)
    if wrong:
        _answer(found, wrong, "", as_json=as_json, published=False)
    slug, version = found["app_slug"], found["version"]
    with as_operator() as (client, _):
        before = _versions(client, slug)
        try:
            client.publish_app(slug, found, key=uuid.uuid4().hex)
        except Conflict as refusal:
            if refusal.code != "app_version_exists":
                raise
            taken = (
                f"the catalog has {slug} {version} with another content: a version never changes, so raise `version`"
            )
            _answer(found, [taken], "", as_json=as_json, published=False)
    done = "is in the catalog already" if version in before else "is in the catalog now"
    _answer(found, [], done, as_json=as_json, published=version not in before)


@catalog.command("list")
def list_versions(as_json: Json = False) -> None:
    """What the catalog offers of this app, the newest last, beside the version of this program."""
    with as_operator() as (client, loaded):
        offered = client.app(loaded.app_slug)
    ours = bundle.version()
    if as_json:
        view.print_json({**offered.model_dump(mode="json"), "program": ours})
        return
    for version in offered.versions:
        view.out.print(view.plain(f"{offered.app_slug} {version}{'  (this program)' if version == ours else ''}"))
    if ours not in offered.versions:
        view.out.print(f"this program is version {ours}, which the catalog does not have: gpuaas-slurm app publish")


def _versions(client: Client, app_slug: str) -> list[str]:
    try:
        return client.app(app_slug).versions
    except NotFound:
        return []
