"""The doorway of a job: the threads of one process join one after the other, and each tells the next how the job is.

Of many, one draws a ticket among all processes, and keeps its turn for a moment for those that stand behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

from latchwork.callers import current
from latchwork.interrupts import mutex
from latchwork.store.steps import Signal
from latchwork.store.store import Store
from latchwork.types import Entry
from latchwork.workers.keys import JobKeys


class Doorway:
    """Through which the threads of one process join one job on one store: one at a time. Safe to share.

    Attributes:
        head: the job's head, as the last to join has written it; a hint, it may have changed.
        epoch: the epoch, as one of them has read it; a hint, too: what was over by then is refused, and told.
        ours_until: by the store's clock, until when one of us keeps its turn for all of us.
    """

    def __init__(self, on_empty: Callable[[Doorway], object] = bool) -> None:
        self.head: Entry | None = None
        self.epoch: Entry | None = None
        self.ours_until = 0.0
        self._emptied = Signal()
        self._on_empty = on_empty
        self._lock = mutex()
        self._line: list[Signal] = []

    def line_up(self, turn: Signal) -> None:
        """Stand in line; the signal is set once it is our turn."""
        with self._lock:
            self._line.append(turn)
            first = self._line[0]
        first.set()

    def leave(self, turn: Signal) -> None:
        """Go, before our turn, in it or after it: the next is told. Twice is fine."""
        with self._lock:
            if turn in self._line:
                self._line.remove(turn)
            first = self._line[:1]
        for each in first:
            each.set()
        if not first:
            self._emptied.set()
            self._on_empty(self)

    def behind(self, turn: Signal) -> int:
        """How many stand behind us; 0 if we do not stand in line."""
        with self._lock:
            return len(self._line) - 1 - self._line.index(turn) if turn in self._line else 0

    def keep(self, turn: Signal, until: float) -> Signal:
        """Go, and keep the turn that we have among all processes for those behind us; set once there are none."""
        emptied = self._emptied = Signal()
        self.ours_until = until
        self.leave(turn)
        return emptied


_doorways: WeakKeyDictionary[Store, dict[str, Doorway]] = WeakKeyDictionary()


def doorway_of(store: Store, keys: JobKeys) -> Doorway:
    """The doorway of a job: the same one for all threads that share a store, one of its own for a task."""
    if current() is not None:  # its loop may end in the middle
        return Doorway()
    shelf = _doorways.setdefault(store, {})

    def forget(one: Doorway) -> None:  # whoever has it still uses it: two lines only cost more
        if shelf.get(keys.head) is one:
            shelf.pop(keys.head, None)

    return shelf.setdefault(keys.head, Doorway(forget))
