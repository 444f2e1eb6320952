"""Makes an SBOM of requirements.lock, and the parts of the lock for production and for the build.

python deploy/locked.py sbom       CycloneDX 1.5 as JSON, the same bytes for the same lock
python deploy/locked.py runtime    the lines of requirements.lock that the runner itself needs: deploy/runtime.lock
python deploy/locked.py build      those that make its wheel: deploy/build.lock
"""

import hashlib
import json
import re
import sys
import tomllib
import uuid
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
OURS = "gpuaas-slurm"
_ENTRY = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;]+)(?: ; (?P<marker>[^\\]+?))? \\?")


@dataclass(frozen=True)
class Locked:
    """One entry of the lock: one version, with the hashes of its files."""

    name: str
    version: str
    hashes: tuple[str, ...]
    lines: str

    @property
    def purl(self) -> str:
        return f"pkg:pypi/{self.name}@{self.version}"


def read_lock(text: str) -> list[Locked]:
    """Every entry; ValueError for a line that is neither an entry nor the hash of one."""
    found: list[Locked] = []
    for chunk in re.split(r"\n(?=\S)", text.strip()):
        first, *rest = chunk.split("\n")
        entry = _ENTRY.fullmatch(first if first.endswith("\\") else first + " ")
        hashes = [re.fullmatch(r"    --hash=sha256:([0-9a-f]{64})(?: \\)?", line) for line in rest]
        if entry is None or not hashes or not all(hashes):
            raise ValueError(f"not an entry with its hashes: {first}")
        name = canonicalize_name(entry["name"])
        found.append(Locked(name, entry["version"], tuple(one[1] for one in hashes if one), chunk))
    return found


def needs(name: str, extras: frozenset[str] = frozenset()) -> set[tuple[str, frozenset[str]]]:
    """The requirements of an installed package on this system, from its metadata."""
    needed = set[tuple[str, frozenset[str]]]()
    for text in metadata.requires(name) or []:
        requirement = Requirement(text)
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": one}) for one in extras | {""}):
            needed.add((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return needed


def runtime_names() -> set[str]:
    """All packages that the runner needs, without those of the sandbox and of development."""
    return with_dependencies(needs(OURS))


def build_names() -> set[str]:
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    return with_dependencies({(canonicalize_name(Requirement(text).name), frozenset()) for text in required})


def with_dependencies(packages: set[tuple[str, frozenset[str]]]) -> set[str]:
    """The names of these packages and of everything that they need."""
    todo, seen = set(packages), set[tuple[str, frozenset[str]]]()
    while todo:
        one = todo.pop()
        seen.add(one)
        todo |= needs(*one) - seen
    return {name for name, _ in seen}


def sbom(entries: list[Locked], lock: str) -> dict[str, Any]:
    production = runtime_names()
    installed: dict[str, metadata.Distribution] = {canonicalize_name(one.name): one for one in metadata.distributions()}
    own = metadata.version(OURS)
    refs = {entry.name: entry.purl for entry in entries}
    top = f"pkg:pypi/{OURS}@{own}"
    graph = [{"ref": top, "dependsOn": sorted(refs[name] for name, _ in needs(OURS) if name in refs)}]
    for entry in entries:
        needed = needs(entry.name) if entry.name in installed else set()
        graph.append({"ref": entry.purl, "dependsOn": sorted({refs[name] for name, _ in needed if name in refs})})
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, hashlib.sha256(lock.encode()).hexdigest())}",
        "version": 1,
        "metadata": {"component": {"type": "application", "bom-ref": top, "name": OURS, "version": own, "purl": top}},
        "components": [_component(entry, production, installed.get(entry.name)) for entry in entries],
        "dependencies": graph,
    }


def _component(entry: Locked, production: set[str], installed: metadata.Distribution | None) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "type": "library",
        "bom-ref": entry.purl,
        "name": entry.name,
        "version": entry.version,
        "purl": entry.purl,
        "scope": "required" if entry.name in production else "excluded",
        "hashes": [{"alg": "SHA-256", "content": one} for one in entry.hashes],
    }
    expressions = installed.metadata.get_all("License-Expression") if installed else None
    if expressions:
        shown["licenses"] = [{"expression": expressions[0]}]
    elif installed and (names := _licences(installed)):
        shown["licenses"] = [{"license": {"name": name}} for name in names]
    return shown


def _licences(installed: metadata.Distribution) -> list[str]:
    marked = [text for text in installed.metadata.get_all("Classifier") or [] if text.startswith("License ::")]
    return sorted({text.rpartition(" :: ")[2] for text in marked})


def main(arguments: list[str]) -> int:
    lock = (ROOT / "requirements.lock").read_text()
    entries = read_lock(lock)
    if arguments == ["sbom"]:
        sys.stdout.write(json.dumps(sbom(entries, lock), indent=2) + "\n")
    elif arguments in (["runtime"], ["build"]):
        names = runtime_names() if arguments == ["runtime"] else build_names()
        sys.stdout.write("".join(f"{entry.lines}\n" for entry in entries if entry.name in names))
    else:
        sys.stderr.write(__doc__ or "")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
