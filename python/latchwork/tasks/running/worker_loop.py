"""The loop of a node: look for items, claim them, run them in slots, and end them by group commits.

Only the holder of a claim may end an item; the placement of an item is just a preference. A node without free slots
does not look. A node that finds nothing waits, and writes only its position among the waiters. ``LeaseWatchdog`` stops
runs before the session of their claims can end.

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
from latchwork.store.steps import Pause, call_user_function, steps_of
from latchwork.tasks.group_commit import GroupCommit
from latchwork.tasks.payloads.outcome import Outcome
from latchwork.tasks.running.completion import Completion, Taken
from latchwork.tasks.running.context import SESSION_ENDS, TaskContext
from latchwork.tasks.running.notified_claims import NotifiedClaims, worth_claiming
from latchwork.tasks.running.prefetch_queue import AGAIN_S, GIVEN_BACK_S, ArrivalCount, PrefetchQueue, share_of
from latchwork.tasks.running.slots import Slots
from latchwork.tasks.running.worker_hooks import (
    ClaimFilter,
    Release,
    Run,
    WorkerHooks,
    allowed,
    decided,
    tell_lost,
    tell_taken,
)

if TYPE_CHECKING:
    from latchwork.store import Session, Store
_log = logging.getLogger(__name__)

#: Maximum number of items claimed in one transaction.
BATCH = 20
#: Seconds between looks of a node that finds nothing; reads only.
LOOK_S = 10.0
#: A node whose last look is older than this many seconds, and than so many times the time that a look takes, claims
#: nothing without a look.
UNSEEN_S, UNSEEN_LOOKS = 0.25, 3.0
#: Seconds until the next look after a refused item, if the system cannot learn when that item is free.
REFUSED_S = 0.1
#: Seconds between the end of its last item and one more look of an idle node, which removes empty entries of the index.
TIDY_S = 1.0


class WorkerLoop(Startable):
    """Keeps slots busy with items of a work queue. Safe to share between threads.

    Args:
        backlog: the queue. Must not be used elsewhere; closed with the loop.
        slots: run the calls; closed by the caller.
        commits: commits results; closed by the caller.
        hooks: the hooks of the system.
        store: the store that tasks get.
        node_id: the name of this node for tasks and in messages.
        context: the object that tasks get as ``TaskContext.context``.
        batch: maximum number of items claimed in one transaction.
        look_s: seconds between looks of an idle node, even without notifications; reads only.
        margin_s: tasks are stopped this many seconds before the session of their claims can end; by default a tenth of
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
        look_s: float = LOOK_S,
        margin_s: float | None = None,
    ) -> None:
        if type(batch) is not int or batch < 1:
            raise ValueError(f"batch must be a whole number from 1, not {batch!r}")
        if not is_number(look_s) or look_s <= 0.0 or not (margin_s is None or is_number(margin_s, 0.0)):
            raise ValueError(f"look_s must be above 0 seconds, and margin_s at least 0, not {look_s!r}, {margin_s!r}")
        self._backlog, self._slots, self._hooks, self._store = backlog, slots, hooks, store
        self._node_id, self._context, self._batch, self._look_s = node_id, context, batch, look_s
        self._margin_s = margin_s
        self._clock = store.clock
        self._home = ForkGuard("this feeder")
        self._bell = Notifier()
        self._ends = Notifier(self._bell.mutex)
        self._arrivals = ArrivalCount()
        self._tasks: dict[str, Taken] = {}
        self._threads: list[Background] = []
        self._stop = Signal()
        self._takes, self._is_started, self._is_over = True, False, False
        self._wants_room = self._leaves_traces = False
        self._looked_at, self._look_took_s, self._counts = -math.inf, 0.0, Counter[str]()
        self._endings = Completion(self._clock, commits, hooks, self._forget, label=node_id)
        self._choosing = ClaimFilter(hooks, self._clock, node_id)
        accept = self._choosing.accept
        self._lines = NotifiedClaims(
            backlog, self._clock, self._bell, self._stop, accept=accept, runs=self._runs, node_id=node_id
        )
        self._guard = LeaseWatchdog(self._clock, lambda: list(self._tasks.values()), self._give_back)
        self._line = PrefetchQueue(slots, self._clock, self._ended, self._drop, self._guard.look_at)

    def start(self) -> None:
        """Start taking items in the background. Idempotent. An interrupt during this call closes the loop.

        Raises:
            Closed: it was closed.
        """
        self._home.check()
        if self._stop.is_set():
            raise Closed("this feeder was closed; make another one")
        try:
            with self._bell.mutex:
                if self._is_started:
                    return
                self._threads.append(Background(self._feed, f"latchwork-feeder-{self._node_id}"))
                self._threads.append(Background(self._guard.run, f"latchwork-feeder-guard-{self._node_id}"))
                for lane in dict.fromkeys(self._hooks.waits()):
                    self._threads.append(Background(partial(self._lines.wait, lane), f"latchwork-feeder-wait-{lane}"))
                self._is_started = True
        except BaseException:
            self.end_soon()
            raise

    def end_soon(self) -> None:
        """Close in the background, after an interrupt."""
        Background(partial(call_user_function, self.close), f"latchwork-feeder-close-{self._node_id}")

    def poke(self) -> None:
        """Look for items soon, because of a change that no partition reports."""
        with self._bell.mutex:
            self._lines.poke()

    def stop_task(self, path: str) -> bool:
        """Stop the run of the item at this path, and end its pause. Return False if it is not running here."""
        with self._bell.mutex:
            task = self._tasks.get(path)
        if task is None or task.context is None:
            return False
        task.context.stop()
        task.end_pause()
        return True

    def spare(self) -> int:
        """Return how many items may be claimed without a look; 0 if the last look is too old: older items are first."""
        with self._bell.mutex:
            unseen_s = max(UNSEEN_S, UNSEEN_LOOKS * self._look_took_s)
            return self._room() if self._lines.is_hungry or self._clock.now() < self._looked_at + unseen_s else 0

    def begin_taken(self, claims: Sequence[QueueClaim]) -> None:
        """Run items that were claimed elsewhere with the session of this loop's queue."""
        if not claims:
            return
        tell_taken(self._hooks, claims, self._node_id)
        for claim in claims:
            self._begin(claim)

    def running(self) -> list[str]:
        """Return the paths of the items that this node has claimed, sorted."""
        with self._bell.mutex:
            return sorted(self._tasks)

    def stats(self) -> Mapping[str, int]:
        """Return the number of items ``taken``, ``done``, ``released``, ``buried`` and ``lost`` since the start."""
        with self._bell.mutex:
            return dict(self._counts)

    def drain(self, timeout_s: float | None = None) -> bool:
        """Stop taking items, and wait until all taken items have ended. Return False after ``timeout_s``."""
        until = None if timeout_s is None else self._clock.now() + timeout_s
        with self._bell.mutex:
            self._takes = False
            self._ring_all()
        while True:
            with self._bell.mutex:
                if not self._tasks or self._is_over:  # or close gave up in another thread
                    return not self._tasks
                version = self._ends.version
            left_s = None if until is None else until - self._clock.now()
            if (left_s is not None and left_s <= 0.0) or not self._ends.changed_since(
                version, self._clock, left_s
            ).block():
                return False

    def _ring_all(self) -> None:
        self._lines.end()
        for bell in (self._bell, self._ends):
            bell.notify_all()

    def close(self, timeout_s: float = 30.0) -> list[str]:
        """Stop all tasks, release unfinished items, and wait up to ``timeout_s``. Idempotent.

        Returns:
            The paths of items that are still claimed, sorted. They are free when the session of their claims ends.
        """
        if self._home.is_foreign:
            return []
        with self._bell.mutex:
            self._takes = False
            self._stop.set()
            tasks = list(self._tasks.values())
            self._ring_all()
        self._backlog.close()
        for task in tasks:
            task.cut_short("its node closed")
        self._endings.hurry()
        self._line.give_back(math.inf, "its node closed")
        until = self._clock.now() + timeout_s
        self.drain(timeout_s)
        with self._bell.mutex:
            self._ring_all()
        self._guard.end()
        for thread in self._threads:
            if not thread.is_running_here:
                thread.block()
        self.drain(max(0.0, until - self._clock.now()))  # claims that were taken meanwhile
        self._endings.close()
        with self._bell.mutex:
            self._is_over = True
            self._ring_all()
        return self.running()

    async def _feed(self) -> None:
        backoff = Backoff()
        while not self._stop.is_set():
            try:
                found, is_all = await self._look()
            except Closed:
                return
            except Exception as error:
                text = "node %s could not look for items, and will again: %s"
                _log.warning(text, self._node_id, error, exc_info=not isinstance(error, LatchworkError))
                await Pause(self._clock, self._stop, backoff.next_s())
                continue
            backoff = Backoff()
            await self._rest(found, is_all=is_all)

    async def _look(self) -> tuple[int | None, bool]:
        """Take items up to the free capacity.

        Returns:
            The number taken, None without free capacity; and whether they are all items known to be free.
        """
        with self._bell.mutex:
            told = self._lines.told()
            room, had = self._room(), bool(self._tasks)
        self._choosing.begin()
        if room <= 0:
            return None, False
        lanes = self._hooks.lanes()
        claims = await self._take_told(worth_claiming(told, lanes, room))
        is_all = bool(claims) and len(claims) == len(told)
        if not claims:
            claims = await self._take(lanes, room)
        with self._bell.mutex:
            self._leaves_traces = had or bool(claims)
        self.begin_taken(claims)
        return len(claims), is_all

    async def _take_told(self, items: Sequence[QueueItem]) -> list[QueueClaim]:
        if not items:
            return []
        return await steps_of(self._backlog.take_items)(
            items,
            accept=self._choosing.accept,
            extra=self._choosing.extra,
            on_refused=self._choosing.told_refused,
        )

    async def _take(self, lanes: Sequence[str], room: int) -> list[QueueClaim]:
        self._looked_at = self._clock.now()
        claims = await steps_of(self._backlog.try_take)(
            lanes,
            limit=room,
            accept=self._choosing.accept,
            extra=self._choosing.extra,
            extra_dead=self._hooks.extra_dead,
            on_refused=self._choosing.told_refused,
            on_dead=self._count_dead,
            share=partial(share_of, self._hooks, self._arrivals),
        )
        self._look_took_s = self._clock.now() - self._looked_at
        return claims

    def _count_dead(self, _item: QueueItem) -> None:
        with self._bell.mutex:
            self._counts["buried"] += 1

    def _runs(self) -> bool:
        return bool(self._tasks) and any(task.outcome is None for task in self._tasks.values())

    def _room(self) -> int:
        """Return how many items to take now."""
        return min(self._batch, self._line.room()) if self._takes else 0

    async def _rest(self, found: int | None, *, is_all: bool) -> None:
        """Wait after a look for free capacity, for a notification, or for the time of the next look."""
        with self._bell.mutex:
            self._arrivals.note(found)
            has_none = found == 0 or (is_all and self._room() > 0)
            come_again = has_none and self._arrivals.come_again
            self._lines.looked(found or 0, is_hungry=has_none and not (self._takes and come_again))
        if come_again:
            await Pause(self._clock, self._stop, AGAIN_S)
            return
        until = self._clock.now() + REFUSED_S if self._choosing.looks_again else self._looked_at + self._look_s
        while has_none or found is None:
            with self._bell.mutex:
                version = self._bell.version
                if self._stop.is_set() or self._lines.has_told or (found is None and self._room() > 0):
                    break
                self._wants_room = found is None
                until = min(until, self._looked_at + self._lines.look_s(self._look_s))
                if self._leaves_traces and not self._tasks:
                    until = min(until, self._clock.now() + TIDY_S)
            left_s = until - self._clock.now() if has_none else None
            if left_s is not None and left_s <= 0.0:
                break
            if not await self._bell.changed_since(version, self._clock, left_s):
                break
        with self._bell.mutex:
            self._lines.is_hungry = self._wants_room = False

    # Running

    def _begin(self, claim: QueueClaim) -> None:
        task = Taken(claim, claim.item.path)
        self._choosing.taken(claim.item)
        with self._bell.mutex:
            self._tasks[task.path], takes = task, self._takes  # it may have been closed during the claim
            self._counts["taken"] += 1
        try:
            what = call_user(self._hooks.begin, claim) if takes else Release(why="its node takes no more", count=False)
            if isinstance(what, Run):
                self._prepare(task, what)
                self._line.add(task)
                return
        except (OwnershipLost, Closed):
            self._endings.finish(task)
            return
        except Exception as error:
            _log.exception("node %s could not begin item %s, and gives it back", self._node_id, task.path)
            what = Release(why=f"{type(error).__name__}: {error}"[:200], after_s=1.0)
        self._endings.end(task, what)

    def _prepare(self, task: Taken, run: Run) -> None:
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
        self._guard.follow(claim.session)
        if task.is_lost or left_s <= 0.0:  # lost before it had a context to stop
            task.lose()
        if self._stop.is_set():
            task.cut_short("its node closed")
        self._guard.look_at(self._clock.now() + left_s - margin_s)

    def _give_back(self, now: float) -> float:
        """Release claims that have waited too long for a slot. Return the next time to check."""
        self._line.give_back(now - GIVEN_BACK_S, "it would have waited for a slot")
        return self._line.oldest + GIVEN_BACK_S

    def _drop(self, task: Taken, why: str) -> None:
        """Release an item that has not begun."""
        tell_lost(self._hooks, task.claim, self._node_id)
        self._endings.end(task, Release(why=why, count=False))

    def _ended(self, task: Taken, outcome: Outcome) -> None:
        """Handle the end of a run, in its slot's thread; the slot is free again."""
        outcome = task.outcome = allowed(outcome, instead=self._hooks.takes_instead)
        ours = decided(outcome, task.why_cut or outcome.why_cut)
        if ours is not None and outcome.failure is not None and outcome.failure.is_refusal:
            self._choosing.leave_to_others(task.claim.item)
        if ours is not None:
            tell_lost(self._hooks, task.claim, self._node_id)
            self._endings.end(task, ours)
        else:
            self._endings.finish(task)
        self._line.launch()
        with self._bell.mutex:
            if self._wants_room and self._room() > 0:
                self._bell.notify_all()

    def _forget(self, task: Taken, how: str) -> None:
        """Handle the end of a claim, whichever end it was."""
        again = self._hooks.claim_over(task.claim)
        with self._bell.mutex:
            if again:
                self._lines.poke()
            if self._tasks.get(task.path) is task:
                del self._tasks[task.path]
            self._counts[how] += 1
            if self._choosing.over(task.path):
                self._lines.poke()
            if not self._takes:
                self._ends.notify_all()
            elif not self._tasks and self._lines.is_hungry:
                self._bell.notify_all()


