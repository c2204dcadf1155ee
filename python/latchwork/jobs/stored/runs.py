"""What a node writes down about runs for people and programs outside: those that are going on, and how others went.

Keys:   runs/<worker>      session-bound; JSON, absent while no run has lasted long enough
        outcomes/<node>    JSON, bound to no session; rewritten now and then; see docs/design/jobs.md

Only ``trim_outcomes`` touches the network.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta, Struct
from msgspec import field as stored
from msgspec.structs import replace

from latchwork._base.decoding import Count, Decoder, Positive, Timestamp, encode
from latchwork.jobs.stored import keys
from latchwork.jobs.stored.packed import commit_all
from latchwork.store import Store
from latchwork.types import Check, Delete, Entry

#: Each node names at most so many items of a job; the rest is counted.
MAX_NAMED_ITEMS = 100
_MAX_BYTES = 64 * 1024

#: A node names at most so many failing items of a job; the rest is counted.
MAX_NAMED_ERRORS = 10
#: The text of an error is cut to so many characters.
MAX_ERROR_TEXT = 500
#: Of nodes that have gone so many bytes are kept at most.
_KEPT_BYTES = 2_000_000
#: A moment beyond has no date.
_MAX_TIME_S = 250_000_000_000.0


@dataclass(frozen=True, slots=True)
class ActiveRuns:
    """The runs of one job that are going on at one node and have lasted a second.

    Attributes:
        node: the node's id.
        job: the job's id.
        runs: how many runs.
        items: how many items they work on.
        since_s: when the oldest began, in seconds since the epoch by the node's clock.
        named: item to when its run began, in the same unit: the items of the oldest runs, 100 at most.
    """

    node: str
    job: str
    runs: int
    items: int
    since_s: float
    named: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LiveRun:
    """One run that is going on, and when it began, in seconds since the epoch."""

    job: str
    items: tuple[str, ...]
    since_s: float


def encode_activity(runs: Iterable[LiveRun]) -> bytes:
    """The value of a node's key; with very many jobs those whose runs began last are left out."""
    by_job: dict[str, StoredActivity] = {}
    for run in sorted(runs, key=lambda run: (run.since_s, run.job, run.items)):
        about = by_job.setdefault(run.job, StoredActivity(0, 0, run.since_s))
        about.runs += 1
        about.items += len(run.items)
        for item in run.items[: MAX_NAMED_ITEMS - len(about.named)]:
            about.named.setdefault(item, run.since_s)
    kept: dict[str, StoredActivity] = {}
    left = _MAX_BYTES
    for job, about in by_job.items():
        for each in (about, replace(about, named={})):
            size = len(job) + len(encode(each)) + 8
            if size <= left:
                kept[job], left = each, left - size
                break
    return encode(StoredActivities(kept))


class StoredActivity(Struct):
    """The runs of one job as they are stored; see ``ActiveRuns``."""

    runs: Positive
    items: Positive
    since_s: Timestamp = stored(name="since")
    named: dict[str, Timestamp] = {}


class StoredActivities(Struct):
    """The runs at one node as they are stored, by job."""

    jobs: Mapping[str, StoredActivity]


_ACTIVITIES: Decoder[StoredActivities] = Decoder(StoredActivities, "the runs of a node")


def decode_activity(node: str, value: bytes) -> list[ActiveRuns]:
    """Return the runs in a value; none if it cannot be read."""
    found = _ACTIVITIES.find(value)
    if found is None:
        return []
    return [ActiveRuns(node, job, one.runs, one.items, one.since_s, one.named) for job, one in found.jobs.items()]


@dataclass(frozen=True, slots=True)
class RunError:
    """How a run failed.

    Attributes:
        text: the error: its type and its message, up to 500 characters.
        item: the first item of the run.
        items: how many items the run had.
        node: where it ran.
        at_s: when it ended, in seconds since the epoch by the node's clock.
        consecutive_failures: how many runs of the item have failed there one after the other, this one included.
    """

    text: str
    item: str
    items: int
    node: str
    at_s: float
    consecutive_failures: int = 1


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """How the runs of one job went at one node. Times are in seconds since the epoch by the node's clock.

    Attributes:
        node: the node's id.
        job: the job's id.
        last_start_s: when a run last began; None if none did.
        last_success_s: when a run last ended well; None if none did.
        last_error: how a run last failed; None if none did.
        failing_items: how many items there are whose last run failed.
        consecutive_failures: how many runs of one item have failed one after the other: of the item with most of them.
        failing: the last failures of those items, those with most in a row first; 10 at most.
        next_start_s: when the next run begins; None while that is not known.
    """

    node: str
    job: str
    last_start_s: float | None = None
    last_success_s: float | None = None
    last_error: RunError | None = None
    failing_items: int = 0
    consecutive_failures: int = 0
    failing: tuple[RunError, ...] = ()
    next_start_s: float | None = None

    @property
    def is_failing(self) -> bool:
        """Whether an item's last run failed."""
        return self.consecutive_failures > 0


