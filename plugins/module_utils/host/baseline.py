"""The state of the whole host before its first change, to find what the ledger missed.

The ledger has the changes that the adapter intended. This is an independent check: packages, accounts, units, ports,
processes and paths, recorded before the first change and compared after the last member has left. It reads files only,
since a join waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ..app import ACCOUNTS, DAEMONS, PACKAGE_PREFIXES, PATHS, PORTS

HostState = dict[str, list[str]]


def read_host_state(root: Path = Path("/")) -> HostState:
    """The current state, by kind and name."""
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
    """New things that belong to a cluster, by kind and name."""
    return [
        f"{kind} {name}"
        for kind, names in now.items()
        for name in names
        if name not in set(before.get(kind, ())) and _is_of_cluster(kind, name)
    ]


def _is_of_cluster(kind: str, name: str) -> bool:
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
    """A unit that starts at boot has a symbolic link in one of these directories."""
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
        return []  # the process ended, or the host does not have the file
