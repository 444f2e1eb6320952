"""What is installed is what was locked, and what is deployed is as restricted as documented."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from runner.act.play_queue import SMALL_PLAY_MB
from runner.settings import Settings
from tests.repository import ROOT, present_files

sys.path.insert(0, str(ROOT / "deploy"))
import locked

LOCK = (ROOT / "requirements.lock").read_text()


def in_the_tree() -> list[Path]:
    return [ROOT / name for name in present_files()]


def tracked() -> list[Path]:
    return [one for one in in_the_tree() if one.is_file() and not one.is_symlink()]


def test_every_link_in_the_tree_is_relative_and_leads_into_the_tree() -> None:
    files = in_the_tree()
    links = [one for one in files if one.is_symlink()]
    assert ROOT / "runner" / "slurm" / "node_rules.py" in links
    places = {place for file in files for place in (file, *file.parents)} - {ROOT, *ROOT.parents}
    assert [str(one) for one in links if one.readlink().is_absolute() or one.resolve() not in places] == []


# -- the lock ------------------------------------------------------------------------------------------------


def test_every_package_is_locked_to_one_version_with_hashes_and_no_index() -> None:
    entries = locked.read_lock(LOCK)
    assert len(entries) > 50
    assert len({entry.name for entry in entries}) == len(entries)
    assert all(entry.hashes for entry in entries)
    assert not re.search(r"https?://|^-|@ ", LOCK, re.M)


@pytest.mark.parametrize(
    "bad", ["x==1\n", "x>=1 \\\n    --hash=sha256:" + "a" * 64, "x==1 \\\n    --hash=md5:abc", "--index-url y"]
)
def test_a_lock_with_an_entry_that_is_not_pinned_is_none(bad: str) -> None:
    with pytest.raises(ValueError, match="hashes"):
        locked.read_lock(f"{LOCK}\n{bad}")


def test_everything_the_project_asks_for_is_in_the_lock() -> None:
    names = {entry.name for entry in locked.read_lock(LOCK)}
    assert locked.runtime_names() <= names
    assert {name for name, _ in locked.needs("gpuaas-slurm", frozenset({"dev", "sandbox"}))} <= names


@pytest.mark.parametrize("part", ["runtime", "build"])
def test_the_images_locks_are_parts_of_the_lock_as_it_is(part: str) -> None:
    command = [sys.executable, str(ROOT / "deploy" / "locked.py"), part]
    now = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert now == (ROOT / "deploy" / f"{part}.lock").read_text(), "run ./dev lock"


def test_the_lock_is_made_with_hashes_and_without_an_index() -> None:
    dev = (ROOT / "dev").read_text()
    assert "--generate-hashes" in dev and "--no-emit-index-url" in dev
    installs = re.findall(r"^\s*pip_install (.*)$", dev, re.M)
    assert installs and all("--require-hashes" in one or "--no-deps" in one for one in installs)


# -- the bill of materials -----------------------------------------------------------------------------------


def test_the_sbom_has_each_locked_package_once_with_its_hashes_and_its_part() -> None:
    command = [sys.executable, str(ROOT / "deploy" / "locked.py"), "sbom"]
    texts = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert texts[0] == texts[1], "the same lock gives the same bytes"
    bom = json.loads(texts[0])
    jsonschema.validate(bom, BOM)
    entries = locked.read_lock(LOCK)
    shown = {one["purl"]: one for one in bom["components"]}
    assert set(shown) == {entry.purl for entry in entries}
    for entry in entries:
        assert tuple(one["content"] for one in shown[entry.purl]["hashes"]) == entry.hashes
    scope = {one["name"]: one["scope"] for one in bom["components"]}
    assert (scope["ansible-core"], scope["hvac"], scope["pytest"]) == ("required", "required", "excluded")
    refs = {one["bom-ref"] for one in bom["components"]} | {bom["metadata"]["component"]["bom-ref"]}
    assert {ref for one in bom["dependencies"] for ref in (one["ref"], *one["dependsOn"])} == refs


TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
# The parts of CycloneDX 1.5 that we use.
BOM: dict[str, Any] = {
    "type": "object",
    "required": ["bomFormat", "specVersion", "serialNumber", "version", "metadata", "components", "dependencies"],
    "properties": {
        "bomFormat": {"const": "CycloneDX"},
        "specVersion": {"const": "1.5"},
        "serialNumber": {"pattern": "^urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
        "components": {
            "items": {
                "required": ["type", "name", "version", "purl", "hashes"],
                "properties": {
                    "type": {"const": "library"},
                    "name": TEXT,
                    "scope": {"enum": ["required", "optional", "excluded"]},
                    "hashes": {
                        "items": {
                            "properties": {"alg": {"const": "SHA-256"}, "content": {"pattern": "^[0-9a-f]{64}$"}},
                            "required": ["alg", "content"],
                        }
                    },
                    "licenses": {
                        "type": "array",
                        "items": {"oneOf": [{"required": ["license"]}, {"required": ["expression"]}]},
                    },
                },
            }
        },
        "dependencies": {"items": {"required": ["ref", "dependsOn"]}},
    },
}

# -- what is downloaded --------------------------------------------------------------------------------------

PIPED = re.compile(
    r"\b(curl|wget)\b[^\n|]*\|\s*(sudo\s+)?(ba|da|z)?sh\b|\b(ba)?sh\s+(-c\s+)?[\"']?[<$]\(?\s*(curl|wget)", re.I
)


def test_nothing_downloaded_is_piped_into_a_shell() -> None:
    for file in tracked():
        if file == Path(__file__) or file.suffix in (".json", ".lock"):
            continue
        assert not PIPED.search(file.read_text(errors="replace")), file
    assert PIPED.search("curl -s https://x | sudo sh") and PIPED.search('sh -c "$(curl x)"')


# -- systemd -------------------------------------------------------------------------------------------------


def unit(name: str) -> dict[str, str]:
    lines = (ROOT / "deploy" / "systemd" / name).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith(("#", "[")))


def test_the_service_can_write_nowhere_gain_nothing_and_leave_no_core() -> None:
    service = unit("gpuaas-slurm.service")
    assert service["DynamicUser"] == service["NoNewPrivileges"] == service["PrivateTmp"] == "yes"
    assert (service["ProtectSystem"], service["LimitCORE"], service["CapabilityBoundingSet"]) == ("strict", "0", "")
    assert service["UMask"] == "0077"


def test_the_services_secrets_come_as_a_credential_and_not_as_environment() -> None:
    text = (ROOT / "deploy" / "systemd" / "gpuaas-slurm.service").read_text()
    assert "LoadCredential=gpuaas.toml:" in text and "EnvironmentFile" not in text
    assert not re.search(r"^Environment=.*(SECRET|TOKEN)", text, re.M)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed here")
def test_systemd_accepts_the_units_and_finds_little_exposure(tmp_path: Path) -> None:
    for file in (ROOT / "deploy" / "systemd").iterdir():
        # It looks whether the program is there, which here it is not.
        text = re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", file.read_text())
        (tmp_path / file.name).write_text(text)
    units = [str(tmp_path / f"gpuaas-slurm.{kind}") for kind in ("service", "timer")]
    checked = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    assert "gpuaas-slurm" not in checked.stderr, checked.stderr
    (tmp_path / "gpuaas-slurm.service.d").mkdir()
    (tmp_path / "watch.conf").rename(tmp_path / "gpuaas-slurm.service.d" / "watch.conf")
    watching = subprocess.run(["systemd-analyze", "verify", units[0]], capture_output=True, text=True, check=False)
    assert "gpuaas-slurm" not in watching.stderr and "watch.conf" not in watching.stderr, watching.stderr
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=30", units[0]]
    exposed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert exposed.returncode == 0, exposed.stdout[-600:]


def test_watching_is_the_same_service_that_does_not_end_and_is_started_again() -> None:
    service, watching = unit("gpuaas-slurm.service"), (ROOT / "deploy" / "systemd" / "watch.conf").read_text()
    assert f"ExecStart=\nExecStart={service['ExecStart']} --watch\n" in watching, "the first ExecStart is taken away"
    assert unit("watch.conf").items() >= {"Type": "exec", "Restart": "always", "WantedBy": "multi-user.target"}.items()
    settings = {one for one in unit("watch.conf") if one in service} - {"ExecStart", "Type"}
    assert not settings, "everything else is that of the service"


def cronjob() -> Any:
    return yaml.safe_load((ROOT / "deploy" / "kubernetes" / "cronjob.yaml").read_text())


def test_no_time_limit_ends_a_run_and_a_killed_process_ends_only_its_play() -> None:
    """A run that ends ticks no instance while it finishes its step."""
    service = unit("gpuaas-slurm.service")
    assert (service["TimeoutStartSec"], service["OOMPolicy"]) == ("infinity", "continue")
    assert "activeDeadlineSeconds" not in cronjob()["spec"]["jobTemplate"]["spec"]


def test_ticks_of_the_timer_do_not_overlap() -> None:
    timer = unit("gpuaas-slurm.timer")
    assert "OnUnitInactiveSec" in timer and "OnCalendar" not in timer


# -- containers ----------------------------------------------------------------------------------------------


def test_the_cronjob_runs_one_at_a_time_without_root_and_without_a_writable_disk() -> None:
    job = cronjob()
    assert job["spec"]["concurrencyPolicy"] == "Forbid"
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    (container,) = pod["containers"]
    rights = container["securityContext"]
    assert rights["readOnlyRootFilesystem"] is True and rights["allowPrivilegeEscalation"] is False
    assert rights["capabilities"] == {"drop": ["ALL"]}
    kinds = {volume["name"]: set(volume) - {"name"} for volume in pod["volumes"]}
    assert kinds == {"settings": {"secret"}, "tmp": {"emptyDir"}}
    assert not [one for one in container["env"] if re.search("SECRET|TOKEN", one["name"])]


def test_the_pod_for_a_person_has_the_image_settings_and_rights_of_the_cronjob() -> None:
    by_hand = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "by-hand.yaml").read_text())["spec"]
    job = cronjob()["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (own,), (runner,) = by_hand["containers"], job["containers"]
    for name in ("image", "securityContext", "volumeMounts", "resources"):
        assert own[name] == runner[name], name
    for name in ("securityContext", "volumes", "automountServiceAccountToken", "enableServiceLinks"):
        assert by_hand[name] == job[name], name
    assert own["workingDir"].endswith("/share/gpuaas-slurm") and own["env"] == runner["env"][:1]


def test_memory_is_enough_for_twice_the_plays_at_once_the_runner_and_tmp() -> None:
    pod = cronjob()["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (plays_mb,) = [int(one["value"]) for one in container["env"] if one["name"] == "GPUAAS_MEMORY_MB"]
    for memory_mb in (plays_mb, Settings.model_fields["memory_mb"].default):
        assert memory_mb >= 2 * Settings.model_fields["parallel_plays"].default * SMALL_PLAY_MB
    (tmp,) = [volume["emptyDir"]["sizeLimit"] for volume in pod["volumes"] if volume["name"] == "tmp"]
    limit = container["resources"]["limits"]["memory"]
    assert int(limit.removesuffix("Mi")) >= plays_mb + int(tmp.removesuffix("Mi")) + 100, "100 MiB for the runner"
    assert int(unit("gpuaas-slurm.service")["MemoryMax"].removesuffix("G")) * 1024 >= 2048 + 100


def test_the_image_has_debian_packages_and_the_lock_and_runs_without_root() -> None:
    text = (ROOT / "deploy" / "Containerfile").read_text()
    stages = text.split("\nFROM ")
    assert "USER 10001:10001" in stages[-1]
    installs = re.findall(r"pip (?:install|wheel) [^&\n]*", text)
    assert installs and all("--require-hashes" in one or "--no-deps" in one for one in installs)
    assert not re.search(r"\b(curl|wget|ADD)\b", text)


def test_what_the_image_copies_is_what_the_wheel_is_made_of() -> None:
    text = (ROOT / "deploy" / "Containerfile").read_text()
    wheel = (ROOT / "pyproject.toml").read_text()
    shared = set(re.findall(r'^"([\w.]+)" = "share/gpuaas-slurm/', wheel, re.M))
    copied = {source for line in re.findall(r"^COPY (?!--)(.*)$", text, re.M) for source in line.split()[:-1]}
    assert shared | {"runner", "sandbox"} <= copied


def test_an_installed_runner_has_what_plays_by_hand_need() -> None:
    installed = re.findall(r'^"([\w.]+)" = "share/gpuaas-slurm/\1"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert {"ansible.cfg", "gpuaas.yml", "inventory_plugins", "playbooks", "plugins", "roles"} <= set(installed)
