"""Who waits for which lock, and when it is worth trying again: by watch, without a thread per waiter.

A name of several segments is watched together with all names that share its first one, so that thousands of waits of
one job cost one watch; a name of one segment is watched alone. Watches outlast their last waiter a little.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from latchwork.primitives.persistent.protocol import LockRecord

if TYPE_CHECKING:
    from latchwork.primitives.persistent.table import LockTable
    from latchwork.primitives.waiting.common import Patience
    from latchwork.store.mirror import Mirror
    from latchwork.types import Change

#: Seconds a watch is kept after its last waiter went.
_LINGER_S = 20.0


@dataclass(slots=True, eq=False)
class _Group:
    names: set[str] = field(default_factory=set)
    mirror: Mirror | None = None
    ready: bool = False
    idle_since: float = 0.0


class LockWaits:
    """Waiters by name. Safe to share between threads; calls nobody with its mutex held."""

    def __init__(self, table: LockTable, is_ours: Callable[[str], bool], on_blocked: Callable[[], None]) -> None:
        self._table = table
        self._is_ours = is_ours
        self._on_blocked = on_blocked
        self._clock = table.store.clock
        self._lock = threading.Lock()
        self._waiters: dict[str, list[Callable[[], None]]] = {}
        self._groups: dict[str, _Group] = {}
        self._blocked_by: dict[str, set[str]] = {}
        self._closed = False

    def add(self, name: str, fire: Callable[[], None]) -> Callable[[], None]:
        """Call ``fire``, which must not block, once, when the lock looks free, maybe at once; returns what cancels."""
        prefix = name.partition("/")[0]
        with self._lock:
            closed = self._closed
            group = self._groups.get(prefix)
            is_new = group is None and not closed
            if not closed:
                self._waiters.setdefault(name, []).append(fire)
                group = group or self._groups.setdefault(prefix, _Group())
                group.names.add(name)
        if closed:
            fire()
        elif is_new and group is not None:
            self._open(prefix, group)
        self.poke([name])
        return lambda: self._cancel(name, fire)

    def wait_free(self, name: str, patience: Patience) -> bool:
        """Wait until the lock looks free or the time is over; False if it looked free at once."""
        looks_free = threading.Event()
        cancel = self.add(name, looks_free.set)
        try:
            if looks_free.is_set():
                return False
            self._on_blocked()
            self._clock.wait(looks_free, patience.left_s())
            return True
        finally:
            cancel()

    def names(self) -> list[str]:
        """The names waited for, sorted."""
        with self._lock:
            return sorted(self._waiters)

    def blocking(self) -> list[str]:
        """The owners whose locks are waited for, sorted."""
        with self._lock:
            return sorted(self._blocked_by)

    def poke(self, names: Iterable[str]) -> None:
        """Look at these names again, and fire those that look free."""
        fires: list[Callable[[], None]] = []
        for name in names:
            if self._looks_free(name):
                with self._lock:
                    fires += self._waiters.pop(name, [])
                    self._drop_name(name)
        for fire in fires:
            fire()
        if self._blocked_by:
            self._on_blocked()

    def owner_gone(self, owner: str) -> None:
        """An owner was removed: what it held is free."""
        with self._lock:
            names = self._blocked_by.pop(owner, set())
        self.poke(names)

    def fire_due(self, now: float) -> float | None:
        """Fire what waits for owners that are dead by now; when to ask again, None if nothing is in sight."""
        with self._lock:
            owners = list(self._blocked_by)
        next_due: float | None = None
        for owner in owners:
            seen = self._table.sighting(owner)
            if seen is None or seen.dead_at <= now:
                self.owner_gone(owner)
            else:
                next_due = seen.dead_at if next_due is None else min(next_due, seen.dead_at)
        return next_due

    def trim(self) -> None:
        """Close watches that nobody has needed for a while."""
        self._close_mirrors(lambda group: not group.names and self._clock.now() > group.idle_since + _LINGER_S)

    def close(self) -> None:
        """Close every watch and fire every waiter, which then finds out."""
        with self._lock:
            self._closed = True
            fires = [fire for waiters in self._waiters.values() for fire in waiters]
            self._waiters.clear()
        self._close_mirrors(lambda _group: True)
        for fire in fires:
            fire()

    def _open(self, prefix: str, group: _Group) -> None:
        try:
            mirror = self._table.store.mirror(self._table.lock_key(prefix), wait=False)
        except BaseException:
            with self._lock:
                self._groups.pop(prefix, None)
            raise
        mirror.on_change(lambda batch: self._changed(group, batch))
        with self._lock:
            group.mirror = mirror
            unwanted = self._closed or self._groups.get(prefix) is not group
        if unwanted:
            mirror.close()
        else:  # a first state that came before the mirror was put in its place
            self.poke(list(group.names))

    def _changed(self, group: _Group, batch: tuple[Change, ...]) -> None:
        changed = {self._table.name_of(change.key) for change in batch}
        with self._lock:
            names = [name for name in changed if name in group.names] if group.ready else list(group.names)
            group.ready = True
        self.poke(names)

    def _looks_free(self, name: str) -> bool:
        if self._is_ours(name):
            return False
        with self._lock:
            group = self._groups.get(name.partition("/")[0])
            if name not in self._waiters or group is None or group.mirror is None or not group.ready:
                return False
            entry = group.mirror.get(self._table.lock_key(name))
            record = LockRecord.decode(entry.value) if entry is not None else LockRecord()
            if record is None or record.owner is None:
                return record is not None
            seen = self._table.sighting(record.owner)
            if seen is None or seen.dead_at <= self._clock.now():
                return True
            self._blocked_by.setdefault(record.owner, set()).add(name)
            return False

    def _cancel(self, name: str, fire: Callable[[], None]) -> None:
        with self._lock:
            waiters = self._waiters.get(name, [])
            if fire in waiters:
                waiters.remove(fire)
            if not waiters:
                self._waiters.pop(name, None)
                self._drop_name(name)

    def _drop_name(self, name: str) -> None:
        group = self._groups.get(name.partition("/")[0])
        if group is not None and name not in self._waiters:
            group.names.discard(name)
            group.idle_since = self._clock.now()
            for owner in [owner for owner, names in self._blocked_by.items() if name in names]:
                self._blocked_by[owner].discard(name)
                if not self._blocked_by[owner]:
                    del self._blocked_by[owner]

    def _close_mirrors(self, unwanted: Callable[[_Group], bool]) -> None:
        with self._lock:
            found = [prefix for prefix, group in self._groups.items() if unwanted(group)]
            mirrors = [self._groups.pop(prefix).mirror for prefix in found]
        for mirror in mirrors:
            if mirror is not None:
                mirror.close()
