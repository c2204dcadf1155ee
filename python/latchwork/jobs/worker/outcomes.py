"""Statistics of the runs of one job on this node. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from heapq import nsmallest
from typing import Literal

from latchwork._base.interrupts import mutex
from latchwork._base.text import message
from latchwork.jobs.observer import JobStats
from latchwork.jobs.stored.runs import MAX_ERROR_TEXT, MAX_NAMED_ERRORS, JobOutcome, RunError


@dataclass(frozen=True, slots=True)
class EndedRun:
    """The result of a run.

    Attributes:
        items: Items of the run.
        at_s: End in seconds since the epoch.
        error: Summary of its error; None if it succeeded.
        was_stopped: Whether it was asked to stop before its end. Its result then says nothing about the job.
    """

    items: tuple[str, ...]
    at_s: float
    error: str | None = None
    was_stopped: bool = False


Transition = Literal["started", "failing", "recovered"]
OnTransition = Callable[[str, Transition], None]


class OutcomeTracker:
    """Records the results of one job's runs on this node. Thread-safe.

    A failure is kept for the first item of the failed run, until a run with that item succeeds or the item moves to
    another node. An item that always fails is therefore visible among thousands that do not.

    Args:
        job: ID of the job.
        node: ID of this node.
        on_transition: Called with the job and ``started``, ``failing`` or ``recovered`` when it first runs, begins to
            fail, or recovers. It must not block.
    """

    def __init__(self, job: str, node: str, on_transition: OnTransition = lambda _job, _turn: None) -> None:
        self._now = JobOutcome(node, job)
        self._on_turn = on_transition
        self._mutex = mutex()
        self._failing: dict[str, RunError] = {}  # by the first item of the run
        self._before: dict[str, int] = {}  # consecutive failures before this start, by item
        self._runs = self._failures = self._active = 0

    def record_start(self, at_s: float) -> None:
        """Count a run that starts.

        Args:
            at_s: Start in seconds since the epoch.
        """
        with self._mutex:
            first = self._runs == 0
            self._runs += 1
            self._active += 1
            self._now = replace(self._now, last_start_s=at_s)
        if first:
            self._on_turn(self._now.job, "started")

    def record_end(self, ended: EndedRun) -> None:
        """Count a run that has ended, and remember its error if it failed."""
        with self._mutex:
            self._active -= 1
            self._failures += ended.error is not None
            was_failing = bool(self._failing)
            if not ended.was_stopped:
                self._record_result(ended)
            is_failing = bool(self._failing)
        if was_failing != is_failing:
            self._on_turn(self._now.job, "failing" if is_failing else "recovered")

    def _record_result(self, ended: EndedRun) -> None:
        over = [self._failing.pop(item).consecutive_failures for item in _find_common_items(ended.items, self._failing)]
        before = [self._before.pop(item) for item in _find_common_items(ended.items, self._before)]
        if ended.error is None:
            self._now = replace(self._now, last_success_s=ended.at_s)
            return
        item = ended.items[0] if ended.items else ""
        found = RunError(
            ended.error, item, len(ended.items), self._now.node, ended.at_s, 1 + max([*over, *before], default=0)
        )
        self._failing[item] = found
        self._now = replace(self._now, last_error=found)

    def forget_moved_items(self, assigned: Collection[str]) -> None:
        """Forget the failures of items that this node no longer runs.

        Args:
            assigned: Items that this node should run.
        """
        with self._mutex:
            gone = [item for item in self._failing if item not in assigned]
            for item in gone:
                del self._failing[item]
            turned = bool(gone) and not self._failing
        if turned:
            self._on_turn(self._now.job, "recovered")

    def add_earlier_outcome(self, earlier: JobOutcome) -> None:
        """Add the results that this node had stored for the job before it was restarted."""
        with self._mutex:
            now = self._now
            self._now = replace(
                now,
                last_start_s=now.last_start_s or earlier.last_start_s,
                last_success_s=now.last_success_s or earlier.last_success_s,
                last_error=now.last_error or earlier.last_error,
            )
            for error in earlier.failing:
                known = self._failing.get(error.item)
                if known is not None:
                    self._failing[error.item] = replace(
                        known, consecutive_failures=known.consecutive_failures + error.consecutive_failures
                    )
                elif now.last_success_s is None:
                    self._before[error.item] = error.consecutive_failures

    def get_outcome(self, next_start_s: float | None = None) -> JobOutcome:
        """Return the results of the job's runs so far, in the form in which they are stored.

        Args:
            next_start_s: Next start in seconds since the epoch; None if unknown.
        """
        with self._mutex:
            now, failing = self._now, list(self._failing.values())
        worst = nsmallest(
            MAX_NAMED_ERRORS, failing, key=lambda error: (-error.consecutive_failures, -error.at_s, error.item)
        )
        return replace(
            now,
            failing_items=sum(error.items for error in failing),
            consecutive_failures=max((error.consecutive_failures for error in failing), default=0),
            failing=tuple(worst),
            next_start_s=next_start_s,
        )

    def get_stats(self, items: int, threads: int, next_start_s: float | None = None) -> JobStats:
        """Return statistics of the job's runs so far.

        Args:
            items: Number of items in the current runs.
            threads: Number of threads that run or wait for their time.
            next_start_s: Next start in seconds since the epoch; None if unknown.
        """
        now = self.get_outcome(next_start_s)
        with self._mutex:
            return JobStats(
                self._runs,
                self._failures,
                self._active,
                items,
                threads,
                failing_items=now.failing_items,
                consecutive_failures=now.consecutive_failures,
                last_start_s=now.last_start_s,
                last_success_s=now.last_success_s,
                last_failure_s=None if now.last_error is None else now.last_error.at_s,
                last_error=None if now.last_error is None else now.last_error.text,
                next_start_s=next_start_s,
            )


def _find_common_items(items: Collection[str], other: Collection[str]) -> list[str]:
    """Return the items that are in both collections, without building a set from the larger collection."""
    if len(items) <= len(other):
        return [item for item in items if item in other]
    among = frozenset(items)
    return [item for item in other if item in among]


def summarize_error(error: BaseException) -> str:
    """Return the type and message of an error in one line of at most 500 characters."""
    about = " ".join(message(error).split())
    text = f"{type(error).__name__}: {about}" if about else type(error).__name__
    text = text.encode("utf-8", "replace").decode()  # lone surrogates cannot be stored
    return text if len(text) <= MAX_ERROR_TEXT else f"{text[: MAX_ERROR_TEXT - 6]} (cut)"
