"""The cleanup thread of a store, which removes what interrupted and canceled calls have left."""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable

from latchwork._base.execution_context import acting_for
from latchwork.clock import Clock
from latchwork.errors import LatchworkError
from latchwork.store.driving.background import Background
from latchwork.store.driving.notifier import Notifier
from latchwork.store.steps import StepCoroutine

_log = logging.getLogger(__name__)

#: One attempt. Returns the seconds until the next one, or None when there is nothing left to do.
CleanupJob = Callable[[], StepCoroutine["float | None"]]


class CleanupThread:
    """Runs cleanup jobs, which remove what interrupted calls have left, one at a time in a thread. Thread-safe.

    The thread exists only while there are jobs. A burst of canceled calls adds hundreds of jobs, which is too many for
    one thread per job.

    Args:
        clock: The clock for pauses between attempts.
        name: The name of the thread.
    """

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock = clock
        self._name = name
        self._changed = Notifier()
        self._numbers = itertools.count()
        self._jobs: list[tuple[float, int, CleanupJob]] = []  # a heap, by the time of the next attempt
        self._thread: Background | None = None
        self._is_closed = False

    def add(self, job: CleanupJob, after_s: float = 0.0) -> None:
        """Schedule a cleanup job. It is attempted in the background until it returns None. Does not block.

        Args:
            job: Makes one attempt. Returns the seconds until the next attempt, or None if it has succeeded. After an
                error it is not repeated.
            after_s: Seconds until the first attempt.
        """
        with self._changed.mutex:
            if self._is_closed:
                return
            self._push(job, after_s)
            if self._thread is None:
                with acting_for(None):  # one separate thread, also for tasks
                    self._thread = Background(self._run, self._name)

    def close(self) -> None:
        """Discard all jobs that have not started. A job that is running may finish its current attempt. Idempotent."""
        with self._changed.mutex:
            self._is_closed = True
            self._jobs.clear()
            self._changed.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait at most ``timeout_s`` seconds until the cleanup thread has ended.

        The timeout is needed because a client library may block the thread forever after an interrupt.
        """
        thread = self._thread
        if thread is not None and not thread.is_running_here and not thread.join(timeout_s):
            _log.warning("%s: a cleanup call did not end within %g s and is abandoned", self._name, timeout_s)

    def _push(self, job: CleanupJob, after_s: float) -> None:
        heapq.heappush(self._jobs, (self._clock.now() + after_s, next(self._numbers), job))
        self._changed.notify_all()

    async def _run(self) -> None:
        while True:
            with self._changed.mutex:
                if not self._jobs:
                    self._thread = None
                    return
                left_s = self._jobs[0][0] - self._clock.now()
                job = heapq.heappop(self._jobs)[2] if left_s <= 0.0 else None
                version = self._changed.version
            if job is None:
                await self._changed.wait_for_change(version, self._clock, left_s)
                continue
            again_s = await self._attempt(job)
            with self._changed.mutex:
                if again_s is not None and not self._is_closed:
                    self._push(job, again_s)

    async def _attempt(self, job: CleanupJob) -> float | None:
        try:
            return await job()
        except LatchworkError as error:
            _log.warning("%s: a cleanup job failed: %s", self._name, error)
        except Exception:
            _log.exception("%s: a cleanup job failed", self._name)
        return None
