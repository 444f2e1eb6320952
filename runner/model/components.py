"""The kinds of member that an app has. Pure."""

from dataclasses import dataclass

from runner.model.platform import Member


@dataclass(frozen=True)
class Components:
    """Component keys of an app, as its manifest has them. Each is a group of the inventory."""

    # The one that the others need: it is deployed first, and its member is claimed for itself while it comes up.
    lead: str
    others: tuple[str, ...]
    # Operations that make members of the allocations that they name.
    joining: tuple[str, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return self.lead, *self.others

    def is_lead(self, member: Member) -> bool:
        return member.component_key == self.lead
