"""Settings that only Slurm's decisions need. runner/settings.py reads them with the runner's own."""

from pydantic import BaseModel, ConfigDict, Field


class SlurmSettings(BaseModel):
    model_config = ConfigDict(frozen=True)

    conversion_look_seconds: int = Field(
        default=45, ge=5, le=600, description="how long one tick waits for a slurmdbd that converts its database"
    )
    conversion_idle_seconds: int = Field(
        default=900, ge=30, le=86400, description="how long slurmdbd may do nothing before it listens, in an upgrade"
    )
    conversion_limit_seconds: int = Field(
        default=7 * 86400, ge=300, le=90 * 86400, description="how long slurmdbd may convert its database in all"
    )