def encode_outcomes(outcomes: Iterable[JobOutcome]) -> bytes:
    """The value of a node's key; with very many jobs those that fail are kept first, then those that ran last."""

    def order(each: JobOutcome) -> tuple[bool, float, str]:
        return not each.is_failing, -(each.last_start_s or 0.0), each.job

    texts: dict[str, int] = {}
    jobs: dict[str, StoredOutcome] = {}
    left = _MAX_BYTES - 32
    for outcome in sorted(outcomes, key=order):
        for named in (outcome.failing, ()) if left > _MAX_BYTES / 2 else ((),):
            known = dict(texts)
            one = StoredOutcome.of(outcome, named, known)
            if one == StoredOutcome():
                break
            new = list(known)[len(texts) :]
            size = len(encode([outcome.job, one, *new])) + 8
            if size <= left:
                jobs[outcome.job], texts, left = one, known, left - size
                break
    return encode(StoredOutcomes(jobs, list(texts)))


_Time = Annotated[float, Meta(ge=0.0, le=_MAX_TIME_S)]


class StoredError(Struct, frozen=True, array_like=True):
    """An error as it is stored: a JSON array; see ``RunError``. Its text is an index of the texts of all errors."""

    text: Count
    item: str
    items: Count
    at_s: _Time
    consecutive_failures: Count

    @classmethod
    def of(cls, error: RunError, texts: dict[str, int]) -> StoredError:
        """Return an error as it is stored; its text is added to the texts."""
        index = texts.setdefault(error.text, len(texts))
        return cls(index, error.item, error.items, round(error.at_s, 1), error.consecutive_failures)

    def error(self, node: str, texts: Sequence[str]) -> RunError | None:
        """Return the error; None when there is no such text."""
        if self.text >= len(texts):
            return None
        return RunError(
            texts[self.text][:MAX_ERROR_TEXT], self.item, self.items, node, self.at_s, self.consecutive_failures
        )


class StoredOutcome(Struct, frozen=True, omit_defaults=True):
    """How the runs of one job went, as it is stored; see ``JobOutcome``."""

    start: _Time | None = None
    success: _Time | None = None
    error: StoredError | None = None
    items: Count = 0
    row: Count = 0
    failing: tuple[StoredError, ...] = ()
    next: _Time | None = None

    @classmethod
    def of(cls, outcome: JobOutcome, failing: Iterable[RunError], texts: dict[str, int]) -> StoredOutcome:
        """Return an outcome as it is stored; the texts of its errors are added to the texts."""
        last = outcome.last_error
        return cls(
            _rounded(outcome.last_start_s),
            _rounded(outcome.last_success_s),
            None if last is None else StoredError.of(last, texts),
            outcome.failing_items,
            outcome.consecutive_failures,
            tuple(StoredError.of(each, texts) for each in failing),
            _rounded(outcome.next_start_s),
        )

    def outcome(self, node: str, job: str, texts: Sequence[str]) -> JobOutcome:
        """Return the outcome."""
        failing = (each.error(node, texts) for each in self.failing[:MAX_NAMED_ERRORS])
        return JobOutcome(
            node=node,
            job=job,
            last_start_s=self.start,
            last_success_s=self.success,
            last_error=None if self.error is None else self.error.error(node, texts),
            failing_items=self.items,
            consecutive_failures=self.row,
            failing=tuple(each for each in failing if each is not None),
            next_start_s=self.next,
        )


class StoredOutcomes(Struct, frozen=True):
    """How the runs at one node went, by job, and the texts of their errors."""

    jobs: Mapping[str, StoredOutcome]
    errors: Sequence[str]


_OUTCOMES: Decoder[StoredOutcomes] = Decoder(StoredOutcomes, "the outcomes of a node")


def decode_outcomes(node: str, value: bytes) -> list[JobOutcome]:
    """Return the outcomes in a value, sorted by job; none if it cannot be read."""
    found = _OUTCOMES.find(value)
    return [] if found is None else [one.outcome(node, job, found.errors) for job, one in sorted(found.jobs.items())]


def _rounded(moment_s: float | None) -> float | None:
    return None if moment_s is None else round(moment_s, 1)


def trim_outcomes(store: Store, living: Collection[str], keep_s: float, checks: list[Check]) -> int:
    """Delete the records of nodes that have gone which are old, or many; the leader does it now and then.

    Args:
        store: the cluster's store.
        living: the ids of the living nodes, whose records stay.
        keep_s: seconds for which the record of a node that has gone stays after its last run.
        checks: what must hold for each transaction, the leadership's fence.
    Returns:
        How many were deleted.
    """
    gone = [(_last_s(entry), entry) for entry in store.list(keys.OUTCOMES) if entry.key.partition("/")[2] not in living]
    oldest_s, left, old = time.time() - keep_s, _KEPT_BYTES, []
    for last_s, entry in sorted(gone, key=lambda pair: pair[0], reverse=True):
        left -= len(entry.value)
        if last_s < oldest_s or left < 0:
            old.append(Delete(entry.key))
    commit_all(store, checks, old)
    return len(old)


def _last_s(entry: Entry) -> float:
    """When the last run that a record knows began or ended; 0 when it knows none."""
    moments = (
        (each.last_start_s or 0.0, each.last_success_s or 0.0, each.last_error.at_s if each.last_error else 0.0)
        for each in decode_outcomes("", entry.value)
    )
    return max((max(each) for each in moments), default=0.0)
