"""Manual runs on one node: each requested item runs once in the cluster, on the node that holds its lock.

A request is like a single fire time: its progress is stored before a run starts and when it has ended, fenced by the
items' locks, as for cron schedules. An item that moves to another node meanwhile is not run twice. An interrupted run
is repeated on the next holder of the items.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from latchwork._base.interrupts import mutex
from latchwork._base.text import utc_text
from latchwork.errors import Conflict, LatchworkError
from latchwork.jobs.cron_progress import CronProgress, HeldItem
from latchwork.jobs.stored import keys
from latchwork.jobs.stored.requests import (
    MAX_NAMED,
    REQUESTS,
    RunRequest,
    RunResult,
    decode_request,
    read_requested_items,
)
from latchwork.schedules import FireProgress
from latchwork.store import Mirror, Store
from latchwork.types import Check, Exists, Put

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class ManualRun:
    """A requested run that this node still has to do, for the items of an active run. Used by the run's thread only."""

    request: RunRequest
    items: tuple[str, ...]
    fired: dict[str, FireProgress]
    progress: CronProgress

    def record_start(self) -> None:
        """Store that the manual run starts. Call it before the run starts.

        Raises:
            LatchworkError: The write may have failed: the run must not start.
        """
        self._write({item: self.fired[item].after_start(self.request.at_s) for item in self.items})

    def record_end(self) -> None:
        """Store that the manual run has ended.

        Raises:
            LatchworkError: The write may have failed. The next holder of the locks may run the items again.
        """
        self._write({item: self.fired[item].after_end() for item in self.items})

    def _write(self, fired: dict[str, FireProgress]) -> None:
        self.progress.write(fired)
        self.fired.update(fired)


