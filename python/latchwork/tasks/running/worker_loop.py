"""The main loop of a node: it searches a queue for items, claims them, runs them in slots, and ends the claims.

Only the holder of a claim may end an item; the partition of an item is just a preference. A node without free slots
does not search. A node that finds nothing waits, and writes only its position among the waiters. ``LeaseWatchdog``
stops runs before the session of their claims can end.

docs/design/tasks.md has the races.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from latchwork._base.event import Signal
from latchwork._base.trouble_log import TroubleLog
from latchwork._base.user_code import call_user
from latchwork._base.validation import is_number
from latchwork.clock import Clock
from latchwork.errors import Closed, LatchworkError, OwnershipLost
from latchwork.primitives import QueueClaim, QueueItem, WorkQueue
from latchwork.primitives.waiting import Startable
from latchwork.store import Backoff
from latchwork.store.driving.background import Background
from latchwork.store.driving.notifier import Notifier
from latchwork.store.forks import ForkGuard
from latchwork.store.steps import Pause, call_user_function, coroutine_of
from latchwork.tasks.group_commit import GroupCommit
from latchwork.tasks.payloads.outcome import Outcome
from latchwork.tasks.running.completion import ClaimedTask, ClaimFinisher
from latchwork.tasks.running.context import SESSION_ENDS, TaskContext
from latchwork.tasks.running.item_notifications import ItemNotifications, select_direct_claims
from latchwork.tasks.running.prefetch_queue import AGAIN_S, MAX_WAIT_S, ArrivalRate, PrefetchQueue, choose_shard
from latchwork.tasks.running.slots import Slots
from latchwork.tasks.running.worker_hooks import (
    ClaimFilter,
    Release,
    Run,
    WorkerHooks,
    build_release_if_unfinished,
    call_on_claim_lost,
    call_prepare_claims,
    fail_if_deferred,
)

if TYPE_CHECKING:
    from latchwork.store import Session, Store
_log = logging.getLogger(__name__)

#: Maximum number of items claimed in one transaction.
BATCH = 20
#: Seconds between looks of a node that finds nothing; reads only.
SEARCH_S = 10.0
#: A node whose last look is older than this many seconds, and than so many times the time that a look takes, claims
#: nothing without a look.
UNSEEN_S, UNSEEN_LOOKS = 0.25, 3.0
#: Seconds until the next look after a refused item, if the system cannot learn when that item is free.
REFUSED_S = 0.1
#: Seconds between the end of its last item and one more look of an idle node, which removes empty entries of the index.
#: At least so many times the time that a look takes: a new item waits for the look, and may follow the last one soon.
TIDY_S, TIDY_LOOKS = 1.0, 3.0


class WorkerLoop(Startable):
    """Claims items of a work queue and runs them in slots. Thread-safe.

    Args:
        backlog: The queue. Must not be used elsewhere; closed with the loop.
        slots: Run the calls; closed by the caller.
        commits: Commits the results; closed by the caller.
        hooks: The hooks of the system.
        store: The store that tasks get.
        node_id: ID of this node, for tasks and messages.
        context: The object that tasks get as ``TaskContext.context``.
        batch: Maximum number of items claimed in one transaction.
        search_s: Seconds between searches of an idle node, even without notifications. A search only reads.
        margin_s: Tasks are stopped this many seconds before the session of their claims can end; by default a tenth of
            the remaining time.
    """

    def __init__(
        self,
        backlog: WorkQueue,
        slots: Slots,
        commits: GroupCommit,
        hooks: WorkerHooks,
        *,
        store: Store,
        node_id: str = "",
        context: object = None,
        batch: int = BATCH,
        search_s: float = SEARCH_S,
        margin_s: float | None = None,
    ) -> None:
        if type(batch) is not int or batch < 1:
            raise ValueError(f"batch must be a whole number from 1, not {batch!r}")
        if not is_number(search_s) or search_s <= 0.0 or not (margin_s is None or is_number(margin_s, 0.0)):
            raise ValueError(f"search_s must be above 0 s and margin_s at least 0, not {search_s!r}, {margin_s!r}")
        self._backlog, self._slots, self._hooks, self._store = backlog, slots, hooks, store
        self._node_id, self._context, self._batch, self._search_s = node_id, context, batch, search_s
        self._margin_s = margin_s
        self._clock = store.clock
        self._home = ForkGuard("this worker loop")
        self._notifier = Notifier()
        self._ends = Notifier(self._notifier.mutex)
        self._arrivals = ArrivalRate()
        self._tasks: dict[str, ClaimedTask] = {}
        self._threads: list[Background] = []
        self._stop = Signal()
        self._takes, self._is_started, self._has_closed = True, False, False
        self._wants_capacity = self._leaves_traces = False
        #: The partitions of the running search of the queue, and the number of items being claimed during the search.
        self._searched: Sequence[str] | None = None
        self._claiming = 0
        self._searched_at, self._search_took_s, self._counts = -math.inf, 0.0, Counter[str]()
        self._finisher = ClaimFinisher(self._clock, commits, hooks, self._on_claim_ended, label=node_id)
        self._filter = ClaimFilter(hooks, self._clock, node_id)
        accept = self._filter.should_claim
        self._notified = ItemNotifications(
            backlog,
            self._clock,
            self._notifier,
            self._stop,
            accept=accept,
            runs=self._runs,
            claim_during_search=self._claim_during_search,
            node_id=node_id,
        )
        self._watchdog = LeaseWatchdog(self._clock, lambda: list(self._tasks.values()), self._release_overdue)
        self._prefetched = PrefetchQueue(
            slots, self._clock, self._on_run_ended, self._release_unstarted, self._watchdog.schedule_check
        )

    def start(self) -> None:
        """Start to claim items in the background. Idempotent. If an interrupt ends this call, the loop is closed.

        Raises:
            Closed: The loop was closed.
        """
        self._home.check()
        if self._stop.is_set():
            raise Closed("this worker loop was closed; create another one")
        try:
            with self._notifier.mutex:
                if self._is_started:
                    return
                self._threads.append(Background(self._feed, f"latchwork-worker-loop-{self._node_id}"))
                self._threads.append(Background(self._watchdog.run, f"latchwork-worker-loop-guard-{self._node_id}"))
                for partition in dict.fromkeys(self._hooks.list_watched_partitions()):
                    self._threads.append(
                        Background(
                            partial(self._notified.wait_for_items, partition), f"latchwork-worker-loop-wait-{partition}"
                        )
                    )
                self._is_started = True
        except BaseException:
            self.close_in_background()
            raise

    def close_in_background(self) -> None:
        """Close the loop in the background, after an interrupt."""
        Background(partial(call_user_function, self.close), f"latchwork-worker-loop-close-{self._node_id}")

    def request_search(self) -> None:
        """Search the queue for items soon. Call it after changes of which the loop is not notified."""
        with self._notifier.mutex:
            self._notified.request_search()

    def stop_task(self, path: str) -> bool:
        """Ask the task of an item to stop, and skip a pause of the item.

        Args:
            path: Path of the item.
        Returns:
            False if the task is not running here.
        """
        with self._notifier.mutex:
            task = self._tasks.get(path)
        if task is None or task.context is None:
            return False
        task.context.stop()
        task.skip_pause()
        return True

    def free_capacity(self) -> int:
        """Return the number of items that may be claimed without a search of the queue.

        The result is 0 if the last search was too long ago, because older items must be claimed first.
        """
        with self._notifier.mutex:
            unseen_s = max(UNSEEN_S, UNSEEN_LOOKS * self._search_took_s)
            return (
                self._free_capacity()
                if self._notified.is_waiting or self._clock.now() < self._searched_at + unseen_s
                else 0
            )

    def run_claims(self, claims: Sequence[QueueClaim]) -> None:
        """Run items that were already claimed with the session of this loop's queue."""
        if not claims:
            return
        call_prepare_claims(self._hooks, claims, self._node_id)
        for claim in claims:
            self._begin(claim)

    def running(self) -> list[str]:
        """Return the paths of the items that this node has claimed, sorted."""
        with self._notifier.mutex:
            return sorted(self._tasks)

    def stats(self) -> Mapping[str, int]:
        """Return the counters ``taken``, ``done``, ``released``, ``dead_lettered`` and ``lost`` since the start."""
        with self._notifier.mutex:
            return dict(self._counts)

    def drain(self, timeout_s: float | None = None) -> bool:
        """Stop claiming items, and wait until all claims have ended.

        Args:
            timeout_s: Seconds to wait; None waits forever.
        Returns:
            Whether all claims have ended; False after the timeout.
        """
        until = None if timeout_s is None else self._clock.now() + timeout_s
        with self._notifier.mutex:
            self._takes = False
            self._notify_all()
        while True:
            with self._notifier.mutex:
                if not self._tasks or self._has_closed:  # or close gave up in another thread
                    return not self._tasks
                version = self._ends.version
            left_s = None if until is None else until - self._clock.now()
            if (left_s is not None and left_s <= 0.0) or not self._ends.wait_for_change(
                version, self._clock, left_s
            ).block():
                return False

    def _notify_all(self) -> None:
        self._notified.stop()
        for notifier in (self._notifier, self._ends):
            notifier.notify_all()

    def close(self, timeout_s: float = 30.0) -> list[str]:
        """Stop all tasks, release unfinished items, and wait for the claims to end. Idempotent.

        Args:
            timeout_s: Seconds to wait.
        Returns:
            The paths of items that are still claimed, sorted. They are free when the session of their claims ends.
        """
        if self._home.is_foreign:
            return []
        with self._notifier.mutex:
            self._takes = False
            self._stop.set()
            tasks = list(self._tasks.values())
            self._notify_all()
        self._backlog.close()
        for task in tasks:
            task.request_stop("its node closed")
        self._finisher.skip_pauses()
        self._prefetched.release_old_claims(math.inf, "its node closed")
        until = self._clock.now() + timeout_s
        self.drain(timeout_s)
        with self._notifier.mutex:
            self._notify_all()
        self._watchdog.stop()
        for thread in self._threads:
            if not thread.is_running_here:
                thread.block()
        self.drain(max(0.0, until - self._clock.now()))  # claims that were taken meanwhile
        self._finisher.close()
        with self._notifier.mutex:
            self._has_closed = True
            self._notify_all()
        return self.running()

    async def _feed(self) -> None:
        backoff, trouble = Backoff(), TroubleLog(_log)
        while not self._stop.is_set():
            try:
                found, is_all = await self._search()
            except Closed:
                return
            except Exception as error:
                text, is_bug = "node %s could not look for items, retrying", not isinstance(error, LatchworkError)
                trouble.record_failure(error, text, self._node_id, exc_info=is_bug)
                await Pause(self._clock, self._stop, backoff.next_s())
                continue
            backoff.reset()
            if found is not None:
                trouble.record_success("node %s can look for items again", self._node_id)
            await self._wait_before_search(found, is_all=is_all)

    async def _search(self) -> tuple[int | None, bool]:
        """Search the queue, claim as many items as there are free slots, and start to run them.

        Returns:
            The number of claims, or None if no slot was free; and whether all items known to be free were claimed.
        """
        with self._notifier.mutex:
            notified = self._notified.pop_notified()
            capacity = self._free_capacity()
            if capacity > 0:
                self._leaves_traces = bool(self._tasks)
        self._filter.begin_search()
        if capacity <= 0:
            return None, False
        partitions = self._hooks.select_partitions()
        claims = await self._take_notified(select_direct_claims(notified, partitions, capacity))
        is_all = bool(claims) and len(claims) == len(notified)
        try:
            if not claims:
                claims = await self._take(partitions, capacity)
            self._run_found(claims)
        finally:
            await self._wait_for_claims_during_search()
        if not claims and self._free_capacity() <= 0:  # the slots were filled during the search
            return None, False
        return len(claims), is_all

    def _run_found(self, claims: Sequence[QueueClaim]) -> None:
        if claims:
            with self._notifier.mutex:
                self._leaves_traces = True
            self.run_claims(claims)

    async def _claim_during_search(self, notified: list[QueueItem]) -> list[QueueItem] | None:
        """Claim and run items of which the node was notified, if it is searching the queue meanwhile.

        Args:
            notified: All free items of a partition.
        Returns:
            None if any were claimed. All items if the node does not search now, or if they must be searched for. An
                empty list if the claims have failed.
        """
        with self._notifier.mutex:
            if self._searched is None or self._notified.has_notification:
                return notified
            items = select_direct_claims(notified, self._searched, self._free_capacity() - self._claiming)
            self._claiming += len(items)
        if not items:
            return notified
        try:
            claims = await self._take_notified(items)
            self._run_found(claims)
        except Exception as error:
            text = "node %s could not claim items, and searches for them: %s"
            _log.info(text, self._node_id, error, exc_info=not isinstance(error, LatchworkError))
            return []
        finally:
            with self._notifier.mutex:
                self._claiming -= len(items)
                if self._free_capacity() <= 0:
                    self._notified.is_waiting = False
                self._notifier.notify_all()
        return None if claims else []

    async def _wait_for_claims_during_search(self) -> None:
        """Wait until the items that are being claimed during the search run, or their claims have failed.

        Otherwise the search would not know that they fill the slots, and the next search would take back what the hooks
        have reserved for them.
        """
        while True:
            with self._notifier.mutex:
                version = self._notifier.version
                if not self._claiming:
                    return
            await self._notifier.wait_for_change(version, self._clock, None)

    async def _take_notified(self, items: Sequence[QueueItem]) -> list[QueueClaim]:
        if not items:
            return []
        return await coroutine_of(self._backlog.take_items)(
            items,
            accept=self._filter.should_claim,
            extra=self._filter.build_claim_ops,
            on_refused=self._filter.on_claim_refused,
        )

    async def _take(self, partitions: Sequence[str], capacity: int) -> list[QueueClaim]:
        self._searched_at = self._clock.now()
        with self._notifier.mutex:
            self._searched = partitions
        try:
            claims = await coroutine_of(self._backlog.try_take)(
                partitions,
                limit=capacity,
                accept=self._filter.should_claim,
                extra=self._filter.build_claim_ops,
                extra_for_dead_letter=self._hooks.build_dead_letter_ops,
                on_refused=self._filter.on_claim_refused,
                on_dead_letter=self._count_dead_letter,
                shard=partial(choose_shard, self._hooks, self._arrivals),
            )
        finally:
            with self._notifier.mutex:
                self._searched = None
        self._search_took_s = self._clock.now() - self._searched_at
        return claims

    def _count_dead_letter(self, _item: QueueItem) -> None:
        with self._notifier.mutex:
            self._counts["dead_lettered"] += 1

    def _runs(self) -> bool:
        return bool(self._tasks) and any(task.outcome is None for task in self._tasks.values())

    def _free_capacity(self) -> int:
        """Return the number of items to claim now."""
        return min(self._batch, self._prefetched.free_capacity()) if self._takes else 0

    async def _wait_before_search(self, found: int | None, *, is_all: bool) -> None:
        """Wait for a free slot, for a notification, or until the next search is due.

        Args:
            found: Number of claims of the last search; None if there was no free slot.
            is_all: Whether the last search claimed all items known to be free.
        """
        with self._notifier.mutex:
            self._arrivals.record(found)
            has_none = found == 0 or (is_all and self._free_capacity() > 0)
            expects_more = has_none and self._arrivals.expects_more
            self._notified.record_search(found or 0, is_waiting=has_none and not (self._takes and expects_more))
        if expects_more:
            await Pause(self._clock, self._stop, AGAIN_S)
            return
        until = self._clock.now() + REFUSED_S if self._filter.should_search_soon else self._searched_at + self._search_s
        while has_none or found is None:
            with self._notifier.mutex:
                version = self._notifier.version
                if (
                    self._stop.is_set()
                    or self._notified.has_notification
                    or (found is None and self._free_capacity() > 0)
                ):
                    break
                self._wants_capacity = found is None
                until = min(until, self._searched_at + self._notified.get_search_delay_s(self._search_s))
                if self._leaves_traces and not self._tasks:
                    tidy_s = max(TIDY_S, TIDY_LOOKS * self._search_took_s)
                    until = min(until, self._clock.now() + tidy_s)
            left_s = until - self._clock.now() if has_none else None
            if left_s is not None and left_s <= 0.0:
                break
            if not await self._notifier.wait_for_change(version, self._clock, left_s):
                break
        with self._notifier.mutex:
            self._wants_capacity = False
            if self._notified.has_notification:  # otherwise it keeps its positions during the search
                self._notified.is_waiting = False

    # Running

    def _begin(self, claim: QueueClaim) -> None:
        task = ClaimedTask(claim, claim.item.path)
        self._filter.on_claimed(claim.item)
        with self._notifier.mutex:
            self._tasks[task.path], takes = task, self._takes  # it may have been closed during the claim
            self._counts["taken"] += 1
        try:
            what = (
                call_user(self._hooks.prepare_run, claim)
                if takes
                else Release(why="its node takes no more", count=False)
            )
            if isinstance(what, Run):
                self._prepare(task, what)
                self._prefetched.add(task)
                return
        except (OwnershipLost, Closed):
            self._finisher.finish(task)
            return
        except Exception as error:
            _log.exception("node %s could not start item %s and releases it", self._node_id, task.path)
            what = Release(why=f"{type(error).__name__}: {error}"[:200], after_s=1.0)
        self._finisher.settle(task, what)

    def _prepare(self, task: ClaimedTask, run: Run) -> None:
        claim = task.claim
        left_s = claim.remaining_s()
        margin_s = left_s / 10 if self._margin_s is None else self._margin_s
        task.run, task.margin_s = run, margin_s
        task.context = TaskContext(
            run.task_id,
            attempt=claim.attempts if run.attempt is None else run.attempt,
            fence=lambda: claim.fence,
            store=self._store,
            node_id=self._node_id,
            context=self._context,
            remaining_s=lambda: max(0.0, claim.remaining_s() - margin_s),
            clock=self._clock,
        )
        self._watchdog.watch_session(claim.session)
        if task.is_lost or left_s <= 0.0:  # lost before it had a context to stop
            task.mark_lost()
        if self._stop.is_set():
            task.request_stop("its node closed")
        self._watchdog.schedule_check(self._clock.now() + left_s - margin_s)

    def _release_overdue(self, now: float) -> float:
        """Release claims that have waited too long for a slot. Return the next time to check."""
        self._prefetched.release_old_claims(now - MAX_WAIT_S, "it would have waited for a slot")
        return self._prefetched.oldest_waiting_at + MAX_WAIT_S

    def _release_unstarted(self, task: ClaimedTask, why: str) -> None:
        """Release the item of a claim whose run has not begun.

        Args:
            task: The task of the claim.
            why: The reason, stored in the item.
        """
        call_on_claim_lost(self._hooks, task.claim, self._node_id)
        self._finisher.settle(task, Release(why=why, count=False))

    def _on_run_ended(self, task: ClaimedTask, outcome: Outcome) -> None:
        """Let the system decide what to do with the item of a finished run. Called in the thread of its slot, which is
        free again.

        Args:
            task: The task.
            outcome: Outcome of its run.
        """
        outcome = task.outcome = fail_if_deferred(outcome, is_allowed=self._hooks.allows_deferred)
        ours = build_release_if_unfinished(outcome, task.stop_reason or outcome.stop_reason)
        if ours is not None and outcome.failure is not None and outcome.failure.is_refusal:
            self._filter.skip_for_now(task.claim.item)
        if ours is not None:
            call_on_claim_lost(self._hooks, task.claim, self._node_id)
            self._finisher.settle(task, ours)
        else:
            self._finisher.finish(task)
        self._prefetched.start_waiting_tasks()
        with self._notifier.mutex:
            if self._wants_capacity and self._free_capacity() > 0:
                self._notifier.notify_all()

    def _on_claim_ended(self, task: ClaimedTask, how: str) -> None:
        """Remove a claim that has ended, and wake the threads that wait for its end.

        Args:
            task: The task of the claim.
            how: The way it ended: ``done``, ``released``, ``dead_lettered`` or ``lost``.
        """
        again = self._hooks.on_claim_ended(task.claim)
        with self._notifier.mutex:
            if again:
                self._notified.request_search()
            if self._tasks.get(task.path) is task:
                del self._tasks[task.path]
            self._counts[how] += 1
            if self._filter.on_claim_ended(task.path):
                self._notified.request_search()
            if not self._takes:
                self._ends.notify_all()
            elif not self._tasks and self._notified.is_waiting:
                self._notifier.notify_all()


