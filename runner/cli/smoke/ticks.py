"""Ticks of the run's own instance, beside a runner that is deployed; or none, where that one has to do the work."""

from collections.abc import Callable
from uuid import UUID

from runner.loop import run as loop
from runner.loop.process_lock import AnotherRunner, ProcessLock
from runner.loop.shared import Signals
from runner.model.platform import AppInstance
from runner.platform.client import Client
from runner.settings import Settings
from runner.slurm.app import SLURM
from runner.translate import MemberEvent

Say = Callable[[str], None]
NO_ETAGS = "the platform sends no ETags, so nothing keeps two runners apart"


class Ticks:
    """`left_to_others` says why this process does no ticks; None: it does them."""

    def __init__(
        self, client: Client, settings: Settings, lock: ProcessLock, say: Say, *, only_runner: bool, none: bool
    ) -> None:
        self.signals = Signals()
        self.left_to_others = "--leave-to-runner" if none else None
        self._client = client
        self._settings = settings
        self._lock = lock
        self._say = say
        self._only_runner = only_runner
        self._shown: set[tuple[str, str]] = set()
        self.problems: list[str] = []

    def listen(self) -> None:
        """From here on the first SIGINT or SIGTERM ends the step at hand, and the second one its play."""
        self.signals = Signals()
        self.signals.install()

    def begin_step(self) -> None:
        """Phases that were shown in an earlier step are shown again."""
        self._shown.clear()

    def beside(self, instance: AppInstance) -> None:
        """Leave the work to the deployed runner if two runners cannot be kept apart."""
        if instance.etag is None and not self._only_runner:
            self._leave(f"{NO_ETAGS}. If there is no other one, pass --only-runner")

    def tick(self, instance_id: UUID) -> None:
        """One run on the instance. KeyboardInterrupt, if a signal has come."""
        self.stop_if_asked()
        if self.left_to_others is None:
            try:
                done = loop.run(
                    self._client,
                    self._settings,
                    SLURM,
                    only=instance_id,
                    signals=self.signals,
                    on_progress=self._show,
                    process_lock=self._lock,
                )
            except AnotherRunner as error:
                self._leave(str(error))
            else:
                for problem in [one for one in done.problems if one not in self.problems]:
                    self.problems.append(problem)
                    self._say(problem)
        self.stop_if_asked()

    def pause(self, seconds: float) -> None:
        self.signals.stop.wait(seconds)

    def stop_if_asked(self) -> None:
        if self.signals.stop.is_set():
            raise KeyboardInterrupt

    def _leave(self, why: str) -> None:
        self.left_to_others = why
        self._say(f"the work is left to the runner that is deployed: {why}")

    def _show(self, name: str, event: MemberEvent) -> None:
        if event.error:
            self._say(f"{name}: {event.error.code}: {event.error.message}")
        elif event.phase and (name, event.phase) not in self._shown:
            self._shown.add((name, event.phase))
            self._say(f"  {name}: {event.phase}")
