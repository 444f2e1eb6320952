"""Shows something again and again until it has ended, or until a person ends it with Ctrl-C."""

import contextlib
import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.live import Live

from runner.cli import view
from runner.cli.commands import INTERRUPTED, TIME_OVER
from runner.cli.request_state import RequestState
from runner.cli.tables import Columns, Row, Section
from runner.model.errors import Unavailable

SHORTEST, LONGEST, GROWTH = 1.0, 5.0, 1.5
FOLLOWED = Columns(("subject", "status", "phase"), ("detail",))


class Pace:
    """Seconds until the next look: one after a change, growing to five while nothing changes."""

    def __init__(self) -> None:
        self._seconds = SHORTEST

    def after(self, changed: bool) -> float:
        self._seconds = SHORTEST if changed else min(self._seconds * GROWTH, LONGEST)
        return self._seconds


def drawn_on(console: Console) -> Live | None:
    """A table that is redrawn in place, on a terminal. What does not fit its height is shown all the same."""
    return Live(console=console, auto_refresh=False, vertical_overflow="visible") if console.is_terminal else None


class Progress(view.LiveTable):
    """The rows of a request: a live table on a terminal, else a line for each change."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begin = time.monotonic()
        self._rows: dict[str, Row] = {}
        super().__init__(drawn_on(console))

    def show(self, rows: Sequence[Row]) -> bool:
        """Returns whether something changed."""
        changed = [row for row in rows if self._rows.get(row["subject"]) != row]
        self._rows = {row["subject"]: row for row in rows}
        if self._live:
            self._live.update(view.redrawn([Section(FOLLOWED, rows, "")], self._console), refresh=True)
        else:
            for row in changed:
                shown = " ".join(
                    f"{row[name] or '':<{width}}" for name, width in (("subject", 24), ("status", 12), ("phase", 12))
                )
                self.say(f"{shown} {row['detail'] or ''}")
        return bool(changed)

    def say(self, text: str) -> None:
        self._console.print(view.plain(f"{time.monotonic() - self._begin:6.1f} s  {text}".rstrip()))


def follow(
    look: Callable[[], RequestState],
    console: Console,
    timeout: float | None,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[int, RequestState | None]:
    """Look until there is an exit code. Nothing is cancelled when the time is over, or by Ctrl-C."""
    begin, pace = clock(), Pace()
    seen: RequestState | None = None
    problem = ""
    try:
        with Progress(console) as progress:
            while True:
                changed = False
                try:
                    seen = look()
                except Unavailable as error:  # what is followed goes on, so this is looked at again
                    if str(error) != problem:
                        progress.say(str(error))
                    problem = str(error)
                else:
                    changed, problem = progress.show(seen.rows), ""
                    if seen.code is not None:
                        return seen.code, seen
                left = None if timeout is None else begin + timeout - clock()
                if left is not None and left <= 0:
                    return TIME_OVER, seen
                pause = pace.after(changed)
                sleep(pause if left is None else min(pause, left))
    except KeyboardInterrupt:
        return INTERRUPTED, seen


def watch(read: Callable[[], Sequence[Section]], *, wide: bool, sleep: Callable[[float], None] = time.sleep) -> None:
    """Tables until Ctrl-C: redrawn on a terminal, else printed when something in them changed."""
    pace = Pace()
    drawn_last: Sequence[Section] | None = None
    drawn = drawn_on(view.out)
    with contextlib.suppress(KeyboardInterrupt), drawn or contextlib.nullcontext():
        while True:
            changed = False
            try:
                found = read()
            except Unavailable as error:  # it may answer again
                view.err.print(view.plain(str(error)))
            else:
                changed, drawn_last = found != drawn_last, found
                if drawn:
                    drawn.update(view.redrawn(found, view.out, wide=wide), refresh=True)
                elif changed:
                    view.show(found, wide=wide)
            sleep(pace.after(changed))
