"""One tick of one instance: with its ids on every log line, and with its errors reported."""

from collections.abc import Callable

from runner import context, log
from runner.act.plays import PlayError
from runner.loop.shared import Shared, Summary
from runner.loop.tick import Tick
from runner.model import cause
from runner.model.errors import Conflict, PlatformError
from runner.model.plan import stamp
from runner.model.platform import AppInstance
from runner.platform.client import Client
from runner.report.leases import LostLease


def tick_instance(
    client: Client,
    shared: Shared,
    instance: AppInstance,
    *,
    read_at: float,
    on_work_found: Callable[[], None],
    only_requested: bool = False,
) -> Summary:
    """One tick of one instance, whose record was read at `read_at`.

    Calls `on_work_found` once work is requested of the instance. With `only_requested` an instance without requested
    work is left alone.
    """
    summary = Summary()
    tick_id = f"{shared.settings.runner_id}/{stamp(client.now())}"
    with (
        context.for_instance(instance),
        log.with_regions(),
        context.bound(cause.of_tick(instance, tick_id)),
        shared.instance_slots,
        shared.tracer.ticking(instance, tick_id) as traced,
    ):
        try:
            with client.clone() as own:
                tick = Tick(own, shared, instance, summary, read_at, on_work_found, tick_id)
                if tick.has_requested_work or not only_requested:
                    tick.run()
        except Exception as error:
            with context.bound_to(error):
                _report_error(error, instance, summary)
            traced.failed = bool(summary.problems)
    return summary


def _report_error(error: Exception, instance: AppInstance, summary: Summary) -> None:
    """A bug that one instance reveals must not stop the others; the log and the exit code show it."""
    lost = isinstance(error, Conflict) and (error.status == 412 or error.code == "lease_held")
    if lost or isinstance(error, LostLease):
        log.get().warning("left to another runner", problem=str(error), **log.error_code(error))
    elif isinstance(error, PlatformError | PlayError):
        log.get().error("tick ended early", error_code=error.code, problem=str(error))
        summary.problems.append(f"instance {instance.id}: {error}")
    else:
        log.get().exception("tick failed", error_code="tick_failed")
        summary.problems.append(f"instance {instance.id}: {type(error).__name__}: {error}")
