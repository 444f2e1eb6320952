"""What a host had before its first change, and what of ours is there now that was not.

The ledger says what we did on purpose. This is the second opinion: a small picture of the whole host, taken before the
first change and compared when the last member has left, so that what nobody noted shows up all the same. Read from
files alone, since it is taken on the way to a join.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ..app import ACCOUNTS, DAEMONS, PACKAGE_PREFIXES, PATHS, PORTS

Picture = dict[str, list[str]]


def take(root: Path = Path("/")) -> Picture:
    """The host as it is now, by name."""
    return {
        "package": sorted(_packages(root)),
        "account": sorted(_first_fields(root / "etc/passwd")),
        "group": sorted(_first_fields(root / "etc/group")),
        "unit": sorted(_enabled_units(root)),
        "port": sorted(_listening_ports(root)),
        "process": sorted(_daemons(root)),
        "path": [path for path in PATHS if (root / path.lstrip("/")).exists()],
    }


def left_behind(before: Mapping[str, Iterable[str]], now: Mapping[str, Iterable[str]]) -> list[str]:
    """What is there now, was not before, and belongs to a cluster: residue, by kind and name."""
    return [
        f"{kind} {name}"
        for kind, names in now.items()
        for name in names
        if name not in set(before.get(kind, ())) and _is_a_clusters(kind, name)
    ]


def _is_a_clusters(kind: str, name: str) -> bool:
    if kind in ("package", "unit"):
        return name.startswith(PACKAGE_PREFIXES)
    if kind in ("account", "group"):
        return name in ACCOUNTS
    return name in PORTS if kind == "port" else kind in ("process", "path")


def _packages(root: Path) -> Iterator[str]:
    name = ""
    for line in _lines(root / "var/lib/dpkg/status"):
        if line.startswith("Package: "):
            name = line.removeprefix("Package: ").strip()
        elif line.startswith("Status: ") and not line.rstrip().endswith("not-installed"):
            yield name


def _first_fields(path: Path) -> Iterator[str]:
    return (line.partition(":")[0] for line in _lines(path) if ":" in line)


def _enabled_units(root: Path) -> set[str]:
    """A unit that starts at boot is a link somewhere below."""
    wanted = root / "etc/systemd/system"
    return {link.name for kind in ("wants", "requires") for link in wanted.glob(f"*.{kind}/*") if link.is_symlink()}


def _listening_ports(root: Path) -> set[str]:
    rows = [row.split() for name in ("tcp", "tcp6") for row in _lines(root / "proc/net" / name)]
    return {str(int(row[1].rpartition(":")[2], 16)) for row in rows if len(row) > 3 and row[3] == "0A"}


def _daemons(root: Path) -> set[str]:
    return {name for path in (root / "proc").glob("[0-9]*/comm") for name in _lines(path) if name in DAEMONS}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []  # a process that ended, or a file this host does not have
