"""The two ways a sandbox stops: it cannot run here, or something failed while running."""


class FleetError(Exception):
    """Something failed; the message says what and what to do next."""


class CannotRunError(FleetError):
    """This machine lacks something; the message names it and the command that supplies it."""
