"""What a changed function calls in its place: the original, or the change that is being tested."""

from collections.abc import Callable
from functools import wraps
from typing import Any

Function = Callable[..., Any]
# The file and the name of the change that is active; without one everything is as it was.
active: tuple[str, str] | None = None
# File and function of every original that was called since a test began.
reached: set[tuple[str, str]] = set()


def switch(file: str, mutants: dict[str, Function], is_classmethod: bool = False) -> Callable[[Function], Function]:
    """For the decorator that mutmut writes. The dictionary is filled after the function is decorated."""

    def decorate(function: Function) -> Function:
        @wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            original = mutants["_mutmut_orig"]
            reached.add((file, original.__name__.partition("__mutmut_")[0]))
            chosen = mutants.get(active[1], original) if active and active[0] == file else original
            if is_classmethod:
                return getattr(arguments[0], chosen.__name__)(*arguments[1:], **named)
            return chosen(*arguments, **named)

        return call

    return decorate