class ManualRuns:
    """Follows the requests for manual runs on one node. Thread-safe."""

    def __init__(self, store: Store, node_id: str) -> None:
        self._store = store
        self._node_id = node_id
        self._mutex = mutex()
        self._requests: dict[str, tuple[RunRequest, float]] = {}  # with the time at which it was first seen
        self._progress: dict[str, CronProgress] = {}
        self._items: dict[str, frozenset[str] | None] = {}
        self._mirror: Mirror | None = None

    def start(self, on_change: Callable[[], None]) -> None:
        """Start to watch the stored requests.

        Args:
            on_change: Called when the requests have changed. It must not block.
        """
        self._mirror = mirror = self._store.mirror(REQUESTS, wait=False)
        mirror.on_change(lambda _batch: self._update_requests(mirror, on_change))

    def close(self) -> None:
        """Stop watching the requests. Idempotent."""
        if self._mirror is not None:
            self._mirror.close()

    def _update_requests(self, mirror: Mirror, on_change: Callable[[], None]) -> None:
        read = (decode_request(entry.key, entry.value) for entry in mirror.snapshot().values())
        found = {each.id: each for each in read if each is not None}
        now, wall_s = self._store.clock.now(), time.time()
        with self._mutex:
            seen = self._requests
            self._requests = {name: (each, seen[name][1] if name in seen else now) for name, each in found.items()}
            self._progress = {name: each for name, each in self._progress.items() if name in found}
            self._items = {name: each for name, each in self._items.items() if name in found}
        for name, each in found.items():
            if name not in seen and each.is_outdated(wall_s):
                log.warning(
                    "job %s: this node ignores the request of %s to run it, because by this node's clock it expired "
                    "more than a day ago; compare the clocks of both machines",
                    each.job,
                    utc_text(each.at_s),
                )
        on_change()

    def find_requests(self, job: str, items: tuple[str, ...]) -> list[RunRequest]:
        """Find the requests for any of these items of a job that have not expired, oldest first. No I/O.

        A request expires by the clock of this node, from the time at which the node first saw it.

        Args:
            job: ID of the job.
            items: Items of the job.
        """
        now, wall_s = self._store.clock.now(), time.time()
        with self._mutex:
            known = [each for each in self._requests.values() if each[0].job == job]
        found = [
            each for each, seen_at in known if now < seen_at + each.start_window_s and not each.is_outdated(wall_s)
        ]
        among = frozenset(items) if found else frozenset()
        mine = [each for each in found if each.items is None or not among.isdisjoint(each.items)]
        return sorted(mine, key=lambda each: (each.at_s, each.id))

    def find_remaining_run(self, request: RunRequest, locks: Mapping[str, HeldItem]) -> ManualRun | None:
        """Return a run of those requested items that have not run yet, or None if there are none.

        Args:
            request: The request.
            locks: Locks of the items that this node may run.
        Raises:
            LatchworkError: The store could not be used, or a lock is lost: try again.
        """
        meant = self._get_requested_items(request)
        wanted = {item: hold for item, hold in locks.items() if meant is None or item in meant}
        if not wanted:
            return None
        with self._mutex:
            progress = self._progress.setdefault(
                request.id, CronProgress(self._store, request.job, request.progress_prefix, [Exists(request.key)])
            )
        fired = progress.claim(wanted, FireProgress(0.0))
        items = tuple(item for item, each in fired.items() if each.running is not None or each.through < request.at_s)
        return ManualRun(request, tuple(sorted(items)), fired, progress) if items else None

    def _get_requested_items(self, request: RunRequest) -> frozenset[str] | None:
        """Return the items that a request is for; None for all items. They are read from the store only once."""
        with self._mutex:
            if request.id in self._items:
                return self._items[request.id]
        found = read_requested_items(self._store, request)
        with self._mutex:
            self._items[request.id] = found
        return found

    def store_result(self, run: ManualRun, owner_id: str, error: str | None) -> None:
        """Store the result of a manual run for the client that waits for it.

        Args:
            run: The run.
            owner_id: Owner of the run's locks.
            error: Error that the run raised; None if it succeeded.
        """
        end = RunResult(self._node_id, len(run.items), run.items[:MAX_NAMED], error)
        checks: list[Check] = [Exists(f"{keys.OWNERS}/{owner_id}"), Exists(run.request.key)]
        try:
            self._store.commit(checks, [Put(f"{run.request.results_prefix}/{uuid.uuid4().hex}", end.to_bytes())])
        except Conflict as late:
            log.info("job %s: no client waits for a manual run any more: %s", run.request.job, late)
        except LatchworkError as failed:
            log.warning("job %s: the result of a manual run was not stored: %s", run.request.job, failed)


class PendingManualRuns:
    """The manual runs that one live run still has to do. Used by the run's thread only.

    Args:
        manual: Requests that the node knows.
        job: ID of the job.
        holds: Locks of the run, by item.
    """

    def __init__(self, manual: ManualRuns, job: str, holds: Mapping[str, HeldItem]) -> None:
        self._manual = manual
        self._job = job
        self._holds = holds
        self._items = tuple(sorted(holds))
        self._settled: set[str] = set()

    def find_next_run(self) -> ManualRun | None:
        """Return the manual run for the oldest request that still needs one; None if there is none.

        The store is read only for requests that are new to this run.

        Raises:
            LatchworkError: The store could not be used, or a lock is lost: try again.
        """
        for request in self._manual.find_requests(self._job, self._items):
            if request.id not in self._settled:
                pending = self._manual.find_remaining_run(request, self._holds)
                if pending is not None:
                    return pending
                self._settled.add(request.id)
        return None

    def record_end(self, run: ManualRun, error: str | None) -> None:
        """Store the result of a manual run, and then store that the run has ended.

        This order matters: a waiting client reads the results as soon as all runs have ended.

        Args:
            run: The run.
            error: Error that the run raised; None if it succeeded.
        """
        self._manual.store_result(run, self._holds[run.items[0]].owner_id, error)
        try:
            run.record_end()
        except LatchworkError as failed:
            log.warning("job %s: the end of a manual run was not stored yet: %s", self._job, failed)