class LeaseWatchdog:
    """Stops the runs of one worker loop before the session of their claims ends. Thread-safe.

    Args:
        clock: The node's clock.
        held: Returns the current claims.
        release_overdue: Called with the current time. Releases claims that have waited too long for a slot, and returns
            the next time to call it.
    """

    def __init__(
        self, clock: Clock, held: Callable[[], list[ClaimedTask]], release_overdue: Callable[[float], float]
    ) -> None:
        self._clock = clock
        self._held = held
        self._release_overdue = release_overdue
        self._notifier = Notifier()
        self._next_check_at = math.inf
        self._has_closed = False
        self._session: Session | None = None
        self._unwatch: Callable[[], None] = lambda: None

    def schedule_check(self, stop_time: float) -> None:
        """Make sure that the claims are checked no later than at this time on the node's clock.

        Args:
            stop_time: Time at which a run may have to stop.
        """
        with self._notifier.mutex:
            if stop_time < self._next_check_at:
                self._next_check_at = stop_time
                self._notifier.notify_all()

    def watch_session(self, session: Session) -> None:
        """Stop all runs when this session is lost."""
        if self._session is session:
            return
        self._unwatch()
        self._session = session
        self._unwatch = session.on_lost(partial(self._lose, session), or_closed=True)

    def stop(self) -> None:
        """Stop watching."""
        self._unwatch()
        with self._notifier.mutex:
            self._has_closed = True
            self._notifier.notify_all()

    async def run(self) -> None:
        """Check the claims whenever that is due, until ``stop`` is called."""
        while True:
            with self._notifier.mutex:
                version, is_over = self._notifier.version, self._has_closed
                self._next_check_at = math.inf  # until we wait, each call of look_at version
            if is_over:
                return
            now = self._clock.now()
            stop_times = [
                (now + task.claim.remaining_s() - task.margin_s, task) for task in self._held() if task.is_running
            ]
            for stop_time, task in stop_times:
                if stop_time <= now:
                    await call_user_function(task.request_stop, SESSION_ENDS)
            due: float = await call_user_function(self._release_overdue, now)
            soonest = min([due, *(stop_time for stop_time, _ in stop_times if stop_time > now)])
            with self._notifier.mutex:
                self._next_check_at = soonest
            await self._notifier.wait_for_change(version, self._clock, None if soonest == math.inf else soonest - now)

    def _lose(self, session: Session) -> None:
        for task in self._held():
            if task.claim.session is session:
                task.mark_lost()
