"""Claims of a node that have not begun: a short queue before its slots, used while calls are short.

A claim costs requests, but many claims together cost hardly more than one. So while calls take milliseconds, a node
claims more items than it has free slots. A claim that does not begin soon, because a call took long, is released.
Nothing here touches the network.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from latchwork._base.interrupts import mutex
from latchwork.clock import Clock
from latchwork.errors import Closed, LatchworkError
from latchwork.primitives import Share
from latchwork.tasks.errors import TaskStopped
from latchwork.tasks.payloads.outcome import Outcome
from latchwork.tasks.running.calls import StoredCall
from latchwork.tasks.running.completion import Taken
from latchwork.tasks.running.context import SESSION_ENDS
from latchwork.tasks.running.slots import Slots
from latchwork.tasks.running.worker_hooks import Run, WorkerHooks

#: Items are claimed ahead for this many seconds of work, up to a maximum number.
AHEAD_S, MOST_AHEAD = 0.02, 64
#: Seconds after which a claim that has not begun is released.
GIVEN_BACK_S = 0.25
#: A node that found at least ``MANY`` items per look, and now finds none, looks every ``AGAIN_S`` seconds, up to
#: ``MOST_VAIN`` times, before it becomes a waiter, which costs two writes and a watch.
MANY, AGAIN_S, MOST_VAIN = 3.0, 0.01, 5


class PrefetchQueue:
    """Claims of one node that wait for a slot. Safe to share between threads.

    Args:
        slots: run the calls.
        clock: the node's clock.
        ended: called with each claim that has run, in the slot's thread. It calls ``launch`` at its end to begin the
            next.
        drop: called with each claim that does not begin here, and why.
        look_at: called with the time at which ``give_back`` is due.
    """

    def __init__(
        self,
        slots: Slots,
        clock: Clock,
        ended: Callable[[Taken, Outcome], None],
        drop: Callable[[Taken, str], None],
        look_at: Callable[[float], None],
    ) -> None:
        self._slots = slots
        self._clock = clock
        self._ended = ended
        self._drop = drop
        self._look_at = look_at
        self._lock = mutex()
        self._queued: deque[Taken] = deque()
        self._launching = 0

    def room(self) -> int:
        """Return how many more items to claim; 0 while many wait, because claims of a few items are inefficient."""
        with self._lock:
            queued, free = len(self._queued), self._slots.free
        ahead = ahead_of(self._slots.count, self._slots.typical_s)
        return max(0, free + ahead - queued) if queued <= ahead // 2 else 0

    @property
    def oldest(self) -> float:
        """Since when the first claim has waited, by the node's clock; infinity if none waits."""
        with self._lock:
            return self._queued[0].queued_at if self._queued else math.inf

    def add(self, task: Taken) -> None:
        """Add a claim. It begins after the earlier ones, when a slot is free."""
        task.queued_at = self._clock.now()
        with self._lock:
            self._queued.append(task)
        self.launch()
        if self._queued:
            self._look_at(task.queued_at + GIVEN_BACK_S)

    def launch(self) -> None:
        """Begin waiting claims while slots are free."""
        while True:
            with self._lock:
                if not self._queued or self._slots.free - self._launching <= 0:
                    return
                task = self._queued.popleft()
                self._launching += 1
            try:
                has_begun = self._has_begun(task)
            finally:
                with self._lock:
                    self._launching -= 1
            if not has_begun:
                return

    def give_back(self, before: float, why: str) -> None:
        """Release claims that have waited since before a time."""
        with self._lock:
            late = [task for task in self._queued if task.queued_at <= before]
            self._queued = deque(task for task in self._queued if task.queued_at > before)
        for task in late:
            self._drop(task, why)

    def _has_begun(self, task: Taken) -> bool:
        """Begin a run. Return False if no slot is free: it keeps waiting."""
        run, context = task.run, task.context
        if run is None or context is None:
            return True
        if run.timeout_s is not None:
            context.deadline = self._clock.now() + run.timeout_s
        try:
            self._slots.begin(partial(_call_of, task, run), context, partial(self._ended, task))
        except Closed as error:
            self._drop(task, str(error))
            return True
        except LatchworkError:  # another thread has taken the slot
            with self._lock:
                self._queued.appendleft(task)
            return False
        return True


def _call_of(task: Taken, run: Run) -> StoredCall:
    """Return the call to run, in the slot's thread.

    Raises:
        TaskStopped: the claim may have ended. After a freeze of this process, this thread may continue before the
            watchdog.
    """
    call = run.call if isinstance(run.call, StoredCall) else run.call()
    if task.claim.remaining_s() <= task.margin_s:
        task.cut_short(SESSION_ENDS)
        raise TaskStopped(f"task {run.task_id} does not begin: {SESSION_ENDS}")
    return call


class ArrivalCount:
    """Average number of items that a node found per look. Single-threaded."""

    def __init__(self) -> None:
        self._many = 0.0
        self._vain = 0

    def note(self, found: int | None) -> None:
        """Record the number of items that a look found; None if there was no look."""
        if found:
            self._vain, self._many = 0, self._many + (found - self._many) / 4
        elif found == 0:
            self._vain += 1
            self._many = self._many if self._vain <= MOST_VAIN else 0.0

    @property
    def come_again(self) -> bool:
        """Whether more items are expected soon."""
        return self._many >= MANY and self._vain <= MOST_VAIN


def share_of(hooks: WorkerHooks, arrivals: ArrivalCount, lane: str) -> Share:
    """Return the share of a node among the takers of a partition; a patient one while more items are expected soon."""
    share = hooks.share(lane)
    return replace(share, is_patient=True) if arrivals.come_again else share


def ahead_of(slots: int, typical_s: float) -> int:
    """Return how many claims a node holds beyond its slots. Pure.

    Args:
        slots: number of slots.
        typical_s: typical duration of calls, in seconds.
    """
    return min(MOST_AHEAD, int(slots * AHEAD_S / max(typical_s, 1e-6)))
