"""Records of active runs and of the results of runs, written by nodes for observers outside the cluster.

Keys:   runs/<worker>      session-bound; JSON, absent while no run has lasted long enough
        outcomes/<node>    JSON, bound to no session; rewritten from time to time

Only ``delete_old_outcomes`` does I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta, Struct
from msgspec import field as stored_field
from msgspec.structs import replace

from latchwork._base.decoding import Count, Decoder, Positive, Timestamp, encode
from latchwork.jobs.stored import keys
from latchwork.jobs.stored.chunked_set import commit_all
from latchwork.store import Store
from latchwork.types import Check, Delete, Entry

#: Maximum number of active items that a node names per job.
MAX_NAMED_ITEMS = 100
_MAX_BYTES = 64 * 1024

#: Maximum number of failing items that a node names per job.
MAX_NAMED_ERRORS = 10
#: Maximum length of an error's text.
MAX_ERROR_TEXT = 500
#: Maximum number of bytes that are kept of removed nodes.
_KEPT_BYTES = 2_000_000
#: Latest time that can be converted to a date.
_MAX_TIME_S = 250_000_000_000.0


@dataclass(frozen=True, slots=True)
class ActiveRuns:
    """The active runs of one job on one node that have lasted at least a second.

    Attributes:
        node: ID of the node.
        job: ID of the job.
        runs: Number of runs.
        items: Number of items in these runs.
        since_s: Start of the oldest run in seconds since the epoch by the node's clock.
        named: Start of the run of each named item: the items of the oldest runs, at most 100.
    """

    node: str
    job: str
    runs: int
    items: int
    since_s: float
    named: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LiveRun:
    """An active run, with its start in seconds since the epoch."""

    job: str
    items: tuple[str, ...]
    since_s: float


def encode_active_runs(runs: Iterable[LiveRun]) -> bytes:
    """Encode the active runs of a node as JSON. If there are too many jobs, those with the newest runs are left out."""
    by_job: dict[str, StoredActivity] = {}
    for run in sorted(runs, key=lambda run: (run.since_s, run.job, run.items)):
        activity = by_job.setdefault(run.job, StoredActivity(0, 0, run.since_s))
        activity.runs += 1
        activity.items += len(run.items)
        for item in run.items[: MAX_NAMED_ITEMS - len(activity.named)]:
            activity.named.setdefault(item, run.since_s)
    kept: dict[str, StoredActivity] = {}
    left = _MAX_BYTES
    for job, activity in by_job.items():
        for candidate in (activity, replace(activity, named={})):
            size = len(job) + len(encode(candidate)) + 8
            if size <= left:
                kept[job], left = candidate, left - size
                break
    return encode(StoredActivities(kept))


class StoredActivity(Struct):
    """The stored form of the active runs of one job; see ``ActiveRuns``."""

    runs: Positive
    items: Positive
    since_s: Timestamp = stored_field(name="since")
    named: dict[str, Timestamp] = {}


class StoredActivities(Struct):
    """The stored form of the active runs of a node, by job."""

    jobs: Mapping[str, StoredActivity]


_ACTIVITIES: Decoder[StoredActivities] = Decoder(StoredActivities, "the runs of a node")


def decode_active_runs(node: str, value: bytes) -> list[ActiveRuns]:
    """Decode the active runs of a node: one element per job. Return an empty list if the value is unreadable.

    Args:
        node: ID of the node.
        value: Stored value.
    """
    found = _ACTIVITIES.find(value)
    if found is None:
        return []
    return [
        ActiveRuns(node, job, activity.runs, activity.items, activity.since_s, activity.named)
        for job, activity in found.jobs.items()
    ]


@dataclass(frozen=True, slots=True)
class RunError:
    """A failed run.

    Attributes:
        text: Type and message of the error, at most 500 characters.
        item: First item of the run.
        items: Number of items of the run.
        node: ID of the node.
        at_s: End of the run in seconds since the epoch by the node's clock.
        consecutive_failures: Number of consecutive failed runs of the item on that node, including this one.
    """

    text: str
    item: str
    items: int
    node: str
    at_s: float
    consecutive_failures: int = 1


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The results of one job's runs on one node. Times are in seconds since the epoch by the node's clock.

    Attributes:
        node: ID of the node.
        job: ID of the job.
        last_start_s: Time of the last start; None if there was none.
        last_success_s: Time of the last success; None if there was none.
        last_error: The last failure; None if there was none.
        failing_items: Number of items whose last run failed.
        consecutive_failures: Largest number of consecutive failed runs of one item.
        failing: Last failures of these items, those with most consecutive failures first; at most 10.
        next_start_s: Time of the next start; None if unknown.
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
        """Whether the last run of any item failed."""
        return self.consecutive_failures > 0


def encode_outcomes(outcomes: Iterable[JobOutcome]) -> bytes:
    """Encode the run results of a node as JSON. If there are too many jobs, failing and recently started ones are
    kept.
    """

    def priority(outcome: JobOutcome) -> tuple[bool, float, str]:
        return not outcome.is_failing, -(outcome.last_start_s or 0.0), outcome.job

    texts: dict[str, int] = {}
    jobs: dict[str, StoredOutcome] = {}
    left = _MAX_BYTES - 32
    for outcome in sorted(outcomes, key=priority):
        for named in (outcome.failing, ()) if left > _MAX_BYTES / 2 else ((),):
            known = dict(texts)
            record = StoredOutcome.from_outcome(outcome, named, known)
            if record == StoredOutcome():
                break
            new = list(known)[len(texts) :]
            size = len(encode([outcome.job, record, *new])) + 8
            if size <= left:
                jobs[outcome.job], texts, left = record, known, left - size
                break
    return encode(StoredOutcomes(jobs, list(texts)))


_Time = Annotated[float, Meta(ge=0.0, le=_MAX_TIME_S)]


class StoredError(Struct, frozen=True, array_like=True):
    """The stored form of an error, a JSON array; see ``RunError``. Its text is an index into the list of all texts."""

    text: Count
    item: str
    items: Count
    at_s: _Time
    consecutive_failures: Count

    @classmethod
    def from_error(cls, error: RunError, texts: dict[str, int]) -> StoredError:
        """Convert an error to its stored form, and add its text to ``texts``.

        Args:
            error: The error.
            texts: Index of each distinct error text.
        """
        index = texts.setdefault(error.text, len(texts))
        return cls(index, error.item, error.items, round(error.at_s, 1), error.consecutive_failures)

    def to_error(self, node: str, texts: Sequence[str]) -> RunError | None:
        """Convert a stored error to a ``RunError``. Return None if its text is missing.

        Args:
            node: ID of the node that stored it.
            texts: All stored error texts.
        """
        if self.text >= len(texts):
            return None
        return RunError(
            texts[self.text][:MAX_ERROR_TEXT], self.item, self.items, node, self.at_s, self.consecutive_failures
        )


class StoredOutcome(Struct, frozen=True, omit_defaults=True):
    """The stored form of the results of one job; see ``JobOutcome``."""

    start: _Time | None = None
    success: _Time | None = None
    error: StoredError | None = None
    items: Count = 0
    row: Count = 0
    failing: tuple[StoredError, ...] = ()
    next: _Time | None = None

    @classmethod
    def from_outcome(cls, outcome: JobOutcome, failing: Iterable[RunError], texts: dict[str, int]) -> StoredOutcome:
        """Convert the outcome of a job to its stored form, and add its error texts to ``texts``.

        Args:
            outcome: The outcome.
            failing: The failures to keep.
            texts: Index of each distinct error text.
        """
        last = outcome.last_error
        return cls(
            _round_time(outcome.last_start_s),
            _round_time(outcome.last_success_s),
            None if last is None else StoredError.from_error(last, texts),
            outcome.failing_items,
            outcome.consecutive_failures,
            tuple(StoredError.from_error(error, texts) for error in failing),
            _round_time(outcome.next_start_s),
        )

    def to_outcome(self, node: str, job: str, texts: Sequence[str]) -> JobOutcome:
        """Convert the stored outcome of a job to a ``JobOutcome``.

        Args:
            node: ID of the node that stored it.
            job: ID of the job.
            texts: All stored error texts.
        """
        failing = (error.to_error(node, texts) for error in self.failing[:MAX_NAMED_ERRORS])
        return JobOutcome(
            node=node,
            job=job,
            last_start_s=self.start,
            last_success_s=self.success,
            last_error=None if self.error is None else self.error.to_error(node, texts),
            failing_items=self.items,
            consecutive_failures=self.row,
            failing=tuple(error for error in failing if error is not None),
            next_start_s=self.next,
        )


class StoredOutcomes(Struct, frozen=True):
    """The stored form of the outcomes of a node, by job, with the texts of their errors."""

    jobs: Mapping[str, StoredOutcome]
    errors: Sequence[str]


_OUTCOMES: Decoder[StoredOutcomes] = Decoder(StoredOutcomes, "the outcomes of a node")


def decode_outcomes(node: str, value: bytes) -> list[JobOutcome]:
    """Decode the run results of a node, sorted by job. Return an empty list if the value is unreadable.

    Args:
        node: ID of the node.
        value: Stored value.
    """
    found = _OUTCOMES.find(value)
    if found is None:
        return []
    return [outcome.to_outcome(node, job, found.errors) for job, outcome in sorted(found.jobs.items())]


def _round_time(time_s: float | None) -> float | None:
    return None if time_s is None else round(time_s, 1)


def delete_old_outcomes(store: Store, running_nodes: Collection[str], oldest_s: float, checks: list[Check]) -> int:
    """Delete stored run results of removed nodes if they are old, or if all of them are too large in total.

    The leader calls this from time to time.

    Args:
        store: The cluster's store.
        running_nodes: IDs of the running nodes, whose results are kept.
        oldest_s: Results of a removed node whose last run was earlier are deleted, in seconds since the epoch.
        checks: Checks for each transaction, such as the leader's fence.
    Returns:
        The number of deleted records.
    """
    gone = [
        (_latest_time_s(entry), entry)
        for entry in store.list(keys.OUTCOMES)
        if entry.key.partition("/")[2] not in running_nodes
    ]
    left, old = _KEPT_BYTES, []
    for last_s, entry in sorted(gone, key=lambda pair: pair[0], reverse=True):
        left -= len(entry.value)
        if last_s < oldest_s or left < 0:
            old.append(Delete(entry.key))
    commit_all(store, checks, old)
    return len(old)


def _latest_time_s(entry: Entry) -> float:
    """Return the latest time in a node's stored run results, in seconds since the epoch; 0 if they contain none."""
    latest = (
        max(
            outcome.last_start_s or 0.0,
            outcome.last_success_s or 0.0,
            outcome.last_error.at_s if outcome.last_error else 0.0,
        )
        for outcome in decode_outcomes("", entry.value)
    )
    return max(latest, default=0.0)
