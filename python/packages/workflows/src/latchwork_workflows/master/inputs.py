"""What a master of a shard reads from the store: who runs its attempts, how they ended, and which are orphans."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from latchwork.errors import BadRecord, InvalidKey
from latchwork.spi import counted
from latchwork.types import Entry
from latchwork_workflows.db.attempts import AttemptRow
from latchwork_workflows.exchange import Result, Running
from latchwork_workflows.keys import attempt_of, is_attempt, x_of
from latchwork_workflows.master.dispatcher import Dispatcher
from latchwork_workflows.master.state_cache import StateCache, SubmittedAttempt
from latchwork_workflows.state import Claimed, Ended, Event, Lost, Outcome
from latchwork_workflows.state.records import IN_HANDS

#: Seconds for which claims alone may wait.
CLAIMS_S = 0.05
#: So many results are taken in at once.
MOST_RESULTS = 200


@dataclass(frozen=True, slots=True)
class Runs:
    """Who runs one attempt, as its key says.

    Attributes:
        claim: the token of the claim.
        value: what the worker wrote.
    """

    claim: int
    value: bytes

    @property
    def running(self) -> Running:
        """What the worker said; it is read once for each claim, and seen at every look."""
        return Running.of(self.value)


@dataclass(slots=True)
class Seen:
    """What a look at the store has found.

    Attributes:
        results: by attempt, the first so many.
        running: by attempt.
        poke: the token of the last poke; 0 if there was none.
        strange: keys that nobody of ours wrote.
        again: results that were taken in before, and are shown still, with the tokens of their keys.
        tokens: of the keys of results.
    """

    results: dict[str, Result] = field(default_factory=dict)
    running: dict[str, Runs] = field(default_factory=dict)
    poke: int = 0
    strange: list[str] = field(default_factory=list)
    again: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)

    @property
    def is_full(self) -> bool:
        """Whether there may be more results."""
        return len(self.results) == MOST_RESULTS


def seen(entries: Iterable[Entry], prefix: str, done: Mapping[str, int]) -> Seen:
    """What stands below the prefix of a shard.

    Args:
        entries: of the mirror.
        prefix: of the shard.
        done: results that were taken in, with the tokens of their keys; they are deleted, and a mirror may be late.
    """
    found = Seen()
    for entry in entries:
        kind, _, x = entry.key[len(prefix) + 1 :].partition("/")
        if kind == "poke":
            found.poke = entry.token
            continue
        try:
            attempt_of(x)
        except InvalidKey:
            found.strange.append(entry.key)
            continue
        if kind == "running":
            found.running[x] = Runs(entry.created, entry.value)
        elif kind == "results" and done.get(x) == entry.created:
            found.again[x] = entry.created
        elif kind == "results" and not found.is_full:
            found.results[x] = _result(entry)
            found.tokens[x] = entry.created
    return found


class Looking:
    """Looks at a shard's part of the store, without what was taken in already. For one thread.

    Args:
        prefix: of the shard.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._done: dict[str, int] = {}
        self._tokens: dict[str, int] = {}

    def look(self, entries: Iterable[Entry]) -> Seen:
        """What is there now."""
        found = seen(entries, self._prefix, self._done)
        self._done, self._tokens = found.again, found.tokens
        return found

    def took(self, ended: Iterable[str]) -> None:
        """The results of these, of the last look, are in the database."""
        self._done.update((x, self._tokens[x]) for x in ended if x in self._tokens)

    def forget(self) -> None:
        """Nothing in memory counts any more."""
        self._done, self._tokens = {}, {}


def _result(entry: Entry) -> Result:
    try:
        return Result.of(entry.value)
    except BadRecord as error:
        why = f"its result cannot be read: {error}"
        return Result(Outcome.FATAL, entry.created, "?", "?", 0.0, 0.0, error=why[:1000])


def missing(cache: StateCache, found: Seen) -> list[SubmittedAttempt]:
    """Attempts that ran, of which nothing is to be seen: their workers may be dead. To be looked at one by one."""
    if len(cache.running) == len(found.running) and cache.running.keys() == found.running.keys():
        return []
    return [each for x, each in cache.running.items() if x not in found.running and x not in found.results]


def replaced(cache: StateCache, found: Seen, claims: Mapping[str, int]) -> list[SubmittedAttempt]:
    """Attempts that ran under one claim, and run under another now: between two looks the first one was lost."""
    seen_ = found.running
    return [each for x, each in cache.running.items() if x in seen_ and claims.get(x, 0) not in {0, seen_[x].claim}]


@dataclass(slots=True)
class Told:
    """What has happened.

    Attributes:
        events: by instance, in order.
        claimed: attempts that a worker has taken now, with their claims.
        ended: attempts that have ended; of instances that are over, too.
        lost: attempts whose claims are over without a result.
    """

    events: dict[int, list[Event]] = field(default_factory=dict)
    claimed: list[tuple[SubmittedAttempt, Runs]] = field(default_factory=list)
    ended: list[tuple[str, Result]] = field(default_factory=list)
    lost: list[SubmittedAttempt] = field(default_factory=list)

    def tell(self, attempt: SubmittedAttempt, event: Event) -> None:
        """An event more."""
        self.events.setdefault(attempt.instance, []).append(event)


