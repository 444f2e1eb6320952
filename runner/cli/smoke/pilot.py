"""The app in the platform's catalog, as a smoke run tries it: published, entitled, and moved between versions."""

import uuid

import yaml

from runner.act import bundle
from runner.cli import requests
from runner.cli.smoke.run import CheckFailed, NotApplicable, Run
from runner.intent.errors import IntentError
from runner.intent.placement_policy import check_entitled
from runner.model.errors import Forbidden
from runner.observe import entitlements
from runner.smoke.plan import Look


def publish(run: Run, _look: Look) -> str:
    """The program's own manifest, twice. A version never changes, so nothing that others use does."""
    manifest, version = yaml.safe_load((bundle.bundle_dir() / "app" / "manifest.yaml").read_text()), bundle.version()
    slug = run.settings.app_slug
    try:
        for _ in range(2):
            run.operator.publish_app(slug, manifest, key=uuid.uuid4().hex)
    except Forbidden as error:
        if version not in run.operator.app(slug).versions:
            raise
        return f"the catalog has {version}; this token may not publish it again ({error.code})"
    offered = run.operator.app(slug).versions
    if version not in offered:
        raise CheckFailed("not_published", f"{version} was published, and the catalog has {', '.join(offered)}")
    return f"the catalog has {', '.join(offered)}"


def entitlement(run: Run, _look: Look) -> str:
    """As the runner reads it before it adds a machine."""
    found = entitlements.read(run.runner, run.settings)
    if found.missing and not found.required:
        raise NotApplicable("the platform has no entitlements, and GPUAAS_ENTITLEMENT_POLICY says so")
    if found.held:
        raise CheckFailed("entitlement_unreadable", found.held)
    try:
        check_entitled(found, [run.settings.project_id], run.settings.app_slug)
    except IntentError as error:
        raise CheckFailed(error.code, error.message) from None
    return "the project may use the app"


def move(run: Run, _look: Look) -> str:
    others = [one for one in run.operator.app(run.settings.app_slug).versions if one != bundle.version()]
    if not others:
        raise NotApplicable("the catalog has one version, so there is none to move to")
    return _configure(run, others[-1])


def move_back(run: Run, _look: Look) -> str:
    return _configure(run, bundle.version())


def _configure(run: Run, version: str) -> str:
    before = run.operator.instance(run.instance.id)
    if before.app_version == version:
        raise NotApplicable(f"app_version is {version} already")
    run.found = requests.configure(run.operator, before, {}, [], version)
    return f"app_version was {before.app_version}, and {run.found.app_version} is requested"
