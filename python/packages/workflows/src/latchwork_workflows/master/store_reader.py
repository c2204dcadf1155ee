"""Reads what workers report in the store: claims and results of attempts, and entries that no run needs any more."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from latchwork.errors import BadRecord, InvalidKey
from latchwork.spi import counted
from latchwork.types import Entry
from latchwork_workflows.db.attempts import AttemptRow
from latchwork_workflows.keys import format_attempt_key, is_attempt_key, parse_attempt_key
from latchwork_workflows.master.dispatcher import Dispatcher
from latchwork_workflows.master.state_cache import StateCache, SubmittedAttempt
from latchwork_workflows.messages import AttemptResult, RunningRecord
from latchwork_workflows.state import Claimed, Ended, Event, Lost, Outcome
from latchwork_workflows.state.records import AT_WORKERS

#: Seconds by which claims without other events may be delayed.
CLAIMS_S = 0.05
#: Maximum number of results that are processed at once.
MAX_RESULTS = 200


@dataclass(frozen=True, slots=True)
class RunningClaim:
    """The claim of an attempt, as its key shows it.

    Attributes:
        claim: Token of the claim.
        value: Record of the worker.
    """

    claim: int
    value: bytes

    @property
    def worker_record(self) -> RunningRecord:
        """The record that the worker stored with the claim: its name, its host and the time of the claim.

        It is parsed only when needed, because each read of the store returns the unchanged value again.
        """
        return RunningRecord.from_bytes(self.value)


@dataclass(slots=True)
class StoreSnapshot:
    """Result of one read of the store.

    Attributes:
        results: By attempt. At most ``MAX_RESULTS``.
        running: By attempt.
        poke: Token of the last poke. 0 if there was none.
        unknown_keys: Keys that were not written by Latchwork.
        processed: Results that were processed before and are still visible, with the tokens of their keys.
        tokens: Tokens of the keys of results.
    """

    results: dict[str, AttemptResult] = field(default_factory=dict)
    running: dict[str, RunningClaim] = field(default_factory=dict)
    poke: int = 0
    unknown_keys: list[str] = field(default_factory=list)
    processed: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)

    @property
    def is_full(self) -> bool:
        """Whether the store may contain more results than this snapshot."""
        return len(self.results) == MAX_RESULTS


def parse_snapshot(entries: Iterable[Entry], prefix: str, processed: Mapping[str, int]) -> StoreSnapshot:
    """Parse the store entries of a shard into claims and results of attempts.

    Args:
        entries: The entries below the prefix.
        prefix: Key prefix of the shard.
        processed: Results that were processed already, with the tokens of their keys. They are deleted from the store,
            but a cached copy may still contain them.
    """
    found = StoreSnapshot()
    for entry in entries:
        kind, _, x = entry.key[len(prefix) + 1 :].partition("/")
        if kind == "poke":
            found.poke = entry.token
            continue
        try:
            parse_attempt_key(x)
        except InvalidKey:
            found.unknown_keys.append(entry.key)
            continue
        if kind == "running":
            found.running[x] = RunningClaim(entry.created, entry.value)
        elif kind == "results" and processed.get(x) == entry.created:
            found.processed[x] = entry.created
        elif kind == "results" and not found.is_full:
            found.results[x] = _result(entry)
            found.tokens[x] = entry.created
    return found


class StoreReader:
    """Reads the claims and results of a shard, and skips results that were processed before. Not thread-safe.

    Args:
        prefix: Prefix of the shard.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._done: dict[str, int] = {}
        self._tokens: dict[str, int] = {}

    def read(self, entries: Iterable[Entry]) -> StoreSnapshot:
        """Parse the current entries of the shard, without the results that were processed before."""
        found = parse_snapshot(entries, self._prefix, self._done)
        self._done, self._tokens = found.processed, found.tokens
        return found

    def mark_processed(self, ended: Iterable[str]) -> None:
        """Record that the results of these attempts are in the database, so that ``read`` skips them."""
        self._done.update((x, self._tokens[x]) for x in ended if x in self._tokens)

    def reset(self) -> None:
        """Forget which results were processed."""
        self._done, self._tokens = {}, {}


