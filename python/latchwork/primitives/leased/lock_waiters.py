"""Calls that wait for locks. Watches wake them when the next attempt may succeed. No thread per waiting call.

A name of several segments is watched together with all names that share its first segment, so that thousands of waiters
of one job cost one watch. A name of one segment is watched alone. A watch is kept for a short time after its last
waiter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork.primitives.leased.state import KeeperState
from latchwork.primitives.leased.table import LockTable
from latchwork.primitives.waiting.deadline import Deadline
from latchwork.store.mirror import Mirror
from latchwork.store.steps import Pause
from latchwork.types import Change

#: Seconds a watch is kept after its last waiter went.
_LINGER_S = 20.0

Callback = Callable[[], None]


@dataclass(slots=True, eq=False)
class _LockGroup:
    """The waiters for locks with the same first key segment, and the mirror of these locks.

    Attributes:
        waiters: The waiters by name of the lock.
        mirror: The mirror; None while it is opened.
        ready: Whether the mirror has its first state.
        idle_since: Local clock time at which the last waiter was removed.
    """

    waiters: dict[str, list[Callback]] = field(default_factory=dict)
    mirror: Mirror | None = None
    ready: bool = False
    idle_since: float = 0.0


class LockWaiters:
    """The waiters for locks of one keeper. A waiter is a callback that runs when the next attempt may succeed.
    Thread-safe.

    Callbacks run without the mutex. Locks that this keeper holds do not count as free. If a wait depends on the death
    of an owner, which no watch reports, ``wake`` is set. The keeper then calls ``notify_waiters_of_dead_owners``.

    Args:
        table: Reads the locks.
        state: The locks that this keeper holds.
        wake: Wakes the thread of the keeper.
    """

    def __init__(self, table: LockTable, state: KeeperState, wake: Signal) -> None:
        self._table = table
        self._state = state
        self._wake = wake
        self._clock = table.store.clock
        self._lock = mutex()
        self._groups: dict[str, _LockGroup] = {}
        self._blocked_by: dict[str, set[str]] = {}
        self._closed = False

    def add_waiter(self, name: str, callback: Callback) -> Callable[[], None]:
        """Call ``callback`` once when a lock looks free, perhaps immediately.

        Args:
            name: Name of the lock.
            callback: Must not block.
        Returns:
            A function that removes the waiter.
        """
        prefix = name.partition("/")[0]
        with self._lock:
            closed, is_new = self._closed, prefix not in self._groups
            group = _LockGroup() if closed else self._groups.setdefault(prefix, _LockGroup())
            group.waiters.setdefault(name, []).append(callback)
        if closed:
            callback()
        elif is_new:
            self._open(prefix, group)
        self.notify_waiters_if_free([name])
        return partial(self.remove_waiter, name, callback)

    async def wait_until_free(self, name: str, deadline: Deadline, stop: Signal) -> bool:
        """Wait until a lock looks free, ``stop`` is set, or the deadline has passed.

        Returns:
            True after a wait. False if the lock looked free at once.
        """
        looks_free = Signal()
        callback = looks_free.set
        self.add_waiter(name, callback)
        forget = stop.call_when_set(callback)
        try:
            if looks_free.is_set():
                return False
            self._wake.set()
            await Pause(self._clock, looks_free, deadline.left_s())
            return True
        finally:
            forget()
            self.remove_waiter(name, callback)

    def list_waiting_names(self) -> list[str]:
        """Return the names of the locks that have waiters, sorted."""
        with self._lock:
            return sorted(name for group in self._groups.values() for name in group.waiters)

    def list_blocking_owners(self) -> list[str]:
        """Return the IDs of the owners that hold locks with waiters, sorted."""
        with self._lock:
            return sorted(self._blocked_by)

    def notify_waiters_if_free(self, names: Iterable[str]) -> None:
        """Check whether these locks look free, and call the callbacks that wait for the free ones."""
        _call_all(
            [
                callback
                for name in names
                if not self._state.is_held_or_reserved(name)
                for callback in self._remove_waiters_if_free(name)
            ]
        )
        if self._blocked_by:
            self._wake.set()

    def notify_waiters_of_owner(self, owner: str) -> None:
        """Check the locks of an owner that was removed, and call the callbacks that wait for the free ones."""
        with self._lock:
            names = self._blocked_by.pop(owner, set())
        self.notify_waiters_if_free(names)

    def notify_waiters_of_dead_owners(self) -> float:
        """Call the callbacks that wait for locks of dead owners. Return the local clock time of the next check."""
        due = math.inf
        for owner in self.list_blocking_owners():
            dead_at = self._table.find_death_time(owner)
            if dead_at is None:
                self.notify_waiters_of_owner(owner)
            else:
                due = min(due, dead_at)
        return due

    def close_idle_watches(self) -> None:
        """Close watches that have had no waiters for a while."""
        before = self._clock.now() - _LINGER_S
        self._close_watches(lambda group: not group.waiters and before > group.idle_since)

    def close(self) -> None:
        """Close all watches and call all waiters, so that their next attempt raises ``Closed``."""
        self._closed = True
        self._close_watches(lambda _group: True)

    def _open(self, prefix: str, group: _LockGroup) -> None:
        try:
            mirror = self._table.store.mirror(self._table.lock_key(prefix), wait=False)
        except BaseException:
            self._close_watches(lambda other: other is group)  # callbacks the waiters added meanwhile, too
            raise
        mirror.on_change(partial(self._changed, group))
        with self._lock:
            group.mirror = mirror
            names = list(group.waiters)
            unwanted = self._groups.get(prefix) is not group
        if unwanted:
            mirror.close()
        self.notify_waiters_if_free(names)  # a first state that came before the mirror was put in its place

    def _changed(self, group: _LockGroup, batch: tuple[Change, ...]) -> None:
        changed = {self._table.get_lock_name(change.key) for change in batch}
        with self._lock:
            names = [name for name in changed if name in group.waiters] if group.ready else list(group.waiters)
            group.ready = True
        self.notify_waiters_if_free(names)

    def _remove_waiters_if_free(self, name: str) -> list[Callback]:
        """Remove and return the waiters of a lock, if it looks free.

        If another owner holds the lock, return none, and remember to check whether that owner is dead.
        """
        with self._lock:
            group = self._groups.get(name.partition("/")[0])
            if group is None or name not in group.waiters or group.mirror is None or not group.ready:
                return []
            owner = self._table.get_blocking_owner(group.mirror.get(self._table.lock_key(name)))
            if owner:
                self._blocked_by.setdefault(owner, set()).add(name)
            return [] if owner is not None else self._remove_waiters(group, name)

    def remove_waiter(self, name: str, callback: Callback) -> None:
        """Remove a callback that waits for a lock."""
        with self._lock:
            group = self._groups.get(name.partition("/")[0], _LockGroup())
            waiters = group.waiters.get(name, [])
            if callback in waiters:
                waiters.remove(callback)
                if not waiters:
                    self._remove_waiters(group, name)

    def _remove_waiters(self, group: _LockGroup, name: str) -> list[Callback]:
        """Remove and return all waiters of a lock. The caller holds the mutex."""
        group.idle_since = self._clock.now()
        for owner in [owner for owner, names in self._blocked_by.items() if name in names]:
            self._blocked_by[owner].discard(name)
            if not self._blocked_by[owner]:
                del self._blocked_by[owner]
        return group.waiters.pop(name)

    def _close_watches(self, unwanted: Callable[[_LockGroup], bool]) -> None:
        """Close the watches of the groups for which ``unwanted`` returns True, and call their waiters."""
        with self._lock:
            ended = [self._groups.pop(prefix) for prefix, group in list(self._groups.items()) if unwanted(group)]
            callbacks = [
                callback
                for group in ended
                for name in list(group.waiters)
                for callback in self._remove_waiters(group, name)
            ]
        for group in ended:
            if group.mirror is not None:
                group.mirror.close()
        _call_all(callbacks)


def _call_all(callbacks: Iterable[Callback]) -> None:
    for callback in callbacks:
        callback()
