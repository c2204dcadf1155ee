"""The lives of a keeper's owners, one after the other: created when needed, renewed, then lost or given up.

An owner that ended is never renewed again; its key is deleted once nothing here counts on it.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from latchwork.backends.futures import call_at_once
from latchwork.errors import Conflict, LatchworkError, Unavailable
from latchwork.primitives.persistent.owner import HeldLock, LockOwner
from latchwork.types import Exists, Put

if TYPE_CHECKING:
    from concurrent.futures import Future

    from latchwork.primitives.persistent.protocol import OwnerRecord
    from latchwork.primitives.persistent.table import LockTable
    from latchwork.types import Committed

_log = logging.getLogger(__name__)

#: Renewals without an answer at once; one that hangs must not keep the next from being sent.
_MAX_IN_FLIGHT = 4
#: An owner without locks is given up after so many TTLs, so that an idle keeper writes nothing.
_IDLE_TTLS = 2.0


class LockLife:
    """The current owner, if any, and those that ended. Safe to share; ``changed`` guards it and its owners' fields.

    Attributes:
        current: the owner in use; None before the first and between two.
        ids: every owner there ever was here.
        within_s: owners are renewed as often as those of so short a TTL would be, if theirs is longer.
    """

    def __init__(
        self,
        table: LockTable,
        record: OwnerRecord,
        changed: threading.Condition,
        *,
        on_lost: Callable[[tuple[str, ...]], None],
        on_failed: Callable[[BaseException, float], None],
        wake: Callable[[], None],
    ) -> None:
        self.current: LockOwner | None = None
        self.ids: set[str] = set()
        self.within_s = math.inf
        self._table = table
        self._clock = table.store.clock
        self._record = record
        self._changed = changed
        self._on_lost = on_lost
        self._on_failed = on_failed
        self._wake = wake
        self._ended: list[LockOwner] = []
        self._creating = False
        self._pipeline = table.store.pipeline(max_in_flight=2 * _MAX_IN_FLIGHT)

    def all_held(self) -> list[HeldLock]:
        """Every hold not released, lost ones included. The caller holds ``changed``."""
        owners = [owner for owner in (self.current, *self._ended) if owner is not None]
        return [held for owner in owners for held in owner.held.values()]

    def forget_lost(self, name: str) -> None:
        """A lock that a lost owner held was taken again. The caller holds ``changed``."""
        for owner in self._ended:
            owner.held.pop(name, None)

    @contextmanager
    def using(self, refuse_closed: Callable[[], None]) -> Iterator[LockOwner]:
        """An owner that is not given up meanwhile; made if there is none.

        Raises:
            Unavailable, OutcomeUnknown: it could not be made.
        """
        owner = self._take_current(refuse_closed) or self._create()
        try:
            yield owner
        finally:
            with self._changed:
                owner.users -= 1
                owner.touch()

    def step(self, now: float) -> list[float]:
        """Lose, give up or renew the current owner if that is due; when something will be."""
        owner = self.current
        if owner is None:
            return []
        renew_at, expires_at = owner.next_due(self.within_s)
        if owner.is_over:
            self.lose(owner, "no renewal was confirmed in time")
            return []
        if self._give_up_idle(owner, now):
            return []
        if now >= renew_at:
            self._renew(owner)
            renew_at = owner.next_due(self.within_s)[0]
        return [renew_at, expires_at]

    def lose(self, owner: LockOwner, why: str) -> None:
        """Never renew this owner again, and tell whom it concerns."""
        with self._changed:
            if owner.lost.is_set():
                return
            owner.lost.set()
            if self.current is owner:
                self.current = None
            self._ended.append(owner)
            held = list(owner.held.values())
            self._changed.notify_all()
        for each in held:
            each.end_work()
        names = tuple(sorted(each.name for each in held))
        _log.warning("lock owner %s is lost with %d locks: %s; their work must stop", owner.id, len(names), why)
        self._on_lost(names)

    def lose_gone(self, owner_id: str) -> None:
        """The key of an owner was deleted: if it was the current one, another took over."""
        owner = self.current
        if owner is not None and owner.id == owner_id:
            self.lose(owner, "another owner took it over")

    def bury(self, *, also_current: bool = False) -> None:
        """Delete the keys of owners that ended and hold nothing; what cannot be deleted now is left for later."""
        with self._changed:
            if also_current and self.current is not None:
                self._ended.append(self.current)
                self.current = None
            owners = [owner for owner in self._ended if not owner.held and (also_current or not owner.users)]
        for owner in owners:
            try:
                self._table.delete_owner(owner.id)
            except LatchworkError as error:
                _log.info("lock owner %s is not removed yet: %s", owner.id, error)
                continue
            with self._changed:
                self._ended = [other for other in self._ended if other is not owner]

    # Making one

    def _take_current(self, refuse_closed: Callable[[], None]) -> LockOwner | None:
        """The current owner, counted as used; None when the caller has to make one, which then others wait for."""
        while True:
            with self._changed:
                refuse_closed()
                owner = self.current
                if owner is not None and not owner.is_over:
                    owner.users += 1
                    return owner
                if owner is None and not self._creating:
                    self._creating = True
                    return None
                if owner is None:
                    self._clock.wait_condition(self._changed, 1.0)
            if owner is not None:
                self.lose(owner, "no renewal was confirmed in time")

    def _create(self) -> LockOwner:
        owner = LockOwner(self._clock, self._record.ttl_s)  # its lease counts from now, before the request is sent
        created = False
        try:
            with self._changed:
                self.ids.add(owner.id)
            self._table.create_owner(owner.id, self._record)
            created = True
        finally:
            with self._changed:
                self._creating = False
                if created:
                    self.current = owner
                    owner.users += 1
                else:
                    self._ended.append(owner)  # it may have been created all the same
                self._changed.notify_all()
        self._wake()
        _log.info("lock owner %s created with a ttl of %.3g s", owner.id, self._record.ttl_s)
        return owner

    # Keeping it

    def _renew(self, owner: LockOwner) -> None:
        silent_s = owner.silent_s()
        sent_at = owner.sending()
        with self._changed:
            waiting = owner.in_flight
            owner.in_flight += 1 if waiting < _MAX_IN_FLIGHT else 0
        if waiting:
            self._failed(owner, Unavailable(f"no renewal was answered for {silent_s:.2f} s"))
        if waiting >= _MAX_IN_FLIGHT:
            return
        key = self._table.owner_key(owner.id)
        try:
            future = self._pipeline.commit([Exists(key)], [Put(key, self._record.encode())])
        except LatchworkError as error:
            self._ended_in_flight(owner)
            self._failed(owner, error)
        else:
            call_at_once(future, lambda ended: self._renewed(owner, sent_at, ended))

    def _renewed(self, owner: LockOwner, sent_at: float, future: Future[Committed]) -> None:
        """Take the answer; runs on a client library's thread."""
        self._ended_in_flight(owner)
        error = future.exception()
        if error is None:
            owner.confirm(sent_at)
        else:
            self._failed(owner, error)
        self._wake()

    def _ended_in_flight(self, owner: LockOwner) -> None:
        with self._changed:
            owner.in_flight -= 1

    def _failed(self, owner: LockOwner, error: BaseException) -> None:
        if owner is not self.current:
            return  # given up or lost while the renewal was under way
        _log.warning("lock owner %s: not renewed, %.2f s are left: %s", owner.id, owner.remaining_s(), error)
        self._on_failed(error, owner.remaining_s())
        if isinstance(error, Conflict):
            self.lose(owner, "another owner took it over")

    def _give_up_idle(self, owner: LockOwner, now: float) -> bool:
        with self._changed:
            idle = now > owner.idle_since + _IDLE_TTLS * self._record.ttl_s
            if not idle or owner.held or owner.users or self.current is not owner:
                return False
            self.current = None
            self._ended.append(owner)
        _log.debug("lock owner %s has nothing to hold and is given up", owner.id)
        return True
