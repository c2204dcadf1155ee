"""The runs that are going on at a node, as it writes them down for people and programs outside.

Keys:   runs/<worker>    session-bound; JSON, absent while no run has lasted long enough

Nothing here touches the network.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from latchwork.errors import BadRecord
from latchwork.records import Record

#: Each node names at most so many items of a job; the rest is counted.
NAMED_ITEMS = 100
_MOST_BYTES = 64 * 1024


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
