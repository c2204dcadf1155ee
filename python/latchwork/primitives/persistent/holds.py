"""What a keeper holds, takes and gives back, and the writes it is in doubt about.

A name is busy while some thread of this process writes its lock; nobody else of this process touches it meanwhile.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from latchwork.errors import Conflict, LatchworkError, LockLost, OutcomeUnknown, Unavailable
from latchwork.primitives.persistent.owner import HeldLock, LockOwner
from latchwork.primitives.persistent.table import Doubt, Doubtful, LockTable

if TYPE_CHECKING:
    from latchwork.primitives.persistent.life import LockLife
    from latchwork.types import Entry

_log = logging.getLogger(__name__)

T = TypeVar("T")


class LockHolds:
    """Holds and doubts by name. Safe to share between threads; ``changed`` guards them and the owners' fields.

    Args:
        table: the keys.
        life: the owners.
        changed: the keeper's mutex.
        refuse_closed: raises ``Closed`` once the keeper is; called with ``changed`` held.
        poke: told of names whose state here has changed; called without ``changed``.
    """

    def __init__(
        self,
        table: LockTable,
        life: LockLife,
        changed: threading.Condition,
        *,
        refuse_closed: Callable[[], None],
        poke: Callable[[Iterable[str]], None],
    ) -> None:
        self._table = table
        self._life = life
        self._changed = changed
        self._refuse_closed = refuse_closed
        self._poke = poke
        self._busy: set[str] = set()
        self._doubts: dict[str, Doubt] = {}

    @property
    def doubts(self) -> int:
        """Writes that may have landed or may land yet."""
        return len(self._doubts)

    def now(self) -> dict[str, HeldLock]:
        """The locks held for certain, by name."""
        with self._changed:
            owner = self._life.current
            return dict(owner.held) if owner is not None and not owner.is_over else {}

    def is_ours(self, name: str) -> bool:
        """True if this process holds the lock or is writing it just now."""
        with self._changed:
            return self._is_ours(name)

    def take(self, names: Sequence[str], make: Callable[[LockOwner, str, Entry], HeldLock]) -> dict[str, HeldLock]:
        """Take those of the locks that can be had now.

        Raises:
            Unavailable, OutcomeUnknown: and nothing was taken; else what was taken so far is returned.
        """
        granted: dict[str, HeldLock] = {}
        with self._claimed(names) as claimed:
            try:
                self._take(claimed, partial(self._grant, make, granted), granted)
            except (Unavailable, OutcomeUnknown) as error:
                if not granted:
                    raise
                _log.warning("%d of %d locks were taken, then: %s", len(granted), len(claimed), error)
        return granted

    def adopt(
        self,
        old: str,
        only: Collection[str] | None,
        make: Callable[[LockOwner, str, Entry], HeldLock],
        keep_on: Callable[[], bool],
    ) -> dict[str, HeldLock]:
        """Take what another owner holds, from it and from nobody else; then remove it, unless it keeps some.

        It is renewed once before, so that no third one takes it for dead meanwhile; and removed last, so that whatever
        it took after we had looked is free then. ``keep_on`` pauses after trouble; False when there is no more time.

        Raises:
            Unavailable, OutcomeUnknown: not everything was taken; what was, is held.
        """
        granted: dict[str, HeldLock] = {}
        _persist(lambda: self._table.prolong(old), keep_on)
        found = _persist(lambda: self._table.held_by(old), keep_on)
        names = [name for name in found if only is None or name in only]
        left = names
        while left:
            self._inherit(left, old, partial(self._grant, make, granted), granted, keep_on=keep_on)
            left = [name for name in left if name not in granted and self._is_busy(name)]
            if left and not keep_on():  # another thread of ours is trying to have them just now
                return granted
        if len(names) == len(found):
            self._remove(old)
        return granted

    def _inherit(
        self,
        names: Sequence[str],
        old: str,
        grant: Callable[[LockOwner, str, Entry], None],
        granted: dict[str, HeldLock],
        *,
        keep_on: Callable[[], bool],
    ) -> None:
        with self._claimed(names) as claimed:  # also while we pause: nobody settles what is in doubt
            _persist(lambda: self._take([n for n in claimed if n not in granted], grant, granted, old), keep_on)

    def _is_busy(self, name: str) -> bool:
        with self._changed:
            return name in self._busy

    def _remove(self, owner: str) -> None:
        try:
            self._table.delete_owner(owner)
        except LatchworkError as error:
            _log.info("lock owner %s, which has nothing any more, is left to run out: %s", owner, error)

    def release(self, names: Iterable[str]) -> None:
        """Give back what is held under these names, lost holds included.

        Raises:
            LockLost: some had run out or were not held; all the others are released all the same.
        """
        wanted = list(dict.fromkeys(names))
        with self._changed:
            by_name = {held.name: held for held in self._life.all_held()}
        found = [by_name[name] for name in wanted if name in by_name]
        self._release(found, [name for name in wanted if name not in by_name])

    def release_these(self, locks: Sequence[HeldLock]) -> None:
        """Give exactly these holds back; see ``release``."""
        with self._changed:
            found = [held for held in locks if held.owner.held.get(held.name) is held]
        self._release(found, [held.name for held in locks if held not in found])

    def give_back(self, found: Sequence[HeldLock]) -> list[str]:
        """Free these locks on the server, now or later; the names of those that were taken by another."""
        with self._changed:
            for held in found:
                held.owner.held.pop(held.name, None)
                held.owner.touch()
            entries = {held.name: held.entry for held in found}
            ours = entries.keys() - self._busy  # a lost one may be being taken again by another thread
            self._busy |= ours
        for held in found:
            held.end_work()
        try:
            return self._table.free(entries)
        except LatchworkError as error:
            _log.warning("%d locks are not released yet: %s", len(entries), error)
            self._remember([Doubt(name, entry) for name, entry in entries.items()])
            return []
        finally:
            self._done_with(ours)

    def settle(self) -> None:
        """Try to end every doubt; what cannot be settled now is left for later."""
        with self._changed:
            doubts = list(self._doubts.values())
        for doubt in doubts:
            self._settle(doubt)

    # Private

    def _is_ours(self, name: str) -> bool:
        owner = self._life.current
        return name in self._busy or (owner is not None and name in owner.held and not owner.is_over)

    @contextmanager
    def _claimed(self, names: Sequence[str]) -> Iterator[list[str]]:
        """Keep other threads of this process off these names, except those that are ours or theirs already."""
        with self._changed:
            self._refuse_closed()
            claimed = [name for name in names if not self._is_ours(name)]
            self._busy.update(claimed)
        try:
            yield claimed
        finally:
            self._done_with(claimed)

    def _done_with(self, names: Iterable[str]) -> None:
        with self._changed:
            self._busy.difference_update(names)
        self._poke(names)

    def _take(
        self,
        names: Sequence[str],
        grant: Callable[[LockOwner, str, Entry], None],
        granted: dict[str, HeldLock],
        heir_of: str | None = None,
    ) -> None:
        left = list(names)
        while left:
            with self._life.using(self._refuse_closed) as owner:
                try:
                    self._table.take(left, owner.id, partial(grant, owner), heir_of=heir_of)
                    return
                except Doubtful as error:
                    self._remember(error.doubts)
                    raise
                except Conflict:
                    self._life.lose(owner, "another owner took it over")
            left = [name for name in left if name not in granted]

    def _grant(
        self,
        make: Callable[[LockOwner, str, Entry], HeldLock],
        granted: dict[str, HeldLock],
        owner: LockOwner,
        name: str,
        entry: Entry,
    ) -> None:
        held = make(owner, name, entry)
        with self._changed:
            try:
                self._refuse_closed()
                too_late = owner.is_over
            except LatchworkError:
                too_late = True
            if too_late:  # it is no hold, and must not stay in anybody's way
                self._doubts[name] = Doubt(name, entry)
                return
            self._life.forget_lost(name)
            owner.held[name] = granted[name] = held
        _log.debug("lock %r taken by owner %s with token %d", name, owner.id, entry.token)

    def _release(self, found: Sequence[HeldLock], missing: list[str]) -> None:
        lost = [held.name for held in found if held.owner.is_over]
        gone = self.give_back(found)
        failed = sorted({*lost, *gone, *missing})
        if failed:
            raise LockLost(
                f"{len(failed)} locks were not held any more when they were released ({', '.join(failed[:5])}); "
                f"what they protected may have been done by another as well"
            )

    def _remember(self, doubts: Iterable[Doubt]) -> None:
        with self._changed:
            self._doubts.update({doubt.name: doubt for doubt in doubts})

    def _settle(self, doubt: Doubt) -> None:
        name = doubt.name
        with self._changed:
            if self._doubts.get(name) is not doubt or name in self._busy:
                return
            if self._is_ours(name):  # taken again since: the doubtful write can land no more
                del self._doubts[name]
                return
            self._busy.add(name)
            # A lost hold may still be at work: its lock is left to run out, or to be released by who holds it.
            ours = self._life.ids - {held.owner.id for held in self._life.all_held() if held.name == name}
        try:
            self._table.settle(doubt, frozenset(ours))
            with self._changed:
                if self._doubts.get(name) is doubt:
                    del self._doubts[name]
        except LatchworkError as error:
            _log.info("lock %r is not settled yet: %s", name, error)
        finally:
            self._done_with([name])


def _persist(step: Callable[[], T], keep_on: Callable[[], bool]) -> T:
    """Do something with the server, again and again while it cannot be reached and there is time."""
    while True:
        try:
            return step()
        except (Unavailable, OutcomeUnknown):
            if not keep_on():
                raise
