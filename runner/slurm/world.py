"""The world of a Slurm instance."""

from typing import TypeAlias

from runner.model.world import World as AnyWorld
from runner.slurm.settings import SlurmSettings
from runner.slurm.snapshot import Snapshot

World: TypeAlias = AnyWorld[Snapshot, SlurmSettings]
