"""Which runs are going on: what each node says of those that have lasted a while, for people and programs outside.

Keys:   runs/<worker>    session-bound; JSON, written when what it says has changed, absent when that is nothing

A run is said when it has lasted ``AFTER_S``, so nothing is written for short ones however many there are; a node writes
at most once in ``EVERY_S``, one value of bounded size, and nothing while the same runs go on. See docs/design/0012.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from latchwork.errors import LatchworkError
from latchwork.jobs.observe.observer import Observer, RunInfo
from latchwork.jobs.stored import keys

if TYPE_CHECKING:
    from latchwork.clock import Clock
    from latchwork.jobs.node.registration import Registration

log = logging.getLogger(__name__)

#: A run is said when it has lasted so long.
AFTER_S = 1.0
#: A node writes what it says at most so often.
EVERY_S = 2.0
#: So many items of a job are named at most, by each node; the rest is counted.
NAMED = 100
_MOST_BYTES = 64 * 1024
#: A write under way at the end is waited for so long; one that lands later is refused.
_CLOSE_S = 15.0


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
    """One run that is going on.

    Attributes:
        job: the job's id.
        items: its share.
        since_s: when it began, in seconds since the epoch.
    """

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
        for item in run.items[: NAMED - len(about["named"])]:
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
    """What a value says; nothing for what is unreadable, newer fields are skipped."""
    try:
        return [
            Activity(
                node,
                job,
                int(about["runs"]),
                int(about["items"]),
                float(about["since"]),
                {str(item): float(since) for item, since in about["named"].items()},
            )
            for job, about in json.loads(value)["jobs"].items()
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


class RunBoard(Observer):
    """Keeps a node's key. Owned by the job manager: ``start`` and ``close``; in between it observes the runs."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._mutex = threading.Lock()
        self._live: dict[int, tuple[float, LiveRun]] = {}  # when they began, by the clock
        self._number = 0
        self._said: frozenset[int] = frozenset()
        self._said_by: Registration | None = None
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, clock: Clock, registration: Callable[[], Registration | None]) -> None:
        """Begin to say what goes on, as whoever is registered at the time."""
        self._thread = threading.Thread(
            target=self._loop, args=(clock, registration), name=f"latchwork-board-{self._node_id}", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Say no more; the key ends with the session. Twice is fine."""
        self._closing.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_S)

    @contextmanager
    def run(self, info: RunInfo) -> Iterator[None]:
        """A run that is going on meanwhile. Touches nothing but memory."""
        live = LiveRun(info.job, info.items, time.time())
        with self._mutex:
            self._number = number = self._number + 1
            was_idle = not self._live
            self._live[number] = (time.monotonic(), live)
        if was_idle:
            self._wake.set()
        try:
            yield
        finally:
            with self._mutex:
                del self._live[number]

    def _loop(self, clock: Clock, registration: Callable[[], Registration | None]) -> None:
        while not self._closing.is_set():
            self._wake.clear()
            with self._mutex:
                idle = not self._live and not self._said
            if idle:
                clock.wait(self._wake)
                continue
            wrote = self._say(registration())
            clock.wait(self._closing, EVERY_S if wrote else AFTER_S)

    def _say(self, registration: Registration | None) -> bool:
        """Write what has changed, if anything has; True when it was tried."""
        if registration is None:
            return False
        lasting = self._lasting()
        before = self._said if registration is self._said_by else frozenset[int]()  # its key went with its session
        if before == lasting.keys():
            self._said, self._said_by = before, registration
            return False
        try:
            registration.publish(keys.runs(self._node_id), encode_activity(lasting.values()) if lasting else None)
        except LatchworkError as error:
            log.debug("node %s: which runs go on is said later: %s", self._node_id, error)
        else:
            self._said, self._said_by = frozenset(lasting), registration
        return True

    def _lasting(self) -> dict[int, LiveRun]:
        until = time.monotonic() - AFTER_S
        with self._mutex:
            return {number: run for number, (began, run) in self._live.items() if began <= until}