def _result(entry: Entry) -> AttemptResult:
    try:
        return AttemptResult.from_bytes(entry.value)
    except BadRecord as error:
        why = f"its result cannot be read: {error}"
        return AttemptResult(Outcome.FATAL, entry.created, "?", "?", 0.0, 0.0, error=why[:1000])


def find_missing_attempts(cache: StateCache, snapshot: StoreSnapshot) -> list[SubmittedAttempt]:
    """Return the attempts that run according to the database, but have neither a claim nor a result in the store.

    Their workers may have died. The caller checks each of them.
    """
    if len(cache.running) == len(snapshot.running) and cache.running.keys() == snapshot.running.keys():
        return []
    return [each for x, each in cache.running.items() if x not in snapshot.running and x not in snapshot.results]


def find_reclaimed_attempts(
    cache: StateCache, snapshot: StoreSnapshot, claims: Mapping[str, int]
) -> list[SubmittedAttempt]:
    """Return the running attempts whose claim has changed since the last read. Their first claim was lost in between.

    Args:
        cache: State of the runs.
        snapshot: Content of the store.
        claims: Tokens of the claims at the last read, by attempt key.
    """
    seen_ = snapshot.running
    return [each for x, each in cache.running.items() if x in seen_ and claims.get(x, 0) not in {0, seen_[x].claim}]


@dataclass(slots=True)
class ReportedEvents:
    """Events since the last read.

    Attributes:
        events: By run, in order.
        claimed: Newly claimed attempts, with their claims.
        ended: Ended attempts, also of ended runs.
        lost: Attempts whose claims ended without a result.
    """

    events: dict[int, list[Event]] = field(default_factory=dict)
    claimed: list[tuple[SubmittedAttempt, RunningClaim]] = field(default_factory=list)
    ended: list[tuple[str, AttemptResult]] = field(default_factory=list)
    lost: list[SubmittedAttempt] = field(default_factory=list)

    def add(self, attempt: SubmittedAttempt, event: Event) -> None:
        """Add an event of an attempt."""
        self.events.setdefault(attempt.run_id, []).append(event)


class ClaimWriteDelay:
    """Delays the transaction that writes new claims if there is nothing else to write. Not thread-safe.

    The result of a short task arrives in the meantime, so that one transaction writes both.
    """

    def __init__(self) -> None:
        self._since: float | None = None

    def may_delay_write(self, reported: ReportedEvents, now: float) -> bool:
        """Return whether writing these events may be postponed: they are claims only, and the first one is recent.

        Args:
            reported: All events that workers have reported and that are not yet written.
            now: Seconds since the epoch.
        """
        count = sum(map(len, reported.events.values()))
        if reported.ended or reported.lost or not reported.claimed or count != len(reported.claimed):
            return False
        if self._since is None:
            self._since = now
        return now - self._since < CLAIMS_S

    def remaining_s(self, now: float) -> float:
        """Return the seconds for which writing the claims may still be postponed. Infinite if none is postponed."""
        return math.inf if self._since is None else self._since + CLAIMS_S - now

    def reset(self) -> None:
        """End the delay. Call this after the postponed claims were written."""
        self._since = None


def collect_events(
    cache: StateCache, snapshot: StoreSnapshot, lost: Mapping[SubmittedAttempt, bool], claims: Mapping[str, int]
) -> ReportedEvents:
    """Return the claims, losses and results of attempts that are in the store and not yet known to the runs in memory.

    Args:
        cache: State of the runs.
        snapshot: Content of the store.
        lost: Attempts whose claims ended without a result. The value is True if the worker died.
        claims: Tokens of the known claims, by attempt key.
    """
    result = ReportedEvents()
    for gone, died in lost.items():
        result.add(gone, _lost(cache, gone, died=died))
        result.lost.append(gone)
    for x, runs in snapshot.running.items():
        attempt = cache.find_attempt(*parse_attempt_key(x))
        if attempt is None or claims.get(x) == runs.claim or cache.get_task_state(attempt) not in AT_WORKERS:
            continue
        result.add(attempt, Claimed(attempt.name, attempt.n, _round(cache, attempt)))
        result.claimed.append((attempt, runs))
    for x, each in snapshot.results.items():
        of = cache.find_attempt(*parse_attempt_key(x))
        result.ended.append((x, each))
        if of is not None:
            took_s = max(0.0, each.ended_at - each.started_at)
            result.add(of, Ended(of.name, of.n, each.outcome, _round(cache, of), took_s))
    return result