class LeaseWatchdog:
    """Stops the runs of one worker loop before their session ends. Safe to share between threads.

    Args:
        clock: the node's clock.
        held: returns the current claims.
        give_back: called with the current time; releases claims that have waited too long, and returns the next time to
            call it.
    """

    def __init__(self, clock: Clock, held: Callable[[], list[Taken]], give_back: Callable[[float], float]) -> None:
        self._clock = clock
        self._held = held
        self._give_back = give_back
        self._bell = Notifier()
        self._looks_at = math.inf
        self._is_over = False
        self._session: Session | None = None
        self._unfollow: Callable[[], None] = lambda: None

    def look_at(self, moment: float) -> None:
        """Check the claims at this time, or earlier."""
        with self._bell.mutex:
            if moment < self._looks_at:
                self._looks_at = moment
                self._bell.notify_all()

    def follow(self, session: Session) -> None:
        """Stop all runs when the session of their claims is lost, by one listener for all."""
        if self._session is session:
            return
        self._unfollow()
        self._session = session
        self._unfollow = session.on_lost(partial(self._lose, session), or_closed=True)

    def end(self) -> None:
        """Stop watching."""
        self._unfollow()
        with self._bell.mutex:
            self._is_over = True
            self._bell.notify_all()

    async def run(self) -> None:
        """Check the claims whenever due, until ``end``."""
        while True:
            with self._bell.mutex:
                version, is_over = self._bell.version, self._is_over
                self._looks_at = math.inf  # until we wait, each call of look_at version
            if is_over:
                return
            now = self._clock.now()
            moments = [(now + task.claim.remaining_s() - task.margin_s, task) for task in self._held() if task.runs]
            for moment, task in moments:
                if moment <= now:
                    await call_user_function(task.cut_short, SESSION_ENDS)
            due: float = await call_user_function(self._give_back, now)
            soonest = min([due, *(moment for moment, _ in moments if moment > now)])
            with self._bell.mutex:
                self._looks_at = soonest
            await self._bell.changed_since(version, self._clock, None if soonest == math.inf else soonest - now)

    def _lose(self, session: Session) -> None:
        for task in self._held():
            if task.claim.session is session:
                task.lose()
