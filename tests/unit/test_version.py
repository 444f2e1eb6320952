"""The manifest has the version; package, command line and deployment files show the same one."""

import re
from pathlib import Path

import yaml
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager
from typer.testing import CliRunner

from runner.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = str(yaml.safe_load((ROOT / "app" / "manifest.yaml").read_text())["version"])


def test_package_manifest_and_command_line_have_one_version() -> None:
    package = ProjectMetadata(str(ROOT), PluginManager()).version
    shown = CliRunner().invoke(app, ["--version"])

    assert (shown.exit_code, shown.stdout) == (0, f"gpuaas-slurm {MANIFEST}\n")
    assert package == MANIFEST


def test_the_changelog_begins_with_this_version() -> None:
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert released[0] == MANIFEST
    assert released == sorted(released, key=lambda text: [int(part) for part in text.split(".")], reverse=True)


def test_deployment_files_name_the_image_of_this_version() -> None:
    for file in ("deploy/Containerfile", "deploy/kubernetes/cronjob.yaml", "deploy/kubernetes/by-hand.yaml"):
        named = re.findall(r"gpuaas-slurm:(\d\S*)", (ROOT / file).read_text())
        assert named and set(named) == {MANIFEST}, file