def _lost(cache: StateCache, attempt: SubmittedAttempt, *, died: bool) -> Lost:
    return Lost(attempt.name, attempt.n, _round(cache, attempt), died=died)


def _round(cache: StateCache, attempt: SubmittedAttempt) -> int:
    return cache.runs[attempt.run_id].known.round


def find_reported_tasks(cache: StateCache, reported: ReportedEvents) -> tuple[dict[int, tuple[int, int]], set[int]]:
    """Return the run and the workflow of each reported task, by task ID, and the IDs of the tasks that are unknown."""
    rows = {parse_attempt_key(x) for x, _ in reported.ended} | {(each.task, each.n) for each, _ in reported.claimed}
    found = {row: cache.find_attempt(row, n) for row, n in rows}
    known = {row: (each.run_id, cache.runs[each.run_id].code) for row, each in found.items() if each}
    return known, found.keys() - known.keys()


def build_attempt_row(task: int, attempt_number: int, result: AttemptResult) -> AttemptRow:
    """Build the database row of an attempt that has ended.

    Args:
        task: ID of the task.
        attempt_number: Number of the attempt.
        result: The result that the worker reported.
    """
    worker, host, ref, error = (
        each.replace("\0", "\ufffd") for each in (result.worker, result.host, result.log_ref, result.error)
    )
    return AttemptRow(
        task,
        attempt_number,
        result.claim,
        worker,
        host,
        result.started_at,
        ref,
        result.ended_at,
        result.outcome.value,
        result.pid,
        result.exit_code,
        error,
    )


_log = logging.getLogger(__name__)


def list_attempts_at_workers(cache: StateCache) -> set[str]:
    """Return the keys of a shard's attempts that are queued for workers or claimed by one."""
    return {
        format_attempt_key(stored.ids[name], task.n)
        for stored in cache.runs.values()
        for name, task in stored.known.tasks.items()
        if task.is_at_worker
    }


def drop_orphans(
    dispatcher: Dispatcher, cache: StateCache, shard: int, own_tasks: Callable[[Iterable[int]], set[int]]
) -> None:
    """Delete queue items, cancel requests and task specs of a shard that belong to no active run.

    Args:
        dispatcher: Dispatcher of the shard, under the fence of this owner.
        cache: State of the runs, just read, with all results processed.
        shard: ID of the shard.
        own_tasks: Returns which of the given tasks belong to this shard. For the first shard, also deleted tasks.
    """
    marked = dispatcher.list_attempts_with_extra_keys()
    items = dispatcher.list_items()
    wanted = list_attempts_at_workers(cache)
    orphans = {x: place for x, place in items.items() if place.item.shard == shard and x not in wanted}
    back = dispatcher.withdraw_items(orphans)
    ended = dispatcher.request_cancels({x: place for x, place in orphans.items() if x not in back})
    left = {x for x in marked if x not in items and x not in wanted and is_attempt_key(x)}
    ours = own_tasks({parse_attempt_key(x)[0] for x in left})
    gone = sorted(x for x in left if parse_attempt_key(x)[0] in ours)
    dispatcher.delete_extra_keys(gone)
    if orphans or gone:
        what = f"{counted(len(orphans), 'item')} and {counted(len(gone), 'mark')} without a run that needs them"
        _log.warning("shard %d: dropped %s (%d are ended by their workers)", shard, what, len(ended))
