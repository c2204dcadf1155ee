"""The newest view of a group that one process knows, kept current from the log. No thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from latchwork.interrupts import mutex
from latchwork.primitives.group.journal import Journal
from latchwork.primitives.group.log import Head, State, Step
from latchwork.primitives.group.views import View, ViewChange, difference
from latchwork.store.observers import listen
from latchwork.types import Entry

Tell = Callable[[list[ViewChange]], None]


class Replica:
    """The newest view here, by two ways: the watch of the head, and what we write ourselves. Safe to share.

    Listeners are called with the changes from view to view, in order, with the mutex held: they must be quick.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._listeners: dict[object, Tell] = {}
        self._lock = mutex()
        self._head: Entry | None = None
        self._life = ""
        self._state = State()
        self._told: View | None = None

    def tell(self, listener: Tell) -> Callable[[], None]:
        """Call a listener with every change from now on, at once with the view that we have; returns what ends it."""
        with self._lock:
            if self._told is not None:
                listener([_whole(self._told)])
            return listen(self._listeners, listener)

    def look(self) -> tuple[Entry | None, State]:
        """The head and its view. Only the writer may hold on to the state, until it writes."""
        with self._lock:
            return self._head, self._state

    def differs(self, name: str, token: int | None) -> bool:
        """Whether the view has another state of a member than that of a token; None if it is not there."""
        with self._lock:
            return self._state.token(name) != token

    def ids(self) -> list[str]:
        """The ids in the view, in any order."""
        with self._lock:
            return list(self._state)

    def clear(self) -> bool:
        """The head is gone: views begin anew. False if there was none."""
        with self._lock:
            had, self._head, self._life, self._state = self._head is not None, None, "", State()
            if self._told is None:
                self._told = View()
            return had

    async def advance(self, entry: Entry) -> None:
        """Go on to the view of a head, by the steps from ours if they are all there, else from the base."""
        head = Head.of(entry)
        with self._lock:
            follows = self._head is not None and self._life == head.life
            number = self._state.number
        steps = await self._journal.steps(head, number) if follows and head.number > number else None
        if steps is not None:
            self.applied(entry, head, steps)
            return
        if not follows or head.number > number:
            newest, state = await self._journal.load(entry)
            if newest is not None:
                self._adopt(newest, state)

    def applied(self, entry: Entry, head: Head, steps: Iterable[Step]) -> None:
        """Take these steps, which lead to a head; those that were taken already are left out."""
        with self._lock:
            if self._head is not None and (self._life != head.life or entry.token <= self._head.token):
                return
            changes = [self._state.apply(step) for step in steps if step.number == self._state.number + 1]
            if self._state.number == head.number:
                self._head, self._life = entry, head.life
            if changes:
                if self._told is not None and self._told.number >= changes[0].view.number:  # begun anew
                    changes = [difference(self._told, changes[-1].view)]
                self._told = changes[-1].view
                self._tell(changes)

    def _adopt(self, entry: Entry, state: State) -> None:
        """Take a view that was read whole."""
        with self._lock:
            if self._head is not None and entry.token <= self._head.token:
                return
            view, told = state.view(), self._told
            self._head, self._life, self._state, self._told = entry, Head.of(entry).life, state, view
            if told is None:
                self._tell([_whole(view)])
            elif told != view:
                self._tell([difference(told, view)])

    def _tell(self, changes: list[ViewChange]) -> None:
        for listener in list(self._listeners.values()):
            listener(changes)


def _whole(view: View) -> ViewChange:
    return ViewChange(view, view.members, (), ())