class Debounce:
    """Claims that nothing else came with are written a moment later: nobody waits for their rows.

    The result of a short task comes meanwhile, and one transaction has both. For one thread.
    """

    def __init__(self) -> None:
        self._since: float | None = None

    def lasts(self, what: Told, now: float) -> bool:
        """Whether all of this may wait; the moment counts from the first claim."""
        count = sum(map(len, what.events.values()))
        if what.ended or what.lost or not what.claimed or count != len(what.claimed):
            return False
        if self._since is None:
            self._since = now
        return now - self._since < CLAIMS_S

    def left_s(self, now: float) -> float:
        """Seconds for which they may wait still; infinite if there are none."""
        return math.inf if self._since is None else self._since + CLAIMS_S - now

    def end(self) -> None:
        """They are written."""
        self._since = None


def told(cache: StateCache, found: Seen, lost: Mapping[SubmittedAttempt, bool], claims: Mapping[str, int]) -> Told:
    """What has happened since the last look.

    Args:
        cache: what is known.
        found: what is there.
        lost: attempts whose claims are over without a result, and whether their workers died.
        claims: by attempt, the claim that is known of it.
    """
    result = Told()
    for gone, died in lost.items():
        result.tell(gone, _lost(cache, gone, died=died))
        result.lost.append(gone)
    for x, runs in found.running.items():
        attempt = cache.find(*attempt_of(x))
        if attempt is None or claims.get(x) == runs.claim or cache.state_of(attempt) not in IN_HANDS:
            continue
        result.tell(attempt, Claimed(attempt.name, attempt.n, _run(cache, attempt)))
        result.claimed.append((attempt, runs))
    for x, each in found.results.items():
        of = cache.find(*attempt_of(x))
        result.ended.append((x, each))
        if of is not None:
            took_s = max(0.0, each.ended_at - each.started_at)
            result.tell(of, Ended(of.name, of.n, each.outcome, _run(cache, of), took_s))
    return result


def _lost(cache: StateCache, attempt: SubmittedAttempt, *, died: bool) -> Lost:
    return Lost(attempt.name, attempt.n, _run(cache, attempt), died=died)


def _run(cache: StateCache, attempt: SubmittedAttempt) -> int:
    return cache.instances[attempt.instance].known.run


def in_mind(cache: StateCache, told: Told) -> tuple[dict[int, tuple[int, int]], set[int]]:
    """Instance and workflow of what was told, by the row of the task; and the rows that are not in the cache."""
    rows = {attempt_of(x) for x, _ in told.ended} | {(each.task, each.n) for each, _ in told.claimed}
    found = {row: cache.find(row, n) for row, n in rows}
    known = {row: (each.instance, cache.instances[each.instance].code) for row, each in found.items() if each}
    return known, found.keys() - known.keys()


def row_of(task: int, n: int, result: Result) -> AttemptRow:
    """The history of an attempt that has ended: how, as its worker told."""
    worker, host, ref, error = (
        each.replace("\0", "\ufffd") for each in (result.worker, result.host, result.log_ref, result.error)
    )
    return AttemptRow(
        task,
        n,
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


def in_hands(cache: StateCache) -> set[str]:
    """The attempts that a shard has with workers, or queued for them."""
    return {
        x_of(stored.ids[name], task.n)
        for stored in cache.instances.values()
        for name, task in stored.known.tasks.items()
        if task.in_hands
    }


def repair(dispatcher: Dispatcher, cache: StateCache, shard: int, is_ours: Callable[[Iterable[int]], set[int]]) -> None:
    """Drop what nobody waits for.

    Args:
        dispatcher: of the shard, under its fence.
        cache: read just now, with all results taken in.
        shard: which.
        is_ours: which of these tasks are of this shard, or of none any more if the shard is to care for those.
    """
    marked = dispatcher.marked()
    items = dispatcher.items()
    wanted = in_hands(cache)
    orphans = {x: place for x, place in items.items() if place.item.shard == shard and x not in wanted}
    back = dispatcher.take_back(orphans)
    ended = dispatcher.cancel({x: place for x, place in orphans.items() if x not in back})
    left = {x for x in marked if x not in items and x not in wanted and is_attempt(x)}
    ours = is_ours({attempt_of(x)[0] for x in left})
    gone = sorted(x for x in left if attempt_of(x)[0] in ours)
    dispatcher.unmark(gone)
    if orphans or gone:
        what = f"{counted(len(orphans), 'item')} and {counted(len(gone), 'mark')} that nobody waits for"
        _log.warning("shard %d: dropped %s (%d are ended by their workers)", shard, what, len(ended))
