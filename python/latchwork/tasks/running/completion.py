"""Ends the claims of a worker loop, with retries.

Results are committed in groups. Items are released or dead-lettered one by one. ``DelayQueue`` runs delayed calls:
pauses before retries, and repeated attempts to end a claim.

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

from latchwork._base.user_code import call_user
from latchwork.clock import Clock
from latchwork.errors import Closed, Conflict, LatchworkError, OutcomeUnknown, OwnershipLost, Unavailable
from latchwork.primitives import ClaimEnding, QueueClaim
from latchwork.store.driving.background import Background
from latchwork.store.driving.notifier import Notifier
from latchwork.tasks.group_commit import GroupCommit
from latchwork.tasks.retry import backoff_s
from latchwork.tasks.running.worker_hooks import Bury, Done, Ending, Release, Run, WorkerHooks
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
class Taken:
    """A claim of this node, from its take to its end.

    Attributes:
        claim: the claim.
        path: the path of its item.
        context: the context of its run; None before.
        outcome: the outcome of its run; None before.
        why_cut: why the node stopped the run; empty if it did not.
        is_lost: the claim was lost while it was running.
        margin_s: the run is stopped this many seconds before the session ends.
        tries: number of attempts to end the claim.
        run: the call and its limits.
        queued_at: since when it has waited for a slot, by the node's clock.
        is_hurried: no longer wanted: it is released without a pause.
        hurry: ends the current pause, if there is one.
    """

    claim: QueueClaim
    path: str
    context: TaskContext | None = None
    outcome: Outcome | None = None
    why_cut: str = ""
    is_lost: bool = False
    margin_s: float = 0.0
    tries: int = 0
    run: Run | None = None
    queued_at: float = 0.0
    is_hurried: bool = False
    hurry: Callable[[], None] = field(default=lambda: None)

    @property
    def runs(self) -> bool:
        """Whether it is running and was not asked to stop."""
        return self.context is not None and self.outcome is None and not self.context.should_stop

    def cut_short(self, why: str) -> None:
        """Stop the run for a reason of the node; does nothing if it is not running."""
        if self.runs and self.context is not None:
            self.why_cut = why
            self.context.stop()

    def end_pause(self) -> None:
        """Release it without a pause, and end a current pause."""
        self.is_hurried = True
        self.hurry()

    def lose(self) -> None:
        """Mark the claim as lost, and stop its run: its outcome is dropped."""
        self.is_lost = True
        if self.context is not None:
            self.context.stop()


class Completion:
    """Ends claims. Safe to share between threads.

    Args:
        clock: measures pauses.
        commits: commits the ends of claims with a result.
        hooks: the hooks of the system.
        over: called with each claim that has ended, and how: ``done``, ``released``, ``buried`` (dead-lettered),
            ``lost``.
        label: for the names of threads.
    """

    def __init__(
        self, clock: Clock, commits: GroupCommit, hooks: WorkerHooks, over: Callable[[Taken, str], None], *, label: str
    ) -> None:
        self._commits = commits
        self._hooks = hooks
        self._over = over
        self._pauses = DelayQueue(clock, label)
        self._hurries = False

    def hurry(self) -> None:
        """End all pauses, because the node closes."""
        self._hurries = True
        self._pauses.hurry()

    def close(self) -> None:
        """Stop ending claims."""
        self._pauses.close()

    def finish(self, task: Taken) -> None:
        """Ask the system how the claim of a finished run ends, and end it that way."""
        if task.is_lost or task.outcome is None:
            self._lose(task)
            return
        try:
            ending = call_user(self._hooks.finish, task.claim, task.outcome)
        except Exception as error:
            self._undecided(task, error)
            return
        if isinstance(ending, Future):
            ending.add_done_callback(partial(self._decided, task))
        else:
            self.end(task, ending)

    def _decided(self, task: Taken, ending: Future[Ending]) -> None:
        """Handle a decision; called in the thread that decided."""
        error = ending.exception()
        if error is None:
            self.end(task, ending.result())
        else:
            self._undecided(task, error)

    def _undecided(self, task: Taken, error: BaseException) -> None:
        if isinstance(error, OwnershipLost):
            self._lose(task)
            return
        path = task.path
        _log.error("the end of item %s could not be decided; it is released", path, exc_info=error)
        self.end(task, Release(why=f"{type(error).__name__}: {error}"[:200], after_s=1.0))

    def end(self, task: Taken, ending: Ending) -> None:
        """End a claim as given. Returns immediately."""
        if isinstance(ending, Done):
            self._commit(task, ending)
        elif isinstance(ending, Release):
            after_s = 0.0 if self._hurries else ending.after_s
            task.hurry = self._pauses.later(after_s, partial(self._try, task, ending))
            if task.is_hurried or self._hurries:  # asked to hurry before the pause existed
                task.hurry()
        else:
            self._pauses.later(0.0, partial(self._try, task, ending))

    def _release(self, claim: QueueClaim, ending: Release) -> str:
        if ending.count and claim.is_last:
            why = ending.why or f"released {claim.attempts} times"
            return self._bury(claim, Bury(why, tuple(self._hooks.at_last(claim, why))))
        why = self._hooks.why(claim, ending.why)
        claim.release(why, count=ending.count, partition=ending.lane, ops=self._hooks.at_end(claim), timeout_s=0.0)
        return "released"

    def _bury(self, claim: QueueClaim, ending: Bury) -> str:
        claim.bury(ending.why, ops=[*ending.ops, *self._hooks.at_end(claim)], timeout_s=0.0)
        return "buried"

    # Done

    def _commit(self, task: Taken, done: Done) -> None:
        try:
            part = task.claim.ack_part([*done.ops, *self._hooks.at_end(task.claim)])
        except OwnershipLost:
            self._lose(task)
            return
        try:
            future = self._commits.submit([*part.checks, *done.checks], part.ops, part.landed)
        except Closed:
            part.given_up()
            self._lose(task)
            return
        future.add_done_callback(partial(self._committed, task, done, part))

    def _committed(self, task: Taken, done: Done, part: ClaimEnding, future: Future[Committed | None]) -> None:
        """Handle the answer of a group commit. Called in its thread, so it must be quick."""
        error = future.exception()
        if error is None:
            part.committed()
            done.landed(future.result())
            self._over(task, "done")
            return
        if isinstance(error, (OwnershipLost, Closed)):
            self._lose(task)
            return
        part.given_up()
        task.tries += 1
        if isinstance(error, (Unavailable, OutcomeUnknown)):
            self._again(task, partial(self._commit, task, done))
        elif isinstance(error, Conflict) and task.outcome is not None and task.tries < _MOST_REFUSALS:
            self._again(task, partial(self.finish, task), at_once=task.tries == 1)
        else:
            _log.error("item %s cannot be ended, and is released: %s", task.path, error)
            self.end(task, Release(why=str(error)[:200], after_s=1.0))

    # Release and dead-letter

    def _try(self, task: Taken, ending: Release | Bury) -> None:
        """Try once to release or dead-letter an item, in the thread of all pauses. ``close`` waits for this call."""
        task.tries += 1
        try:
            how = self._release(task.claim, ending) if isinstance(ending, Release) else self._bury(task.claim, ending)
        except (OwnershipLost, Closed):
            self._lose(task)
        except Conflict as error:
            _log.info("item %s could not be ended as decided: %s", task.path, error)
            self._again(task, partial(self._try, task, _instead(task.claim, ending)))
        except LatchworkError as error:
            _log.warning("item %s could not be ended, and is retried: %s", task.path, error)
            self._again(task, partial(self._try, task, ending))
        else:
            self._over(task, how)

    def _again(self, task: Taken, step: Callable[[], None], *, at_once: bool = False) -> None:
        if task.claim.remaining_s() <= 0.0:
            self._lose(task)
        else:
            self._pauses.later(0.0 if at_once else backoff_s(task.tries, _FIRST_S, 1.5, _MOST_S), step)

    def _lose(self, task: Taken) -> None:
        self._over(task, "lost")
        try:
            call_user(self._hooks.lost, task.claim)
        except Exception:
            _log.exception("what was to be done about the lost item %s failed", task.path)


def _instead(claim: QueueClaim, ending: Release | Bury) -> Release | Bury:
    """Return how to end a claim whose first end was refused because of its extra checks or writes. Pure."""
    if isinstance(ending, Release) and ending.count and claim.is_last:
        return Bury(ending.why)
    return Release(ending.why, count=False)


class DelayQueue:
    """Calls functions after a delay. Safe to share between threads. Its thread starts with the first call.

    Args:
        clock: measures delays.
        label: for the name of the thread.
    """

    def __init__(self, clock: Clock, label: str) -> None:
        self._clock = clock
        self._label = label
        self._bell = Notifier()
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()
        self._thread: Background | None = None
        self._ends = False

    def later(self, after_s: float, call: Callable[[], object]) -> Callable[[], None]:
        """Schedule a call after ``after_s`` seconds; it may ask the store. Dropped if this is closed.

        Returns:
            A function that ends the delay; it has no effect after the call.
        """
        with self._bell.mutex:
            number = next(self._numbers)
            if not self._ends:
                heapq.heappush(self._heap, (self._clock.now() + after_s, number, call))
                self._bell.notify_all()
                if self._thread is None:
                    self._thread = Background(self._run, f"latchwork-pauses-{self._label}")
        return partial(self._hurry, lambda each: each == number)

    def hurry(self) -> None:
        """End all current delays, because the node closes."""
        self._hurry(lambda _: True)

    def _hurry(self, is_meant: Callable[[int], bool]) -> None:
        with self._bell.mutex:
            now = self._clock.now()
            self._heap = [
                (min(due, now) if is_meant(number) else due, number, call) for due, number, call in self._heap
            ]
            heapq.heapify(self._heap)
            self._bell.notify_all()

    def close(self) -> None:
        """Drop the scheduled calls, and wait for the current one. Idempotent."""
        with self._bell.mutex:
            self._ends = True
            self._heap.clear()
            self._bell.notify_all()
            thread = self._thread
        if thread is not None and not thread.is_running_here:
            thread.block()

    async def _run(self) -> None:
        while True:
            with self._bell.mutex:
                if self._ends:
                    return
                version, now = self._bell.version, self._clock.now()
                wait_s = self._heap[0][0] - now if self._heap else None
                call = heapq.heappop(self._heap)[2] if wait_s is not None and wait_s <= 0.0 else None
            if call is None:
                await self._bell.changed_since(version, self._clock, wait_s)
            else:
                _make(call)


def _make(call: Callable[[], object]) -> None:
    try:
        call_user(call)
    except Exception:
        _log.exception("what was to be done after a pause failed: %r", call)
