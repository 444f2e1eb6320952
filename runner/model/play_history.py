"""Keeps the plays of an operation, and those that were not requested, within the size of their records. Pure."""

from collections.abc import Mapping

from runner.model.limits import RECORD_BYTES, size
from runner.model.records import Detail, RecordError
from runner.model.work_notes import HostRun, PlayHistory, PlayResult, PlayRun

# In the result of an operation beside what the app has there, and in status_detail.
SLACK_BYTES = 64
RESULT_BYTES = 8 * 1024
OWN_BYTES = 2048
# How many plays and how many hosts of each are kept: the first pair that fits.
SHAPES = ((40, 100), (40, 30), (20, 10), (10, 10), (10, 5), (5, 5), (5, 1), (2, 1), (1, 0), (0, 0))
FIELDS = frozenset(PlayHistory.model_fields)


def of_result(result: object) -> PlayHistory:
    """The plays in the result of an operation. What cannot be read is not shown again."""
    found = result if isinstance(result, Mapping) else {}
    try:
        return PlayHistory.read("result", {key: value for key, value in found.items() if key in FIELDS})
    except RecordError:
        return PlayHistory()


def with_run(history: PlayHistory, run: PlayRun) -> PlayHistory:
    """The history with this play: its end takes the place of its start, and a repetition is counted."""
    before = [one for one in history.plays if not _is_same_play(one, run)]
    if before and _repeats(before[-1], run):
        last = before.pop()
        first = {name: last.hosts[name].first_at or host.first_at for name, host in run.hosts.items()}
        hosts = {name: host.model_copy(update={"first_at": first[name]}) for name, host in run.hosts.items()}
        run = run.model_copy(update={"started_at": last.started_at, "runs": last.runs + run.runs, "hosts": hosts})
    return PlayHistory.model_construct(plays=[*before, run], more_plays=history.more_plays)


def fitted(history: PlayHistory, most: int) -> PlayHistory:
    """The history in at most so many bytes: the first play and the last ones, of each the hosts that failed first."""
    for plays, hosts in SHAPES:
        left = max(len(history.plays) - plays, 0)
        kept = [_with_hosts(run, hosts) for run in _without(history.plays, left)]
        cut = PlayHistory.model_construct(plays=kept, more_plays=history.more_plays + left)
        if size(cut.stored()) <= most:
            break
    return cut


def in_result(result: Mapping[str, object], history: PlayHistory) -> Detail:
    """The result of an operation with its plays, cut to what is left of the record."""
    others = {key: value for key, value in result.items() if key not in FIELDS}
    if not history.plays and not history.more_plays:
        return others
    left = min(RECORD_BYTES - size(others) - SLACK_BYTES, RESULT_BYTES)
    return {**others, **fitted(history, max(left, 0)).stored()}


def result_of(hosts: Mapping[str, HostRun]) -> PlayResult:
    failed = sum(host.failed for host in hosts.values())
    reported = sum(host.outcome != "no_report" for host in hosts.values())
    if not reported:
        return "stopped"
    return "ok" if not failed else "failed" if failed == reported else "partly_failed"


def _is_same_play(one: PlayRun, other: PlayRun) -> bool:
    """Whether the second says more about the play that the first says has begun."""
    begun = [(run.playbook, run.started_at, run.attempt) for run in (one, other)]
    return one.ended_at is None and begun[0] == begun[1]


def _repeats(last: PlayRun, run: PlayRun) -> bool:
    """Whether a play came out as the one before: a look of work that waits, or a routine look."""
    if last.result != "ok" or run.result != "ok":
        return False
    if (last.playbook, last.rule, last.why) != (run.playbook, run.rule, run.why):
        return False
    outcomes = [{name: host.outcome for name, host in one.hosts.items()} for one in (last, run)]
    return outcomes[0] == outcomes[1] and last.hosts_count == run.hosts_count


def _with_hosts(run: PlayRun, most: int) -> PlayRun:
    failed_first = sorted(run.hosts.items(), key=lambda item: (not item[1].failed, item[0]))
    return run.model_copy(update={"hosts": dict(failed_first[:most])})


def _without(plays: list[PlayRun], count: int) -> list[PlayRun]:
    """Without so many plays after the first: how the work began and how it ended says the most."""
    return plays[:1] + plays[1 + count :] if count < len(plays) else []
