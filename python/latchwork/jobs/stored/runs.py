"""What a node writes down about runs for people and programs outside: those that are going on, and how others went.

Keys:   runs/<worker>      session-bound; JSON, absent while no run has lasted long enough
        outcomes/<node>    JSON, bound to no session; rewritten now and then; see docs/design/0016

Only ``trim_outcomes`` touches the network.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from latchwork.errors import BadRecord
from latchwork.jobs.stored import keys
from latchwork.jobs.stored.packed import commit_all
from latchwork.records import Record
from latchwork.store import Store
from latchwork.types import Check, Delete, Entry

#: Each node names at most so many items of a job; the rest is counted.
NAMED_ITEMS = 100
_MOST_BYTES = 64 * 1024

#: A node names at most so many failing items of a job; the rest is counted.
NAMED_ERRORS = 10
#: The text of an error is cut to so many characters.
MOST_TEXT = 500
#: Of nodes that have gone so many bytes are kept at most.
_KEPT_BYTES = 2_000_000
#: A moment beyond has no date.
_LAST_S = 250_000_000_000.0


@dataclass(frozen=True, slots=True)
class Activity:
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
    by_job: dict[str, dict[str, Any]] = {}
    for run in sorted(runs, key=lambda run: (run.since_s, run.job, run.items)):
        about = by_job.setdefault(run.job, {"runs": 0, "items": 0, "since": run.since_s, "named": {}})
        about["runs"] += 1
        about["items"] += len(run.items)
        for item in run.items[: NAMED_ITEMS - len(about["named"])]:
            about["named"].setdefault(item, run.since_s)
    kept, left = {}, _MOST_BYTES
    for job, about in by_job.items():
        for each in (about, {**about, "named": {}}):
            size = len(job) + len(json.dumps(each)) + 8
            if size <= left:
                kept[job], left = each, left - size
                break
    return json.dumps({"jobs": kept}, separators=(",", ":")).encode()


def decode_activity(node: str, value: bytes) -> list[Activity]:
    """Decode a value; an unreadable one is empty, newer fields are skipped."""
    found = []
    for job, body in Record.or_empty(value).mapping("jobs", {}).items():
        if isinstance(body, dict):
            with suppress(BadRecord):
                found.append(_decode_job(node, job, Record(body)))
    return found


def _decode_job(node: str, job: str, about: Record) -> Activity:
    named = Record(about.mapping("named"))
    return Activity(
        node,
        job,
        about.whole("runs", least=1),
        about.whole("items", least=1),
        about.moment_s("since"),
        {item: named.moment_s(item) for item in named.body},
    )


@dataclass(frozen=True, slots=True)
class RunError:
    """How a run failed.

    Attributes:
        text: the error: its type and its message, up to 500 characters.
        item: the first item of the run.
        items: how many items the run had.
        node: where it ran.
        at_s: when it ended, in seconds since the epoch by the node's clock.
        in_a_row: how many runs of the item have failed there one after the other, this one included.
    """

    text: str
    item: str
    items: int
    node: str
    at_s: float
    in_a_row: int = 1


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
        in_a_row: how many runs of one item have failed one after the other: of the item with most of them.
        failing: the last failures of those items, those with most in a row first; 10 at most.
        next_start_s: when the next run begins; None while that is not known.
    """

    node: str
    job: str
    last_start_s: float | None = None
    last_success_s: float | None = None
    last_error: RunError | None = None
    failing_items: int = 0
    in_a_row: int = 0
    failing: tuple[RunError, ...] = ()
    next_start_s: float | None = None

    @property
    def is_failing(self) -> bool:
        """Whether an item's last run failed."""
        return self.in_a_row > 0


def encode_outcomes(outcomes: Iterable[JobOutcome]) -> bytes:
    """The value of a node's key; with very many jobs those that fail are kept first, then those that ran last."""

    def order(each: JobOutcome) -> tuple[bool, float, str]:
        return not each.is_failing, -(each.last_start_s or 0.0), each.job

    texts: dict[str, int] = {}
    jobs: dict[str, Any] = {}
    left = _MOST_BYTES - 32
    for outcome in sorted(outcomes, key=order):
        for named in (outcome.failing, ()) if left > _MOST_BYTES / 2 else ((),):
            known = dict(texts)
            body = _body(outcome, named, known)
            if not body:
                break
            new = list(known)[len(texts) :]
            size = len(_json([outcome.job, body, *new])) + 8
            if size <= left:
                jobs[outcome.job], texts, left = body, known, left - size
                break
    return _json({"jobs": jobs, "errors": list(texts)})


def _json(body: object) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def _body(outcome: JobOutcome, failing: Iterable[RunError], texts: dict[str, int]) -> dict[str, Any]:
    def error(each: RunError | None) -> list[Any] | None:
        if each is None:
            return None
        return [texts.setdefault(each.text, len(texts)), each.item, each.items, round(each.at_s, 1), each.in_a_row]

    body = {
        "start": _rounded(outcome.last_start_s),
        "success": _rounded(outcome.last_success_s),
        "error": error(outcome.last_error),
        "items": outcome.failing_items or None,
        "row": outcome.in_a_row or None,
        "failing": [error(each) for each in failing] or None,
        "next": _rounded(outcome.next_start_s),
    }
    return {name: value for name, value in body.items() if value is not None}


def decode_outcomes(node: str, value: bytes) -> list[JobOutcome]:
    """Decode a value: sorted by job; what cannot be read is left out, newer fields are skipped."""
    body = Record.or_empty(value).body
    jobs, texts = body.get("jobs"), body.get("errors")
    if not isinstance(jobs, dict) or not isinstance(texts, list):
        return []
    return [_decoded(node, job, about, texts) for job, about in sorted(jobs.items()) if isinstance(about, dict)]


def _decoded(node: str, job: str, about: Mapping[str, Any], texts: list[Any]) -> JobOutcome:
    failing = about.get("failing")
    errors = [_error(node, each, texts) for each in failing[:NAMED_ERRORS]] if isinstance(failing, list) else []
    return JobOutcome(
        node=node,
        job=job,
        last_start_s=_moment(about.get("start")),
        last_success_s=_moment(about.get("success")),
        last_error=_error(node, about.get("error"), texts),
        failing_items=_count(about.get("items")),
        in_a_row=_count(about.get("row")),
        failing=tuple(each for each in errors if each is not None),
        next_start_s=_moment(about.get("next")),
    )


def _error(node: str, value: object, texts: list[Any]) -> RunError | None:
    if not isinstance(value, list) or len(value) < 5:
        return None
    text, item, items, at_s, in_a_row = value[:5]
    moment, index = _moment(at_s), _count(text, none=-1)
    if not isinstance(item, str) or moment is None or not 0 <= index < len(texts):
        return None
    return RunError(str(texts[index])[:MOST_TEXT], item, _count(items), node, moment, _count(in_a_row))


def _moment(value: object) -> float | None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= _LAST_S
    return float(value) if good else None  # type: ignore[arg-type]


def _count(value: object, none: int = 0) -> int:
    return value if type(value) is int and 0 <= value < 2**63 else none


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
