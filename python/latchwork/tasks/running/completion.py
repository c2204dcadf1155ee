"""Ends the claims of a worker loop, with retries.

Claims with a result are ended by group commits. Other items are released or dead-lettered one by one. ``DelayQueue``
calls functions after a delay, for the pauses before retries and for repeated attempts to end a claim.

docs/design/tasks.md has the races.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from latchwork._base.trouble_log import TroubleLog
from latchwork._base.user_code import call_user
from latchwork.clock import Clock
from latchwork.errors import Closed, Conflict, LatchworkError, OutcomeUnknown, OwnershipLost, Unavailable
from latchwork.primitives import PreparedClaimEnd, QueueClaim
from latchwork.store.driving.background import Background
from latchwork.store.driving.notifier import Notifier
from latchwork.tasks.group_commit import GroupCommit
from latchwork.tasks.retry import backoff_s
from latchwork.tasks.running.worker_hooks import DeadLetter, Done, Release, Run, Settlement, WorkerHooks
from latchwork.types import Committed

if TYPE_CHECKING:
    from latchwork.tasks.payloads.outcome import Outcome
    from latchwork.tasks.running.context import TaskContext
_log = logging.getLogger(__name__)

#: Minimum and maximum backoff between attempts to end a claim, in seconds.
_FIRST_S, _MOST_S = 0.05, 2.0
#: Number of conflicts in its checks after which a claim is released.
_MOST_REFUSALS = 10


@dataclass(eq=False, slots=True)
class ClaimedTask:
    """A task that this node has claimed, until its claim ends.

    Attributes:
        claim: The claim.
        path: The path of its item in the queue.
        context: The context of its run; None before the run is prepared.
        outcome: The outcome of its run; None before the run has ended.
        stop_reason: Why the node stopped the run; empty if it did not.
        is_lost: Whether the claim was lost while the task was running.
        margin_s: The run is stopped this many seconds before the session ends.
        tries: Number of attempts to end the claim.
        run: The call and its limits.
        queued_at: The time on the node's clock since which it has waited for a slot.
        is_hurried: Whether to release it without a pause.
        hurry: Ends the current pause, if there is one.
    """

    claim: QueueClaim
    path: str
    context: TaskContext | None = None
    outcome: Outcome | None = None
    stop_reason: str = ""
    is_lost: bool = False
    margin_s: float = 0.0
    tries: int = 0
    run: Run | None = None
    queued_at: float = 0.0
    is_hurried: bool = False
    hurry: Callable[[], None] = field(default=lambda: None)

    @property
    def is_running(self) -> bool:
        """Whether the task is running and was not asked to stop."""
        return self.context is not None and self.outcome is None and not self.context.should_stop

    def request_stop(self, reason: str) -> None:
        """Ask the run to stop, because the node requires it. Does nothing if the task is not running.

        Args:
            reason: Why the node stops it.
        """
        if self.is_running and self.context is not None:
            self.stop_reason = reason
            self.context.stop()

    def skip_pause(self) -> None:
        """Release the item without a delay, or end the current delay before its release."""
        self.is_hurried = True
        self.hurry()

    def mark_lost(self) -> None:
        """Record that the claim was lost, and ask the run to stop. The outcome of the run will be dropped."""
        self.is_lost = True
        if self.context is not None:
            self.context.stop()


class ClaimFinisher:
    """Ends the claims of tasks: acknowledges, releases or dead-letters their items, with retries. Thread-safe.

    Args:
        clock: Measures pauses.
        commits: Commits the results of tasks together with the ends of their claims.
        hooks: The hooks of the system.
        on_ended: Called with each task whose claim has ended, and the way it ended: ``done``, ``released``,
            ``dead_lettered`` or ``lost``.
        label: Text for the names of threads.
    """

    def __init__(
        self,
        clock: Clock,
        commits: GroupCommit,
        hooks: WorkerHooks,
        on_ended: Callable[[ClaimedTask, str], None],
        *,
        label: str,
    ) -> None:
        self._commits = commits
        self._hooks = hooks
        self._on_ended = on_ended
        self._pauses = DelayQueue(clock, label)
        self._trouble = TroubleLog(_log)
        self._hurries = False

    def skip_pauses(self) -> None:
        """Release all items that wait for a delayed release, and release items without a delay from now on."""
        self._hurries = True
        self._pauses.run_all_now()

    def close(self) -> None:
        """Stop acknowledging and releasing items, and wait for an operation in progress.

        Operations that have not begun are dropped. The items become free when the session of their claims ends.
        """
        self._pauses.close()

    def finish(self, task: ClaimedTask) -> None:
        """Settle the claim of a finished run as the hooks of the system say: delete, release or dead-letter its item.

        Args:
            task: The task.
        """
        if task.is_lost or task.outcome is None:
            self._on_lost(task)
            return
        try:
            settlement = call_user(self._hooks.handle_outcome, task.claim, task.outcome)
        except Exception as error:
            self._on_outcome_error(task, error)
            return
        if isinstance(settlement, Future):
            settlement.add_done_callback(partial(self._on_outcome_handled, task))
        else:
            self.settle(task, settlement)

    def _on_outcome_handled(self, task: ClaimedTask, settlement: Future[Settlement]) -> None:
        """Settle a claim after the hooks have handled the outcome of its run. Called in the thread that completed the
        future.

        Args:
            task: The task of the claim.
            settlement: Future with the settlement.
        """
        error = settlement.exception()
        if error is None:
            self.settle(task, settlement.result())
        else:
            self._on_outcome_error(task, error)

    def _on_outcome_error(self, task: ClaimedTask, error: BaseException) -> None:
        if isinstance(error, OwnershipLost):
            self._on_lost(task)
            return
        path = task.path
        _log.error("the outcome of item %s could not be determined; the item is released", path, exc_info=error)
        self.settle(task, Release(why=f"{type(error).__name__}: {error}"[:200], after_s=1.0))

    def settle(self, task: ClaimedTask, settlement: Settlement) -> None:
        """Delete, release or dead-letter the item of a claim. Returns at once; the write happens in the background.

        Args:
            task: The task of the claim.
            settlement: What to do with the item.
        """
        if isinstance(settlement, Done):
            self._commit(task, settlement)
        elif isinstance(settlement, Release):
            after_s = 0.0 if self._hurries else settlement.after_s
            task.hurry = self._pauses.schedule(after_s, partial(self._try_to_settle, task, settlement))
            if task.is_hurried or self._hurries:  # asked to hurry before the pause existed
                task.hurry()
        else:
            self._pauses.schedule(0.0, partial(self._try_to_settle, task, settlement))

    def _release(self, claim: QueueClaim, settlement: Release) -> str:
        if settlement.count and claim.is_last_attempt:
            return self._dead_letter(claim, DeadLetter(settlement.why or f"released {claim.attempts} times"))
        claim.release(
            settlement.why,
            count=settlement.count,
            failed=settlement.failed,
            partition=settlement.partition,
            ops=self._hooks.build_settlement_ops(claim),
            timeout_s=0.0,
        )
        return "released"

    def _dead_letter(self, claim: QueueClaim, settlement: DeadLetter) -> str:
        dead_item = claim.item.with_reason(settlement.why)
        checks, ops = self._hooks.build_dead_letter_ops(dead_item) if settlement.has_hook_ops else ((), ())
        ops = [*settlement.ops, *ops, *self._hooks.build_settlement_ops(claim)]
        claim.move_to_dead_letters(settlement.why, checks, ops, timeout_s=0.0)
        return "dead_lettered"

    # Done

    def _commit(self, task: ClaimedTask, done: Done) -> None:
        try:
            part = task.claim.prepare_ack([*done.ops, *self._hooks.build_settlement_ops(task.claim)])
        except OwnershipLost:
            self._on_lost(task)
            return
        try:
            future = self._commits.submit([*part.checks, *done.checks], part.ops, part.was_committed)
        except Closed:
            part.mark_not_committed()
            self._on_lost(task)
            return
        future.add_done_callback(partial(self._on_group_commit_done, task, done, part))

    def _on_group_commit_done(
        self, task: ClaimedTask, done: Done, part: PreparedClaimEnd, future: Future[Committed | None]
    ) -> None:
        """Handle the result of the group commit that should have deleted an item. Called in the thread of the group
        commit, so it must be quick.

        Args:
            task: The task of the claim.
            done: The settlement, with the checks and writes of the hooks.
            part: The checks and writes that end the claim.
            future: Future of the commit.
        """
        error = future.exception()
        if error is None:
            part.mark_committed()
            done.on_committed(future.result())
            self._on_ended(task, "done")
            return
        if isinstance(error, (OwnershipLost, Closed)):
            self._on_lost(task)
            return
        part.mark_not_committed()
        task.tries += 1
        if isinstance(error, (Unavailable, OutcomeUnknown)):
            self._retry_later(task, partial(self._commit, task, done))
        elif isinstance(error, Conflict) and task.outcome is not None and task.tries < _MOST_REFUSALS:
            self._retry_later(task, partial(self.finish, task), at_once=task.tries == 1)
        else:
            _log.error("item %s cannot be completed and is released: %s", task.path, error)
            self.settle(task, Release(why=str(error)[:200], after_s=1.0))

    # Release and dead-letter

    def _try_to_settle(self, task: ClaimedTask, settlement: Release | DeadLetter) -> None:
        """Try once to release or dead-letter an item. Runs in the thread of the delay queue; ``close`` waits for its
        end.

        Args:
            task: The task of the claim.
            settlement: What to do with the item.
        """
        task.tries += 1
        try:
            how = (
                self._release(task.claim, settlement)
                if isinstance(settlement, Release)
                else self._dead_letter(task.claim, settlement)
            )
        except (OwnershipLost, Closed):
            self._on_lost(task)
        except Conflict as error:
            _log.info("item %s could not be completed as planned: %s", task.path, error)
            self._retry_later(task, partial(self._try_to_settle, task, _choose_fallback(task.claim, settlement)))
        except LatchworkError as error:
            self._trouble.record_failure(error, "item %s could not be completed, retrying", task.path, item=task.path)
            self._retry_later(task, partial(self._try_to_settle, task, settlement))
        else:
            self._trouble.record_success("items can be completed again", item=task.path)
            self._on_ended(task, how)

    def _retry_later(self, task: ClaimedTask, step: Callable[[], None], *, at_once: bool = False) -> None:
        if task.claim.remaining_s() <= 0.0:
            self._on_lost(task)
        else:
            self._pauses.schedule(0.0 if at_once else backoff_s(task.tries, _FIRST_S, 1.5, _MOST_S), step)

    def _on_lost(self, task: ClaimedTask) -> None:
        self._trouble.forget(task.path)
        self._on_ended(task, "lost")
        try:
            call_user(self._hooks.on_claim_lost, task.claim)
        except Exception:
            _log.exception("the cleanup after lost item %s failed", task.path)


def _choose_fallback(claim: QueueClaim, settlement: Release | DeadLetter) -> Release | DeadLetter:
    """Return the settlement to try next, after the additional checks or writes of the hooks have made one fail.

    Args:
        claim: The claim.
        settlement: The settlement that has failed.
    """
    if isinstance(settlement, Release) and settlement.count and claim.is_last_attempt:
        return DeadLetter(settlement.why, has_hook_ops=False)
    return Release(settlement.why, count=False, failed=isinstance(settlement, Release) and settlement.failed)


class DelayQueue:
    """Calls functions after a delay, in its own thread. Thread-safe. The thread starts with the first call.

    Args:
        clock: Measures the delays.
        label: Text for the name of the thread.
    """

    def __init__(self, clock: Clock, label: str) -> None:
        self._clock = clock
        self._label = label
        self._notifier = Notifier()
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()
        self._thread: Background | None = None
        self._ends = False

    def schedule(self, after_s: float, call: Callable[[], object]) -> Callable[[], None]:
        """Schedule a call of a function. The function may use the store. Does nothing after ``close``.

        Args:
            after_s: Delay in seconds.
            call: The function.
        Returns:
            A function that skips the rest of the delay.
        """
        with self._notifier.mutex:
            number = next(self._numbers)
            if not self._ends:
                heapq.heappush(self._heap, (self._clock.now() + after_s, number, call))
                self._notifier.notify_all()
                if self._thread is None:
                    self._thread = Background(self._run, f"latchwork-pauses-{self._label}")
        return partial(self._hurry, lambda each: each == number)

    def run_all_now(self) -> None:
        """Call all scheduled functions now, without waiting for the rest of their delays."""
        self._hurry(lambda _: True)

    def _hurry(self, is_meant: Callable[[int], bool]) -> None:
        with self._notifier.mutex:
            now = self._clock.now()
            self._heap = [
                (min(due, now) if is_meant(number) else due, number, call) for due, number, call in self._heap
            ]
            heapq.heapify(self._heap)
            self._notifier.notify_all()

    def close(self) -> None:
        """Drop the scheduled calls, and wait for a call that is running. Idempotent."""
        with self._notifier.mutex:
            self._ends = True
            self._heap.clear()
            self._notifier.notify_all()
            thread = self._thread
        if thread is not None and not thread.is_running_here:
            thread.block()

    async def _run(self) -> None:
        while True:
            with self._notifier.mutex:
                if self._ends:
                    return
                version, now = self._notifier.version, self._clock.now()
                wait_s = self._heap[0][0] - now if self._heap else None
                call = heapq.heappop(self._heap)[2] if wait_s is not None and wait_s <= 0.0 else None
            if call is None:
                await self._notifier.wait_for_change(version, self._clock, wait_s)
            else:
                _call_safely(call)


def _call_safely(call: Callable[[], object]) -> None:
    try:
        call_user(call)
    except Exception:
        _log.exception("a delayed action failed: %r", call)
