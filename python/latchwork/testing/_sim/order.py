"""The order in which threads run: the default order, a random order, or a recorded order."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Mapping


class Order:
    """The schedule of a simulation: decides at each switch point which thread runs. Used by one thread at a time.

    A switch point is a place where the scheduler can switch to another thread. They are numbered from 1.

    Attributes:
        switch_points: The number of switch points so far.
        decisions: The choices that differ from the default, by number of the switch point.
    """

    def __init__(self, seed: int | None, preempt_rate: float, decisions: Mapping[int, int] | None) -> None:
        self.switch_points = 0
        self.decisions: dict[int, int] = {}
        self._chance = random.Random(seed) if seed is not None and decisions is None else None
        self._rate = preempt_rate
        self._wanted = dict(decisions or {})
        self._scheduled: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def schedule_at(self, switch_point: int, fn: Callable[[], None]) -> None:
        """Schedule a function to be called at a switch point, or at the first one after it at which this is possible.

        Args:
            switch_point: Number of the switch point.
            fn: The function.
        """
        heapq.heappush(self._scheduled, (switch_point, next(self._numbers), fn))

    def pop_scheduled(self) -> Callable[[], None] | None:
        """Remove and return the function that is scheduled for the current switch point. None if there is none."""
        if self._scheduled and self._scheduled[0][0] <= self.switch_points:
            return heapq.heappop(self._scheduled)[2]
        return None

    def choose_preemption(self) -> int | None:
        """Decide whether to switch to another thread at this switch point, although the current thread could continue.

        Returns:
            A number that selects the other thread, for ``record_choice``; None for no switch.
        """
        choice = self._wanted.get(self.switch_points)
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
        self.decisions[self.switch_points] = choice
        return choice % others

    def choose_next(self, ready: int) -> int:
        """Begin the next switch point, and choose the thread that runs next, because the current thread waits.

        Args:
            ready: Number of threads that are ready.
        Returns:
            The index of the chosen thread among them.
        """
        self.switch_points += 1
        choice = self._wanted.get(self.switch_points)
        if choice is None and self._chance is not None and ready > 1:
            choice = self._chance.randrange(ready)
        if choice is None or choice % ready == 0:
            return 0
        return self.record_choice(choice, ready)
