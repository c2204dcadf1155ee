"""Work pools: read again every check period, on a thread of their own, since they are user code and may take long.

An unchanged pool is no write. A failed read keeps the last good pool and is reported.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from latchwork.errors import LatchworkError
from latchwork.jobs.job import InvalidJob, Job, WorkPoolFailed, read_pool
from latchwork.jobs.observer import NOBODY, Observers, PoolInfo

if TYPE_CHECKING:
    from latchwork.clock import Clock
    from latchwork.jobs.live_settings import LiveSettings
    from latchwork.jobs.registration import Registration

log = logging.getLogger(__name__)

_JOIN_S = 2.0
_RETRY_S = 2.0
_SHOWN = 5


class Pools:
    """The work pools of one node's jobs. Owned by its membership; ``close`` joins the thread unless user code hangs."""

    def __init__(
        self,
        node_id: str,
        jobs: Mapping[str, Job],
        settings: LiveSettings,
        clock: Clock,
        registration: Callable[[], Registration | None],
        *,
        observers: Observers = NOBODY,
    ) -> None:
        self._node_id = node_id
        self._jobs = jobs
        self._settings = settings
        self._observers = observers
        self._clock = clock
        self._registration = registration
        self._mutex = threading.Lock()
        self._good: dict[str, tuple[str, ...]] = {}
        self._read_at: dict[str, float] = {}
        self._retry_at: dict[str, float] = {}
        self._asked: set[str] = set()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._unsubscribe = [job.subscribe(partial(self._job_said, job_id)) for job_id, job in jobs.items()]
        self._thread = threading.Thread(target=self._run, name=f"latchwork-pools-{node_id}", daemon=True)

    def read_all(self) -> None:
        """Read every pool, in this thread.

        Raises:
            WorkPoolFailed, InvalidJob: the first that cannot be read.
        """
        for job_id, job in self._jobs.items():
            if self._closing.is_set():
                return
            items = self._read(job)
            with self._mutex:
                self._good[job_id] = items

    @property
    def is_alive(self) -> bool:
        """True while its thread lives, or there is nothing for it to do."""
        return not self._jobs or self._thread.is_alive()

    def good(self) -> dict[str, tuple[str, ...]]:
        """The last good items of each job: sorted."""
        with self._mutex:
            return dict(self._good)

    def start(self) -> None:
        """Read them again from now on: each after its check period, or when its job says that it changed."""
        self._read_at = dict.fromkeys(self._jobs, self._clock.now())
        if self._jobs:
            self._thread.start()

    def look(self) -> None:
        """The check periods may have changed. Never blocks."""
        self._wake.set()

    def abort(self) -> None:
        """Read no further pool."""
        self._closing.set()
        self._wake.set()

    def close(self) -> None:
        """End the thread; a work pool that hangs is left behind."""
        self.abort()
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)
            if self._thread.is_alive():
                log.warning("node %s: a work pool does not return; its thread is left behind", self._node_id)

    def _job_said(self, job_id: str, what: str) -> None:
        if what == "pool":
            with self._mutex:
                self._asked.add(job_id)
            self._wake.set()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.clear()
            job_id, next_at = min(((job_id, self._next_at(job_id)) for job_id in self._jobs), key=lambda pair: pair[1])
            left_s = next_at - self._clock.now()
            if left_s > 0:
                if not self._closing.is_set():  # asked after the clearing: nothing that was set since is missed
                    self._clock.wait(self._wake, None if math.isinf(left_s) else left_s)
                continue
            with self._mutex:
                self._asked.discard(job_id)
            try:
                done = self._check(self._jobs[job_id])
            except Exception:  # nothing may end the checks of the other jobs
                log.exception("work pool of job %s could not be checked", job_id)
                done = False
            self._read_at[job_id] = self._clock.now()
            self._retry_at.pop(job_id, None)
            if not done:
                self._retry_at[job_id] = self._clock.now() + _RETRY_S

    def _next_at(self, job_id: str) -> float:
        """When a pool is to be read next; infinite for never."""
        with self._mutex:
            if job_id in self._asked:
                return -math.inf
        period_s = self._settings.options(job_id).pool_check_period_s
        due = self._read_at[job_id] + period_s if period_s > 0 else math.inf
        return min(due, self._retry_at.get(job_id, math.inf))

    def _read(self, job: Job) -> tuple[str, ...]:
        began = self._clock.now()
        items: tuple[str, ...] | None = None
        try:
            items = read_pool(job)
            return items
        finally:
            took_s, count = self._clock.now() - began, None if items is None else len(items)
            self._observers.tell("pool_read", PoolInfo(self._node_id, job.id, took_s, count))

    def _check(self, job: Job) -> bool:
        """Read one pool and store what changed; False when the store has to be tried again."""
        try:
            items = self._read(job)
        except (WorkPoolFailed, InvalidJob) as error:
            log.error("%s; its last good items are kept", error, exc_info=error.__cause__)  # noqa: TRY400 - the cause's stack
            return True
        with self._mutex:
            before, self._good[job.id] = self._good.get(job.id), items
        registration = self._registration()
        if registration is None:
            return False
        try:
            stored = registration.write_pool(job.id, items)
        except LatchworkError as error:
            log.warning("work pool of job %s is not stored yet and is tried again: %s", job.id, error)
            return False
        except Exception:
            log.exception("work pool of job %s could not be stored", job.id)
            return False
        self._report(job.id, before, stored, items)
        return True

    def _report(self, job_id: str, before: object, stored: tuple[str, ...], items: tuple[str, ...]) -> None:
        if stored == items:
            return
        added, removed = sorted(set(items) - set(stored)), sorted(set(stored) - set(items))
        change = f"{len(added)} added {added[:_SHOWN]}, {len(removed)} removed {removed[:_SHOWN]}"
        if before == items:
            log.warning(
                "work pool of job %s: another node stored other items; this node's replace them: %s", job_id, change
            )
        else:
            log.info("work pool of job %s changed: %s", job_id, change)
