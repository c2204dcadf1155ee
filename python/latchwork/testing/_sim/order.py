"""In which order threads get their turns: by default, by chance or as written down. See ``simulation``."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Mapping


class Order:
    """Decides at numbered points. One thread at a time.

    Attributes:
        points: how many points there were so far.
        decisions: what was decided against the default, by point.
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
        """Have ``interrupt`` return the function at the first point that is not before this one."""
        heapq.heappush(self._interrupts, (point, next(self._numbers), fn))

    def interrupt(self) -> Callable[[], None] | None:
        """What is to be called at this point."""
        if self._interrupts and self._interrupts[0][0] <= self.points:
            return heapq.heappop(self._interrupts)[2]
        return None

    def preempts(self) -> int | None:
        """Which of the others gets the turn at this point, though this thread could go on; None for none."""
        choice = self._wanted.get(self.points)
        if choice is None and self._chance is not None and self._chance.random() < self._rate:
            choice = self._chance.randrange(1 << 16)
        return choice

    def follow(self, choice: int, others: int) -> int:
        """Note that a choice to preempt was made; which of so many others it means."""
        self.decisions[self.points] = choice
        return choice % others

    def choose(self, ready: int) -> int:
        """At a new point, which of so many goes on when somebody has to."""
        self.points += 1
        choice = self._wanted.get(self.points)
        if choice is None and self._chance is not None and ready > 1:
            choice = self._chance.randrange(ready)
        if choice is None or choice % ready == 0:
            return 0
        return self.follow(choice, ready)
