"""Errors of the sandbox: this machine cannot run it, or something failed while it ran."""


class FleetError(Exception):
    """Something failed; the message says what and what to do next."""


class CannotRunError(FleetError):
    """This machine lacks something; the message names it and the command that supplies it."""
