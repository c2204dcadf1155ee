"""The locks of all jobs of a node, given back and asked for in turn: none waits until another has all of its own.

One call at a time, for some hundred locks; between two of them the caller may end it and look at everything anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

from latchwork.jobs.worker.item_locks import SLICE, ItemLocks


class LockWork:
    """The calls to make for the locks of one job; waits for any other of its items are forgotten at once.

    Args:
        locks: the node's.
        job: the job's id.
        release: items to give back, which comes first: others wait for them.
        acquire: all items whose locks are missing; those that are waited for already are not asked for.
    """

    def __init__(self, locks: ItemLocks, job: str, release: Collection[str], acquire: Collection[str]) -> None:
        self.job = job
        self._locks = locks
        self._release = deque(_slices(sorted(release)))
        self._ask = deque(_slices(locks.settle(job, acquire)))

    @property
    def asks(self) -> bool:
        """True while locks are left to ask for."""
        return bool(self._ask)

    @property
    def left(self) -> int:
        """The number of calls that are left."""
        return len(self._release) + len(self._ask)

    def call(self) -> bool:
        """Do one call's worth; True when locks were taken.

        Raises:
            LatchworkError: the server could not be used.
        """
        if self._release:
            self._locks.release(self.job, self._release.popleft())
            return False
        return self._locks.ask(self.job, self._ask.popleft())


class RoundRobin:
    """Decides which job's locks come next. One thread only.

    Every second call is for the job with the least left to do, which may start soonest; the others go round, so that
    none waits for ever behind small ones.
    """

    def __init__(self) -> None:
        self._last = ""
        self._round = False

    def take(self, works: Iterable[LockWork], go_on: Callable[[LockWork], bool]) -> bool:
        """Do what is left, call by call; the next time it goes on with the job whose turn would be next.

        Args:
            works: what is to be done, one for each job.
            go_on: asked after each call with what it was for; there is one call at least.
        Returns:
            True when locks were taken.
        Raises:
            LatchworkError: the server could not be used; what is left is left, and this job's turn is over.
        """
        queue = deque(
            sorted((work for work in works if work.left), key=lambda work: (work.job <= self._last, work.job))
        )
        taken = False
        while queue:
            work = self._choose(queue)
            taken |= work.call()
            if work.left:
                queue.append(work)
            if not go_on(work):
                break
        return taken

    def _choose(self, queue: deque[LockWork]) -> LockWork:
        self._round = not self._round
        if self._round:
            self._last = queue[0].job
            return queue.popleft()
        least = min(queue, key=lambda work: work.left)
        queue.remove(least)
        return least


def _slices(items: Sequence[str]) -> list[Sequence[str]]:
    return [items[at : at + SLICE] for at in range(0, len(items), SLICE)]
