"""The thread of a lock keeper: it renews the keeper's owner, follows the other owners, and has chores done.

Nothing here takes or releases a lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from latchwork.errors import Closed, LatchworkError

if TYPE_CHECKING:
    from latchwork.primitives.persistent.holds import LockHolds
    from latchwork.primitives.persistent.life import LockLife
    from latchwork.primitives.persistent.table import LockTable
    from latchwork.primitives.persistent.waits import LockWaits
    from latchwork.store.dispatch import Dispatcher
    from latchwork.store.mirror import Mirror
    from latchwork.types import Change

_log = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 5.0


class LockLoop:
    """Started once, stopped once. Safe to share between threads.

    Args:
        table: the keys.
        life: the keeper's owners.
        holds: what it holds, and its doubts.
        waits: who waits for what.
        dispatcher: where chores are done.
        changed: the keeper's mutex.
        wake: set to have the thread look again.
        ttl_s: of the keeper's owners.
        label: the keeper's, for messages.
    """

    def __init__(
        self,
        table: LockTable,
        life: LockLife,
        holds: LockHolds,
        waits: LockWaits,
        *,
        dispatcher: Dispatcher,
        changed: threading.Condition,
        wake: threading.Event,
        ttl_s: float,
        label: str,
    ) -> None:
        self._table = table
        self._clock = table.store.clock
        self._life = life
        self._holds = holds
        self._waits = waits
        self._changed = changed
        self._wake = wake
        self._ttl_s = ttl_s
        self._label = label
        self._chores = dispatcher.lane(self._tidy, "the chores of a lock keeper")
        self._next_chores = 0.0
        self._thread: threading.Thread | None = None
        self._mirror: Mirror | None = None
        self._stopping = False

    def start(self, refuse_closed: Callable[[], None]) -> None:
        """Follow the other owners from now on. Twice is fine."""
        with self._changed:
            refuse_closed()
            if self._thread is not None:
                return
            self._thread = threading.Thread(target=self._run, name=f"latchwork-locks-{self._label}", daemon=True)
        try:
            mirror = self._table.store.mirror(self._table.owners_prefix, wait=False)
        except BaseException:
            with self._changed:
                self._thread = None
            raise
        mirror.on_change(self._owners_changed)
        with self._changed:
            self._mirror = mirror
        self._thread.start()

    def renew_no_more(self) -> None:
        """Let what is held run out. The caller holds ``changed``."""
        self._stopping = True

    def stop(self) -> None:
        """End the thread, and delete the keys of owners that hold nothing."""
        with self._changed:
            self._stopping = True
            thread, mirror = self._thread, self._mirror
        self._wake.set()
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join(timeout=_CLOSE_TIMEOUT_S)
        if mirror is not None:
            mirror.close()

    def _run(self) -> None:
        while not self._stopping:
            try:
                due = self._step(self._clock.now())
            except Exception:  # renewing must go on, whatever went wrong once
                _log.exception("lock keeper %r: a step failed, the next one follows", self._label)
                due = self._clock.now() + self._ttl_s / 8
            if self._clock.wait(self._wake, max(0.0, due - self._clock.now())):
                self._wake.clear()
        self._life.bury(also_current=True)
        self._waits.close()

    def _step(self, now: float) -> float:
        """Do what is due; when to come back, at the latest."""
        due = [now + self._ttl_s, self._waits.fire_due(now) or now + self._ttl_s, *self._life.step(now)]
        if now >= self._next_chores:
            self._next_chores = now + self._ttl_s / 4
            if self._is_abandoned():
                self._stopping = True
            self._chores.signal()
        return min(*due, self._next_chores)

    def _is_abandoned(self) -> bool:
        """True if the store was closed and nothing is held: there is nothing left to do, ever."""
        mirror = self._mirror
        if mirror is None or self._life.current is not None:
            return False
        try:
            mirror.wait_until(lambda _mirror: False, timeout_s=0.0)
        except Closed:
            return True
        except LatchworkError:
            pass
        return False

    def _owners_changed(self, changes: Sequence[Change]) -> None:
        for owner in self._table.note(changes):
            self._life.lose_gone(owner)
            self._waits.owner_gone(owner)
        if self._unwatched():
            self._chores.signal()
        self._wake.set()

    def _unwatched(self) -> list[str]:
        """Owners in the way that were read but are not in the mirror, which will never tell when they go."""
        mirror = self._mirror
        owners = self._waits.blocking() if mirror is not None else []
        return [owner for owner in owners if mirror is not None and self._table.owner_key(owner) not in mirror]

    def _tidy(self) -> None:
        """Delete owners that ended, settle doubtful writes, look for owners that went unseen, close idle watches."""
        self._life.bury()
        self._holds.settle()
        try:
            for owner in self._table.gone(self._unwatched()):
                self._waits.owner_gone(owner)
        except LatchworkError as error:
            _log.info("owners that hold what is waited for could not be read: %s", error)
        self._waits.trim()
