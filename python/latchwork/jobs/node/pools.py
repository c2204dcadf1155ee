"""Work pools: read again in every check period, in a separate thread, because they are user code and may be slow.

An unchanged pool causes neither a write nor a quorum read: on ZooKeeper that would be a transaction per job and check.
A failed read keeps the last good pool and is reported. The last read wins: a read replaces only what was stored before
it began. If another node has stored a pool since, that may come from a later read. It is kept, and this node reads
again at once. A slow or old read therefore never replaces a newer one.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork._base.trouble_log import TroubleLog
from latchwork.errors import LatchworkError
from latchwork.jobs.job import Job, WorkPoolFailed, read_pool
from latchwork.jobs.node.registration import Registration, read_pool_version
from latchwork.jobs.observer import NOBODY, Observer, PoolInfo
from latchwork.jobs.options import InvalidJob
from latchwork.jobs.settings import LiveSettings
from latchwork.jobs.stored import keys
from latchwork.store import Observers, Store
from latchwork.types import Entry

log = logging.getLogger(__name__)

#: The entries of the stored manifests of all jobs, None for a job without one.
Manifests = Future[list[Entry | None]]

_JOIN_S = 2.0
_RETRY_S = 2.0
_MAX_SHOWN = 5


@dataclass(frozen=True, slots=True)
class _Reading:
    """The items of a work pool as its job returned them.

    Attributes:
        items: All items.
        seen: Version of the stored pool before the read, or as it was written since.
        is_stored: Whether that version has these items.
    """

    items: tuple[str, ...]
    seen: Hashable
    is_stored: bool = False


class PoolReader:
    """Reads the work pools of a node's jobs periodically, and stores changed ones. ``close`` joins the thread unless
    user code hangs.
    """

    def __init__(
        self,
        node_id: str,
        jobs: Mapping[str, Job],
        settings: LiveSettings,
        store: Store,
        registration: Callable[[], Registration | None],
        *,
        observers: Observers[Observer] = NOBODY,
    ) -> None:
        self._node_id = node_id
        self._jobs = jobs
        self._settings = settings
        self._observers = observers
        self._store = store
        self._clock = store.clock
        self._registration = registration
        self._mutex = mutex()
        self._good: dict[str, _Reading] = {}
        self._read_at: dict[str, float] = {}
        self._retry_at: dict[str, float] = {}
        self._asked: set[str] = set()
        self._trouble = TroubleLog(log)
        self._wake = Signal()
        self._closing = Signal()
        self._unsubscribe = [job.subscribe(partial(self._on_job_change, job_id)) for job_id, job in jobs.items()]
        self._thread = threading.Thread(target=self._run, name=f"latchwork-pools-{node_id}", daemon=True)

    def start_reading_stored(self) -> Manifests:
        """Begin to read the manifests of the stored pools of all jobs."""
        manifests: Manifests = self._store.start_call("get_many", [keys.work_pool_key(job_id) for job_id in self._jobs])
        return manifests

    def read_all(self, stored: Manifests) -> None:
        """Call the work pool functions of all jobs, in the calling thread.

        Args:
            stored: The manifests of the stored pools.
        Raises:
            WorkPoolFailed, InvalidJob: A pool cannot be read; the remaining pools are not read.
            Unavailable: The store did not answer.
        """
        for (job_id, job), manifest in zip(self._jobs.items(), stored.result(), strict=True):
            if self._closing.is_set():
                return
            reading = self._call_pool_function(job, None if manifest is None else manifest.version)
            with self._mutex:
                self._good[job_id] = reading

    def store_last_read_pools(
        self, registration: Registration, stored: Manifests, check_open: Callable[[], None]
    ) -> None:
        """Store the work pools as they were last read, for a new registration of this node.

        If another node has stored a pool since then, that pool is kept, and this node reads its own pool again at once.

        Args:
            registration: The new registration.
            stored: The manifests of the stored pools, read after the node had stored that it can run the jobs.
            check_open: Called before each pool; raises an exception if the node is closing.
        Raises:
            LatchworkError: A pool could not be stored.
        """
        with self._mutex:
            readings = dict(self._good)
        for job_id, manifest in zip(self._jobs, stored.result(), strict=True):
            reading = readings[job_id]
            check_open()
            before = self._store_pool(registration, job_id, reading, [manifest])
            if before in {reading.items, ()}:
                continue
            if registration.has_peers():
                self._report_disagreement(job_id, before, reading.items)
            else:
                changed = _describe_difference(before, reading.items)
                log.info("work pool of job %s changed since it was stored: %s", job_id, changed)

    @property
    def is_alive(self) -> bool:
        """True while the thread is running, or if there are no jobs."""
        return not self._jobs or self._thread.is_alive()

    def start(self) -> None:
        """Start the thread that reads each work pool after its check period, or when its job reports a change."""
        self._read_at = dict.fromkeys(self._jobs, self._clock.now())
        if self._jobs:
            self._thread.start()

    def request_check(self) -> None:
        """Make the thread compute again when the pools are due, because check periods may have changed. Never
        blocks.
        """
        self._wake.set()

    def abort(self) -> None:
        """Stop reading work pools after the current one."""
        self._closing.set()
        self._wake.set()

    def close(self) -> None:
        """Stop the thread, and wait for its end. If a work pool function hangs, its thread keeps running."""
        self.abort()
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)
            if self._thread.is_alive():
                log.warning("node %s: a work pool function hangs; its thread is abandoned", self._node_id)

    def _on_job_change(self, job_id: str, what: str) -> None:
        if what == "pool":
            with self._mutex:
                self._asked.add(job_id)
            self._wake.set()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.clear()
            job_id, next_at = min(
                ((job_id, self._compute_next_read_at(job_id)) for job_id in self._jobs), key=lambda pair: pair[1]
            )
            left_s = next_at - self._clock.now()
            if left_s > 0:
                if not self._closing.is_set():  # checked after the clear, so that no later event is missed
                    self._clock.wait(self._wake, None if math.isinf(left_s) else left_s)
                continue
            with self._mutex:
                self._asked.discard(job_id)
            try:
                done = self._update_pool(self._jobs[job_id])
                if done:
                    self._trouble.record_success("work pool of job %s was read and stored again", job_id, item=job_id)
            except Exception:  # must not end the checks of the other jobs
                log.exception("work pool of job %s could not be checked", job_id)
                done = False
            self._read_at[job_id] = self._clock.now()
            self._retry_at.pop(job_id, None)
            if not done:
                self._retry_at[job_id] = self._clock.now() + _RETRY_S

    def _compute_next_read_at(self, job_id: str) -> float:
        """Return the time at which a work pool is read next, by the monotonic clock; infinity for never."""
        with self._mutex:
            if job_id in self._asked:
                return -math.inf
        period_s = self._settings.options(job_id).pool_check_period_s
        due = self._read_at[job_id] + period_s if period_s > 0 else math.inf
        return min(due, self._retry_at.get(job_id, math.inf))

    def _call_pool_function(self, job: Job, seen_version: Hashable) -> _Reading:
        """Call the work pool function of a job, and report the call to observers.

        Args:
            job: The job.
            seen_version: Version of the stored pool, read before this call. If another node stores a pool after that,
                its items may be newer, and the result of this call is not stored.
        """
        began = self._clock.now()
        items: tuple[str, ...] | None = None
        try:
            items = read_pool(job)
            return _Reading(items, seen_version)
        finally:
            took_s, count = self._clock.now() - began, None if items is None else len(items)
            self._observers.notify("pool_read", PoolInfo(self._node_id, job.id, took_s, count))

    def _update_pool(self, job: Job) -> bool:
        """Read one work pool, and store its items if they have changed.

        Args:
            job: The job.
        Returns:
            False if the store could not be used, so that the pool must be read again soon.
        """
        try:
            reading = self._call_pool_function(job, read_pool_version(self._store, job.id, stale_ok=True))
            if self._is_stored(job.id, reading):
                return True
        except (WorkPoolFailed, InvalidJob) as error:
            log.error("%s; the last valid items are kept", error, exc_info=error.__cause__)  # noqa: TRY400 - the cause's stack
            return True
        except LatchworkError as error:
            self._trouble.record_failure(
                error, "work pool of job %s was not read because of the store, retrying", job.id, item=job.id
            )
            return False
        with self._mutex:
            known, self._good[job.id] = self._good.get(job.id), reading
        registration = self._registration()
        if registration is None:
            return False
        try:
            stored = self._store_pool(registration, job.id, reading)
        except LatchworkError as error:
            self._trouble.record_failure(
                error, "work pool of job %s could not be stored, retrying", job.id, item=job.id
            )
            return False
        except Exception:
            log.exception("work pool of job %s could not be stored", job.id)
            return False
        if known is not None and known.items == reading.items:
            self._report_disagreement(job.id, stored, reading.items)
        elif stored != reading.items:
            log.info("work pool of job %s changed: %s", job.id, _describe_difference(stored, reading.items))
        return True

    def _is_stored(self, job_id: str, reading: _Reading) -> bool:
        """Return whether this node has stored these items, and no other node has stored a pool since."""
        with self._mutex:
            known = self._good.get(job_id)
        return (
            known is not None
            and known.is_stored
            and (known.items, known.seen) == (reading.items, reading.seen)
            and read_pool_version(self._store, job_id, stale_ok=True) == known.seen
        )

    def _store_pool(
        self, registration: Registration, job_id: str, reading: _Reading, known_manifest: Sequence[Entry | None] = ()
    ) -> tuple[str, ...]:
        """Store the items that a job's work pool function returned, unless another node has stored newer ones.

        Args:
            registration: The registration of this node.
            job_id: ID of the job.
            reading: The items.
            known_manifest: The manifest of the stored pool if it was read already.
        Returns:
            The items that were replaced. If nothing was stored, the items of this reading.
        """
        written = registration.write_pool(job_id, reading.items, reading.seen, known_manifest)
        if not written.is_ours:
            log.info("work pool of job %s: another node has stored a newer one, reading it again", job_id)
            self._on_job_change(job_id, "pool")
            return reading.items
        with self._mutex:
            if self._good.get(job_id) is reading:
                self._good[job_id] = replace(reading, seen=written.version, is_stored=True)
        return written.before

    def _report_disagreement(self, job_id: str, stored: tuple[str, ...], items: tuple[str, ...]) -> None:
        if stored != items:
            log.warning(
                "work pool of job %s: another node stored other items; those of node %s replace them: %s",
                job_id,
                self._node_id,
                _describe_difference(stored, items),
            )


def _describe_difference(before: tuple[str, ...], after: tuple[str, ...]) -> str:
    added, removed = sorted(set(after) - set(before)), sorted(set(before) - set(after))
    return f"{len(added)} added {added[:_MAX_SHOWN]}, {len(removed)} removed {removed[:_MAX_SHOWN]}"
