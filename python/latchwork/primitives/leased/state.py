"""What one keeper holds and writes: no I/O, one mutex, and answers instead of calls.

A name is busy while some call, its claimer, writes its lock; no other call of this process touches it meanwhile.
A doubt is a write of a lock that may have landed or may still land; the keeper settles it once the name is not busy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from latchwork.clock import Clock
from latchwork.errors import Closed
from latchwork.primitives.leased.owner import HeldLock, LockOwner
from latchwork.primitives.leased.protocol import InDoubt
from latchwork.store.driving.notifier import Notifier
from latchwork.store.steps import Step

#: An owner without locks is given up after so many TTLs, so that an idle keeper writes nothing.
IDLE_TTLS = 2.0


class Holdings:
    """Owners, holds, busy names and doubts of one keeper. Safe to share; calls nobody with its mutex held.

    Attributes:
        current: the owner in use; None before the first, and between two.
        ids: the ids of all owners of this keeper, ended ones included.
    """

    def __init__(self, clock: Clock) -> None:
        self.current: LockOwner | None = None
        self.ids: set[str] = set()
        self._clock = clock
        self._changed = Notifier()
        self._is_closed = False
        self._making: LockOwner | None = None
        self._ended: list[LockOwner] = []
        self._busy: dict[str, object] = {}
        self._doubts: dict[str, InDoubt] = {}

    def close(self) -> list[HeldLock] | None:
        """Refuse everything new; returns what is held, lost holds included, or None if it was closed already."""
        with self._changed.mutex:
            if self._is_closed:
                return None
            self._is_closed = True
            self._changed.ring()
            return self._all_held()

    def refuse_closed(self) -> None:
        """Raise ``Closed`` if the keeper was closed."""
        if self._is_closed:
            raise Closed("the lock keeper was closed; make another one")

    def rung(self, rings: int, timeout_s: float) -> Step[bool]:
        """The step of waiting until an owner was made, or failed to be, or this was closed."""
        return self._changed.rung(rings, self._clock, timeout_s)

    # Owners

    def use_owner(self, claimer: object) -> tuple[LockOwner | None, int]:
        """The current owner, used by this call, and the rings so far; None if there is none, or it has run out."""
        with self._changed.mutex:
            self.refuse_closed()
            owner = self.current if self.current is not None and not self.current.is_over else None
            if owner is not None:
                owner.users.add(claimer)
            return owner, self._changed.rings

    def begin_making(self, owner: LockOwner, claimer: object) -> bool:
        """True if the caller has to create this owner, which it uses; False if there is one, or another makes one."""
        with self._changed.mutex:
            if self._making is not None or self.current is not None:
                return False
            owner.users.add(claimer)
            self.ids.add(owner.id)
            self._making = owner
            return True

    def end_making(self, owner: LockOwner, *, created: bool) -> None:
        """The owner was created, or may have been created all the same."""
        with self._changed.mutex:
            self._end_making(owner, created=created)

    def lose(self, owner: LockOwner) -> list[HeldLock] | None:
        """End this owner; returns the holds that are lost with it, or None if it had ended already."""
        with self._changed.mutex:
            if self.current is not owner:
                return None
            self.current = None
            self._ended.append(owner)
            owner.end()
            self._changed.ring()
            return list(owner.held.values())

    def give_up(self, owner: LockOwner) -> bool:
        """End an owner that has held nothing for long."""
        with self._changed.mutex:
            idle_s = self._clock.now() - owner.idle_since
            if idle_s <= IDLE_TTLS * owner.ttl_s or owner.held or owner.users or self.current is not owner:
                return False
            self.current = None
            self._ended.append(owner)
        return True

    def to_bury(self, *, also_current: bool = False) -> list[LockOwner]:
        """Owners that ended and hold nothing, whose keys can be deleted."""
        with self._changed.mutex:
            if also_current and self.current is not None:
                self._ended.append(self.current)
                self.current = None
            return [owner for owner in self._ended if not owner.held and (also_current or not owner.users)]

    def buried(self, owner: LockOwner) -> None:
        """The key of this owner is gone."""
        with self._changed.mutex:
            self._ended = [other for other in self._ended if other is not owner]

    # Holds

    def held(self) -> dict[str, HeldLock]:
        """The locks held for certain, by name."""
        with self._changed.mutex:
            owner = self.current
            return dict(owner.held) if owner is not None and not owner.is_over else {}

    def find(self, names: Sequence[str]) -> tuple[list[HeldLock], list[str]]:
        """The holds of these names, lost ones included; and the names that are not held."""
        with self._changed.mutex:
            by_name = {held.name: held for held in self._all_held()}
        return [by_name[name] for name in names if name in by_name], [name for name in names if name not in by_name]

    def claim(self, names: Iterable[str], claimer: object) -> list[str]:
        """Make these names busy, except those that are held or busy already; returns those that were claimed."""
        with self._changed.mutex:
            self.refuse_closed()
            claimed = [name for name in names if not self._is_ours(name)]
            self._busy.update(dict.fromkeys(claimed, claimer))
            return claimed

    def done_with(self, claimer: object) -> list[str]:
        """The end of a claim; returns the names that were claimed."""
        with self._changed.mutex:
            claimed = [name for name, other in self._busy.items() if other is claimer]
            for name in claimed:
                del self._busy[name]
            return claimed

    def is_ours(self, name: str) -> bool:
        """True if the lock is held here, or some thread of this process is writing it."""
        with self._changed.mutex:
            return self._is_ours(name)

    def are_busy(self, names: Iterable[str]) -> list[str]:
        """Those of the names that some thread of this process is writing."""
        with self._changed.mutex:
            return [name for name in names if name in self._busy]

    def grant(
        self, owner: LockOwner, holds: Sequence[HeldLock], doubts: Iterable[InDoubt], claimer: object
    ) -> dict[str, HeldLock]:
        """Hold what was taken, by name, and note what may have been taken. Ends this call's use of the owner."""
        with self._changed.mutex:
            owner.users.discard(claimer)
            owner.idle_since = self._clock.now()
            self._doubts.update({doubt.name: doubt for doubt in doubts})
            if self._is_closed or owner.is_over:  # too late: these are no holds, and must not stay in anybody's way
                self._doubts.update({held.name: InDoubt(held.name, held.entry) for held in holds})
                return {}
            for held in holds:
                for ended in self._ended:  # a lock that a lost owner held was taken again
                    ended.held.pop(held.name, None)
                owner.held[held.name] = held
        return {held.name: held for held in holds}

    def take_back(self, holds: Iterable[HeldLock], claimer: object) -> list[InDoubt]:
        """Forget these holds, and claim their names for their release; returns the doubts about it.

        The doubts are noted before the release is sent, so that they are settled however it ends.
        """
        with self._changed.mutex:
            doubts = [InDoubt(held.name, held.entry) for held in holds]
            self._doubts.update({doubt.name: doubt for doubt in doubts})
            for held in holds:
                if held.owner.held.get(held.name) is held:
                    del held.owner.held[held.name]
                held.owner.idle_since = self._clock.now()
                self._busy.setdefault(held.name, claimer)  # a lost one may be being taken again
        return doubts

    # Doubts

    @property
    def doubts(self) -> list[InDoubt]:
        """Writes that may have landed or may still land."""
        with self._changed.mutex:
            return list(self._doubts.values())

    def begin_settling(self, doubt: InDoubt, claimer: object) -> frozenset[str] | None:
        """Claim the name of a doubt; returns the owners whose lock may be freed, or None if there is nothing to do."""
        name = doubt.name
        with self._changed.mutex:
            if self._doubts.get(name) is not doubt or name in self._busy:
                return None
            if self._is_ours(name):  # taken again since: the doubtful write can land no more
                del self._doubts[name]
                return None
            self._busy[name] = claimer
            # A lost hold may still be at work: its lock is left to run out, or to be released by who holds it.
            return frozenset(self.ids - {held.owner.id for held in self._all_held() if held.name == name})

    def settled(self, doubts: Iterable[InDoubt]) -> None:
        """These are no doubts any more."""
        with self._changed.mutex:
            for doubt in doubts:
                if self._doubts.get(doubt.name) is doubt:
                    del self._doubts[doubt.name]

    # With the mutex held

    def _end_making(self, owner: LockOwner, *, created: bool) -> None:
        self._making = None
        if created:
            self.current = owner
        else:
            owner.users.clear()
            self._ended.append(owner)
        self._changed.ring()

    def _all_held(self) -> list[HeldLock]:
        owners = [owner for owner in (self.current, *self._ended) if owner is not None]
        return [held for owner in owners for held in owner.held.values()]

    def _is_ours(self, name: str) -> bool:
        owner = self.current
        return name in self._busy or (owner is not None and name in owner.held and not owner.is_over)
