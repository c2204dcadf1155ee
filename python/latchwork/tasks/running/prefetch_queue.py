"""The prefetch queue of a node: claims that wait for a free slot. Used while calls are short.

A claim costs requests, but many claims together cost hardly more than one. So while calls take milliseconds, a node
claims more items than it has free slots. A claim whose run does not begin soon, because another call takes long, is
released. Nothing here touches the network.
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
from latchwork.primitives import ConsumerShard
from latchwork.tasks.errors import TaskStopped
from latchwork.tasks.payloads.outcome import Outcome
from latchwork.tasks.running.calls import StoredCall
from latchwork.tasks.running.completion import ClaimedTask
from latchwork.tasks.running.context import SESSION_ENDS
from latchwork.tasks.running.slots import Slots
from latchwork.tasks.running.worker_hooks import Run, WorkerHooks

#: Items are claimed ahead for this many seconds of work, up to a maximum number.
AHEAD_S, MOST_AHEAD = 0.02, 64
#: Seconds after which a claim that has not begun is released.
MAX_WAIT_S = 0.25
#: A node that found at least ``MANY`` items per look, and now finds none, looks every ``AGAIN_S`` seconds, up to
#: ``MOST_VAIN`` times, before it becomes a waiter, which costs two writes and a watch.
MANY, AGAIN_S, MOST_VAIN = 3.0, 0.01, 5


class PrefetchQueue:
    """Claims of one node that wait for a slot. Thread-safe.

    Args:
        slots: Run the calls.
        clock: The node's clock.
        on_run_ended: Called with each claim whose run has ended, in the thread of its slot. Must call
            ``start_waiting_tasks`` at its end.
        release_unstarted: Called with each claim that is not run here, and the reason.
        check_at: Called with the time at which ``release_old_claims`` is due.
    """

    def __init__(
        self,
        slots: Slots,
        clock: Clock,
        on_run_ended: Callable[[ClaimedTask, Outcome], None],
        release_unstarted: Callable[[ClaimedTask, str], None],
        check_at: Callable[[float], None],
    ) -> None:
        self._slots = slots
        self._clock = clock
        self._on_run_ended = on_run_ended
        self._release_unstarted = release_unstarted
        self._check_at = check_at
        self._lock = mutex()
        self._queued: deque[ClaimedTask] = deque()
        self._launching = 0

    def free_capacity(self) -> int:
        """Return the number of further items to claim.

        The result is 0 while many claims wait, because claiming only a few items at a time is inefficient.
        """
        with self._lock:
            queued, free = len(self._queued), self._slots.free_slots
        ahead = compute_prefetch_limit(self._slots.count, self._slots.typical_duration_s)
        return max(0, free + ahead - queued) if queued <= ahead // 2 else 0

    @property
    def oldest_waiting_at(self) -> float:
        """The time at which the oldest waiting claim was added, on the node's clock; infinity if no claim is
        waiting.
        """
        with self._lock:
            return self._queued[0].queued_at if self._queued else math.inf

    def add(self, task: ClaimedTask) -> None:
        """Add a claimed task. Its run begins when the runs of earlier claims have begun and a slot is free."""
        task.queued_at = self._clock.now()
        with self._lock:
            self._queued.append(task)
        self.start_waiting_tasks()
        if self._queued:
            self._check_at(task.queued_at + MAX_WAIT_S)

    def start_waiting_tasks(self) -> None:
        """Run claimed tasks that wait for a slot, in order, while slots are free."""
        while True:
            with self._lock:
                if not self._queued or self._slots.free_slots - self._launching <= 0:
                    return
                task = self._queued.popleft()
                self._launching += 1
            try:
                has_begun = self._try_start(task)
            finally:
                with self._lock:
                    self._launching -= 1
            if not has_begun:
                return

    def release_old_claims(self, added_until: float, reason: str) -> None:
        """Release the waiting claims that were added up to a given time.

        Args:
            added_until: The time on the node's clock.
            reason: Why they are released.
        """
        with self._lock:
            late = [task for task in self._queued if task.queued_at <= added_until]
            self._queued = deque(task for task in self._queued if task.queued_at > added_until)
        for task in late:
            self._release_unstarted(task, reason)

    def _try_start(self, task: ClaimedTask) -> bool:
        """Run a claimed task in a free slot. Return False if there is none; the task then stays in the queue."""
        run, context = task.run, task.context
        if run is None or context is None:
            return True
        if run.timeout_s is not None:
            context.deadline = self._clock.now() + run.timeout_s
        try:
            self._slots.start_with_callback(partial(_build_call, task, run), context, partial(self._on_run_ended, task))
        except Closed as error:
            self._release_unstarted(task, str(error))
            return True
        except LatchworkError:  # another thread has taken the slot
            with self._lock:
                self._queued.appendleft(task)
            return False
        return True


def _build_call(task: ClaimedTask, run: Run) -> StoredCall:
    """Return the call to run. If the run has a function instead, call that function to build the call. Runs in the
    slot's thread.

    Args:
        task: The task of the claim.
        run: The decision to run.
    Raises:
        TaskStopped: The claim may have ended. If this process was frozen, this thread may continue before the watchdog
            does.
    """
    call = run.call if isinstance(run.call, StoredCall) else run.call()
    if task.claim.remaining_s() <= task.margin_s:
        task.request_stop(SESSION_ENDS)
        raise TaskStopped(f"task {run.task_id} does not start: {SESSION_ENDS}")
    return call


class ArrivalRate:
    """An estimate of the number of arriving items, based on the latest searches. Not thread-safe."""

    def __init__(self) -> None:
        self._many = 0.0
        self._vain = 0

    def record(self, found: int | None) -> None:
        """Record how many items a search of the queue has found.

        Args:
            found: The number; None if there was no search.
        """
        if found:
            self._vain, self._many = 0, self._many + (found - self._many) / 4
        elif found == 0:
            self._vain += 1
            self._many = self._many if self._vain <= MOST_VAIN else 0.0

    @property
    def expects_more(self) -> bool:
        """Whether more items are expected soon."""
        return self._many >= MANY and self._vain <= MOST_VAIN


def choose_shard(hooks: WorkerHooks, arrivals: ArrivalRate, partition: str) -> ConsumerShard:
    """Choose the shard of a partition that a node searches first.

    While more items are expected soon, the node leaves the items of other shards to their nodes.

    Args:
        hooks: The hooks of the system, which choose the shard.
        arrivals: Estimate of the arriving items.
        partition: The partition.
    """
    share = hooks.get_preferred_shard(partition)
    return replace(share, is_patient=True) if arrivals.expects_more else share


def compute_prefetch_limit(slots: int, typical_duration_s: float) -> int:
    """Compute the number of claims that a node may hold in addition to its slots. Pure.

    Args:
        slots: Number of slots.
        typical_duration_s: Typical duration of calls in seconds.
    """
    return min(MOST_AHEAD, int(slots * AHEAD_S / max(typical_duration_s, 1e-6)))
