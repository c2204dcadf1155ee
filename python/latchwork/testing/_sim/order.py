"""The order in which threads run: the default order, a random order, or a recorded order."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Mapping


class Order:
    """Decides which thread runs at each numbered point of a run. Used by one thread at a time.

    Attributes:
        points: The number of points so far.
        decisions: The decisions that differ from the default, by point.
    """

    def __init__(self, seed: int | None, preempt_rate: float, decisions: Mapping[int, int] | None) -> None:
        self.points = 0
        self.decisions: dict[int, int] = {}
        self._chance = random.Random(seed) if seed is not None and decisions is None else None
        self._rate = preempt_rate
        self._wanted = dict(decisions or {})
        self._interrupts: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def at(self, point: int, fn: Callable[[], None]) -> None:
        """Schedule a function for a point of the run. ``interrupt`` returns it at this point, or at the first one after
        it.

        Args:
            point: Number of the point.
            fn: The function.
        """
        heapq.heappush(self._interrupts, (point, next(self._numbers), fn))

    def interrupt(self) -> Callable[[], None] | None:
        """Return the function that is scheduled for the current point, or None."""
        if self._interrupts and self._interrupts[0][0] <= self.points:
            return heapq.heappop(self._interrupts)[2]
        return None

    def choose_preemption(self) -> int | None:
        """Decide whether to switch to another thread at the current point, although the current thread could continue.

        Returns:
            A number that selects the other thread, for ``record_choice``; None for no switch.
        """
        choice = self._wanted.get(self.points)
        if choice is None and self._chance is not None and self._chance.random() < self._rate:
            choice = self._chance.randrange(1 << 16)
        return choice

    def record_choice(self, choice: int, others: int) -> int:
        """Record the decision to switch to another thread.

        Args:
            choice: Random or recorded number that selects the thread.
            others: Number of the other threads.
        Returns:
            The index of the selected thread among the others.
        """
        self.decisions[self.points] = choice
        return choice % others

    def choose(self, ready: int) -> int:
        """Start a new point, and choose the thread that runs next.

        Args:
            ready: Number of threads that are ready.
        Returns:
            The index of the chosen thread among them.
        """
        self.points += 1
        choice = self._wanted.get(self.points)
        if choice is None and self._chance is not None and ready > 1:
            choice = self._chance.randrange(ready)
        if choice is None or choice % ready == 0:
            return 0
        return self.record_choice(choice, ready)
