"""Versions of Slurm, and which work together. Pure."""

# Which slurmd a slurmctld takes, by series; the roles have the same table.
WINDOW: dict[str, tuple[str, ...]] = {
    "22.05": ("22.05",),
    "23.02": ("22.05", "23.02"),
    "23.11": ("22.05", "23.02", "23.11"),
    "24.05": ("23.02", "23.11", "24.05"),
    "24.11": ("23.02", "23.11", "24.05", "24.11"),
    "25.05": ("23.11", "24.05", "24.11", "25.05"),
}


def series(version: str) -> str:
    """The part of a version that decides what works together: 22.05 of 22.05.8-4+deb12u3."""
    return ".".join(version.split(".")[:2])


def fits_window(worker: str, controller: str) -> bool:
    return series(worker) in WINDOW.get(series(controller), (series(controller),))


def upstream_version(package: str | None) -> str | None:
    """22.05.8 of 22.05.8-4+deb12u3, as the daemon itself reports it."""
    return package.rpartition(":")[2].partition("-")[0] if package else None
