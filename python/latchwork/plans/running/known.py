"""What a worker remembers of a plan: it chooses what ends rely on, and nothing else. Nothing here does I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from latchwork.plans.records import Task, TaskState

#: So many tasks of a plan are remembered.
_TASKS = 20_000
#: So many rounds an end is taken to be on its way.
_ROUNDS = 4
#: So many ends at most look themselves before one leaves that to others again.
_MOST_WARY = 4096


@dataclass(eq=False, slots=True)
class Known:
    """What a worker remembers of one plan, since its start or its last recover.

    Attributes:
        tasks: successors, as they were read.
        waits: by successor what it waits for, without the last ones that are known to have ended.
        ended: tasks that have ended: they stay so until a recover.
        last: a task that had not ended, and may be the last to.
        flying: ends of the rounds before, on their way.
        wary: so many ends look themselves, since ends that left that to others were refused.
        next_wary: so many after the next refusal.
    """

    tasks: dict[str, Task] = field(default_factory=dict)
    waits: dict[str, list[str]] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    last: str | None = None
    flying: deque[frozenset[str]] = field(default_factory=lambda: deque(maxlen=_ROUNDS))
    wary: int = 0
    next_wary: int = 64

    def refused(self) -> None:
        """What an end relied on has ended too: others end what depends on the same just now."""
        self.last = None
        if not self.wary:
            self.wary, self.next_wary = self.next_wary, min(_MOST_WARY, 4 * self.next_wary)

    def is_wary(self, ends: int) -> bool:
        """Whether these look themselves."""
        was, self.wary = self.wary, max(0, self.wary - ends)
        return was > 0

    def learn(self, tasks: Iterable[Task]) -> None:
        """Successors that were read."""
        if len(self.tasks) > _TASKS:
            self.tasks.clear()
            self.waits.clear()
        for task in tasks:
            self.tasks[task.name] = task
            self.waits[task.name] = list(task.record.deps)

    def forget(self, names: Iterable[str]) -> None:
        """Successors that may have been rewritten."""
        for name in names:
            self.tasks.pop(name, None)
            self.waits.pop(name, None)

    def is_waiting(self, name: str) -> bool:
        """Whether a successor waits."""
        task = self.tasks.get(name)
        return task is not None and task.record.state is TaskState.WAITING

    def is_over(self, name: str, away: Callable[[str], bool]) -> bool:
        """Whether a task has ended, or is about to."""
        return name in self.ended or away(name)

    def candidates(self, name: str, away: Callable[[str], bool], most: int) -> list[str]:
        """What a successor may wait for, the last first, without what has ended or is about to."""
        waits = self.waits[name]
        while waits and waits[-1] in self.ended:
            waits.pop()
        found: list[str] = []
        for dep in reversed(waits):
            if dep not in self.ended and not away(dep):
                found.append(dep)
                if len(found) >= most:
                    break
        return found
