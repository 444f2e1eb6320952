"""Turns answers that differ from the contract into gaps, and logs each once."""

from runner import log
from runner.model.gaps import Gap

GAP_LINE = "gap in the platform's contract"


def log_gap(gap: Gap) -> None:
    """One line for a gap that this process meets for the first time."""
    log.get().warning(GAP_LINE, **{name: value for name, value in gap.as_row().items() if value is not None})
