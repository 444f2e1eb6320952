"""What the ticks of one run share: settings, signals, bounds on parallel work, and the summary."""

import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from uuid import UUID

from runner import log
from runner.act.play_queue import Bounds, PlayGate
from runner.act.vault import SPENT
from runner.model.app import App
from runner.model.entitlements import Entitlements
from runner.model.plan import AdapterError
from runner.model.platform import Allocation
from runner.observe.shared_read import SharedRead
from runner.platform.answers import Listing
from runner.settings import Settings
from runner.telemetry.meter import Meter
from runner.telemetry.tracer import Tracer
from runner.translate import MemberEvent

# Called with the name of a host and an event of its member.
OnProgress = Callable[[str, MemberEvent], None]


@dataclass
class Summary:
    """The result of a tick, or of all ticks of a run: for the exit code, the log and --json."""

    instances: int = 0
    plays: int = 0
    writes: int = 0
    failed_operations: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, other: "Summary") -> None:
        self.plays += other.plays
        self.writes += other.writes
        self.failed_operations += other.failed_operations
        self.problems += [one for one in other.problems if one not in self.problems]

    def alarm(self, instance: UUID, *errors: AdapterError) -> None:
        """A token that another party used shows in the exit code, also if there is no operation that could fail."""
        self.problems += [f"instance {instance}: {one.code}: {one.message}" for one in errors if one.code == SPENT]


@dataclass
class Signals:
    """How a person ends a run: `stop` after the current step, `abort` in the middle of a play."""

    stop: threading.Event = field(default_factory=threading.Event)
    abort: threading.Event = field(default_factory=threading.Event)

    def install(self) -> None:
        """Handle SIGINT and SIGTERM: the first one sets `stop`, the second one `abort`."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.stop.is_set():
            self.abort.set()
        self.stop.set()
        message = "stopping plays" if self.abort.is_set() else "ending after this step"
        # The interrupted code may hold the log's lock, so a thread of its own writes the line.
        name = signal.Signals(number).name
        threading.Thread(target=lambda: log.get().warning(message, signal=name), daemon=True).start()


@dataclass
class Shared:
    """One for a run; every tick has it.

    `plays` admits plays within the bounds of the settings. A tick holds one of the `instance_slots` while it uses the
    platform or decides, and gives it back while it waits for anything else. `allocations` and `entitlements`
    are the project's lists.
    """

    settings: Settings
    app: App
    signals: Signals = field(default_factory=Signals)
    on_progress: OnProgress | None = None
    meter: Meter = field(default_factory=Meter)
    tracer: Tracer = field(default_factory=Tracer)
    allocations: SharedRead[Listing[Allocation]] = field(default_factory=SharedRead)
    entitlements: SharedRead[Entitlements] = field(default_factory=SharedRead)

    def __post_init__(self) -> None:
        own = self.settings
        self.plays = PlayGate(Bounds(own.parallel_plays, own.forks, own.memory_mb, own.stall_seconds))
        self.meter.watch_plays(self.plays.counts)
        self.instance_slots = threading.Semaphore(own.parallel_instances)
