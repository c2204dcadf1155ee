"""The state of a lock keeper: owners, holds, busy names and writes in doubt. No I/O, one mutex.

A name is busy while a call, its claimer, writes its lock. No other call of this process uses it meanwhile. A write is
in
doubt if it may have been applied or may still be. The keeper settles it once the name is not busy.
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


class KeeperState:
    """Owners, holds, busy names and writes in doubt of a keeper. Thread-safe. Calls nothing with its mutex held.

    Attributes:
        current: The current owner; None before the first, and between two.
        ids: The IDs of all owners of this keeper, including ended ones.
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
        """Refuse further calls. Return all held locks, including those that were lost, or None if already closed."""
        with self._changed.mutex:
            if self._is_closed:
                return None
            self._is_closed = True
            self._changed.notify_all()
            return self._all_held()

    def refuse_closed(self) -> None:
        """Raise ``Closed`` if the keeper was closed."""
        if self._is_closed:
            raise Closed("the lock keeper was closed; make another one")

    def changed_since(self, version: int, timeout_s: float) -> Step[bool]:
        """Return an awaitable that waits until an owner was created or failed, or the keeper was closed."""
        return self._changed.changed_since(version, self._clock, timeout_s)

    # Owners

    def use_owner(self, claimer: object) -> tuple[LockOwner | None, int]:
        """Return the current owner, or None if there is no valid one, and the version to pass to ``changed_since``.

        The owner is marked as used by the caller, so that it is not ended meanwhile.
        """
        with self._changed.mutex:
            self.refuse_closed()
            owner = self.current if self.current is not None and not self.current.has_ended else None
            if owner is not None:
                owner.users.add(claimer)
            return owner, self._changed.version

    def begin_creation(self, owner: LockOwner, claimer: object) -> bool:
        """Reserve the creation of an owner for the caller.

        Returns:
            False if an owner exists already or another call is creating one.
        """
        with self._changed.mutex:
            if self._making is not None or self.current is not None:
                return False
            owner.users.add(claimer)
            self.ids.add(owner.id)
            self._making = owner
            return True

    def end_creation(self, owner: LockOwner, *, created: bool) -> None:
        """Record whether an owner was created. Pass False if the outcome is unknown."""
        with self._changed.mutex:
            self._end_creation(owner, created=created)

    def lose(self, owner: LockOwner) -> list[HeldLock] | None:
        """End an owner whose lease was lost. Return its locks, which are lost too, or None if it had already ended."""
        with self._changed.mutex:
            if self.current is not owner:
                return None
            self.current = None
            self._ended.append(owner)
            owner.end()
            self._changed.notify_all()
            return list(owner.held.values())

    def end_if_idle(self, owner: LockOwner) -> bool:
        """End an owner that has held no lock for ``IDLE_TTLS`` times its TTL. Return whether it was ended."""
        with self._changed.mutex:
            idle_s = self._clock.now() - owner.idle_since
            if idle_s <= IDLE_TTLS * owner.ttl_s or owner.held or owner.users or self.current is not owner:
                return False
            self.current = None
            self._ended.append(owner)
        return True

    def find_removable_owners(self, *, also_current: bool = False) -> list[LockOwner]:
        """Return the ended owners that hold no locks, so that their stored records can be deleted.

        Args:
            also_current: Also end the current owner.
        """
        with self._changed.mutex:
            if also_current and self.current is not None:
                self._ended.append(self.current)
                self.current = None
            return [owner for owner in self._ended if not owner.held and (also_current or not owner.users)]

    def find_lost_owners_with_session(self) -> list[LockOwner]:
        """Return the owners that have expired with locks, but whose session may still make them look alive."""
        with self._changed.mutex:
            return [owner for owner in self._ended if owner.held and owner.has_ended and owner.session is not None]

    def record_removal(self, owner: LockOwner) -> None:
        """Record that the stored record of an owner was deleted."""
        with self._changed.mutex:
            self._ended = [other for other in self._ended if other is not owner]

    # Holds

    def held(self) -> dict[str, HeldLock]:
        """Return the locks that are certainly held, by name."""
        with self._changed.mutex:
            owner = self.current
            return dict(owner.held) if owner is not None and not owner.has_ended else {}

    def find(self, names: Sequence[str]) -> tuple[list[HeldLock], list[str]]:
        """Return the held locks with these names, including those that were lost, and the names that are not held."""
        with self._changed.mutex:
            by_name = {held.name: held for held in self._all_held()}
        return [by_name[name] for name in names if name in by_name], [name for name in names if name not in by_name]

    def claim(self, names: Iterable[str], claimer: object) -> list[str]:
        """Mark names as busy for the caller, except those that are held or busy already. Return the marked names."""
        with self._changed.mutex:
            self.refuse_closed()
            claimed = [name for name in names if not self._is_ours(name)]
            self._busy.update(dict.fromkeys(claimed, claimer))
            return claimed

    def end_claim(self, claimer: object) -> list[str]:
        """Remove the caller's busy marks. Return the names that were marked."""
        with self._changed.mutex:
            claimed = [name for name, other in self._busy.items() if other is claimer]
            for name in claimed:
                del self._busy[name]
            return claimed

    def is_ours(self, name: str) -> bool:
        """Return whether this keeper holds a lock or is just writing it."""
        with self._changed.mutex:
            return self._is_ours(name)

    def find_busy(self, names: Iterable[str]) -> list[str]:
        """Return those of the names that a thread of this process is just writing."""
        with self._changed.mutex:
            return [name for name in names if name in self._busy]

    def grant(
        self, owner: LockOwner, holds: Sequence[HeldLock], doubts: Iterable[InDoubt], claimer: object
    ) -> dict[str, HeldLock]:
        """Record locks that were acquired and writes in doubt, and end the caller's use of the owner.

        Returns:
            The held locks by name. Empty if the owner has ended meanwhile.
        """
        with self._changed.mutex:
            owner.users.discard(claimer)
            owner.idle_since = self._clock.now()
            self._doubts.update({doubt.name: doubt for doubt in doubts})
            if self._is_closed or owner.has_ended:  # too late: these are no holds, and must not stay in anybody's way
                self._doubts.update({held.name: InDoubt(held.name, held.entry) for held in holds})
                return {}
            for held in holds:
                for ended in self._ended:  # a lock that a lost owner held was taken again
                    ended.held.pop(held.name, None)
                owner.held[held.name] = held
        return {held.name: held for held in holds}

    def begin_release(self, holds: Iterable[HeldLock], claimer: object) -> list[InDoubt]:
        """Stop counting these locks as held and mark their names as busy. Return the writes in doubt that may result.

        The writes in doubt are recorded before the release is sent, so that they are settled whatever its outcome is.
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
        """The writes whose outcome is unknown."""
        with self._changed.mutex:
            return list(self._doubts.values())

    def begin_settling(self, doubt: InDoubt, claimer: object) -> frozenset[str] | None:
        """Mark the name of a write in doubt as busy before it is settled.

        Returns:
            The IDs of owners from which the lock may be released. None if there is nothing to do.
        """
        name = doubt.name
        with self._changed.mutex:
            if self._doubts.get(name) is not doubt or name in self._busy:
                return None
            if self._is_ours(name):  # taken again since: the doubtful write can land no more
                del self._doubts[name]
                return None
            self._busy[name] = claimer
            # The work of a lost hold may still be running: its lock expires, or its holder releases it.
            return frozenset(self.ids - {held.owner.id for held in self._all_held() if held.name == name})

    def remove_doubts(self, doubts: Iterable[InDoubt]) -> None:
        """Remove writes in doubt that have been settled."""
        with self._changed.mutex:
            for doubt in doubts:
                if self._doubts.get(doubt.name) is doubt:
                    del self._doubts[doubt.name]

    # With the mutex held

    def _end_creation(self, owner: LockOwner, *, created: bool) -> None:
        self._making = None
        if created:
            self.current = owner
        else:
            owner.users.clear()
            self._ended.append(owner)
        self._changed.notify_all()

    def _all_held(self) -> list[HeldLock]:
        owners = [owner for owner in (self.current, *self._ended) if owner is not None]
        return [held for owner in owners for held in owner.held.values()]

    def _is_ours(self, name: str) -> bool:
        owner = self.current
        return name in self._busy or (owner is not None and name in owner.held and not owner.has_ended)
