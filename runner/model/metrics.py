"""What an app adds to the metrics of the core. Pure."""

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from runner.model.platform import AppInstance
from runner.model.world import World


class AppMetrics(Protocol):
    @property
    def families(self) -> Mapping[str, str]:
        """The app's gauges of a cluster: name and help text. Their only label is `cluster`."""

    @property
    def verbs(self) -> Collection[str]:
        """Every operation that the app carries out."""

    @property
    def playbooks(self) -> Collection[str]:
        """Every playbook that a plan may have."""

    def cluster(self, instance: AppInstance) -> str:
        """The value of the label `cluster`. Two instances may have the same."""

    def members(self, instance: AppInstance) -> Mapping[str, int]:
        """How many members other than the lead there are, by status, as the record of the instance has it."""

    def samples(self, snapshot: Any) -> Mapping[str, float]:
        """Values of the gauges by a snapshot. A gauge whose value is not known is absent."""

    def record_samples(self, world: World) -> Mapping[str, float]:
        """Values of the gauges by the records alone."""
