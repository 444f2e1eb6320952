"""Further projects in the tenant of a fleet, each with an enrolment of its own and some of the fleet's hosts."""

from collections.abc import Mapping
from pathlib import Path

from sandbox.fleet.enrolment import Enrolment
from sandbox.fleet.errors import FleetError
from sandbox.fleet.hosts import Host, checked_name


class Projects:
    """The records of the further projects: one file each, in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def all(self) -> Mapping[str, Enrolment]:
        found = {path.stem: Enrolment.load(path) for path in sorted(self._directory.glob("*.json"))}
        return {name: one for name, one in found.items() if one is not None}

    def get(self, name: str) -> Enrolment:
        enrolled = self.all()
        if name not in enrolled:
            raise FleetError(f"no project {name!r} in this sandbox; known: {', '.join(enrolled) or 'none'}")
        return enrolled[name]

    def save(self, name: str, enrolment: Enrolment) -> None:
        enrolment.save(self._directory / f"{checked_name(name)}.json")

    def check_new(self, name: str, hosts: tuple[str, ...]) -> None:
        """Refuse a name that is taken, and hosts of another further project."""
        enrolled = self.all()
        if checked_name(name) in enrolled:
            raise FleetError(f"there is a project {name!r} already; choose another name")
        for other, enrolment in enrolled.items():
            if both := sorted(set(hosts) & set(enrolment.hosts)):
                raise FleetError(f"{', '.join(both)} belongs to project {other!r}; choose other hosts")

    def of_the_first(self, hosts: list[Host]) -> list[Host]:
        """The hosts that no further project has."""
        taken = {name for one in self.all().values() for name in one.hosts}
        return [host for host in hosts if host.name not in taken]
