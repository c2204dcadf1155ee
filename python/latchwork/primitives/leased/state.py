"""The state of a lock keeper: owners, held locks, reserved names and unconfirmed writes. No I/O, one mutex.

A call reserves the names of the locks that it writes, so that no other call of this process writes them. The call is
identified by a ``call_id``, any object. A write is unconfirmed if its outcome is unknown. The keeper resolves it once
the name is not reserved.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from latchwork.clock import Clock
from latchwork.errors import Closed
from latchwork.primitives.leased.owner import HeldLock, LockOwner
from latchwork.primitives.leased.protocol import UnconfirmedWrite
from latchwork.store.driving.notifier import Notifier
from latchwork.store.steps import Step

#: An owner without locks is given up after so many TTLs, so that an idle keeper writes nothing.
IDLE_TTLS = 2.0


class KeeperState:
    """Owners, held locks, reserved names and unconfirmed writes of a keeper. Thread-safe. Calls nothing with its mutex
    held.

    Attributes:
        current: The current owner. None before the first, and between two.
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
        self._reserved: dict[str, object] = {}
        self._unconfirmed: dict[str, UnconfirmedWrite] = {}

    def close(self) -> list[HeldLock] | None:
        """Mark the keeper as closed, so that later calls raise ``Closed``.

        Returns:
            All held locks, including lost ones. None if the keeper was already closed.
        """
        with self._changed.mutex:
            if self._is_closed:
                return None
            self._is_closed = True
            self._changed.notify_all()
            return self._all_held()

    def check_open(self) -> None:
        """Raise ``Closed`` if the keeper was closed."""
        if self._is_closed:
            raise Closed("the lock keeper was closed; create another one")

    def wait_for_change(self, version: int, timeout_s: float) -> Step[bool]:
        """Wait until another call has created an owner or failed to, the current owner has ended, or the keeper closes.

        Args:
            version: The version that ``pin_current_owner`` has returned.
            timeout_s: Seconds to wait.
        Returns:
            An awaitable.
        """
        return self._changed.wait_for_change(version, self._clock, timeout_s)

    # Owners

    def pin_current_owner(self, call_id: object) -> tuple[LockOwner | None, int]:
        """Return the current owner. Its record is not deleted until the call ends with ``record_acquired``.

        Args:
            call_id: Identifies the call that uses the owner.
        Returns:
            The owner, or None if there is no valid one, and the version to pass to ``wait_for_change``.
        """
        with self._changed.mutex:
            self.check_open()
            owner = self.current if self.current is not None and not self.current.has_ended else None
            if owner is not None:
                owner.users.add(call_id)
            return owner, self._changed.version

    def begin_creation(self, owner: LockOwner, call_id: object) -> bool:
        """Reserve the creation of an owner for the caller.

        Returns:
            True if the caller shall create it. False if an owner exists or another call is creating one.
        """
        with self._changed.mutex:
            if self._making is not None or self.current is not None:
                return False
            owner.users.add(call_id)
            self.ids.add(owner.id)
            self._making = owner
            return True

    def record_creation_result(self, owner: LockOwner, *, created: bool) -> None:
        """Record whether the creation of an owner succeeded, and wake the calls that wait for it.

        Args:
            owner: The owner.
            created: Whether it was certainly created. False if the outcome is unknown.
        """
        with self._changed.mutex:
            self._end_creation(owner, created=created)

    def end_lost_owner(self, owner: LockOwner) -> list[HeldLock] | None:
        """End the current owner because its lease has expired or another client has removed it.

        Returns:
            The locks that were lost with it. None if it is not the current owner.
        """
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

    def collect_removable_owners(self, *, end_current: bool = False) -> list[LockOwner]:
        """Return the ended owners that hold no locks. Their stored records can be deleted.

        Args:
            end_current: End the current owner first, and include owners that are in use.
        """
        with self._changed.mutex:
            if end_current and self.current is not None:
                self._ended.append(self.current)
                self.current = None
            return [owner for owner in self._ended if not owner.held and (end_current or not owner.users)]

    def find_lost_owners_with_liveness_key(self) -> list[LockOwner]:
        """Return the lost owners with locks whose liveness keys may still exist, so that other clients cannot take the
        locks.
        """
        with self._changed.mutex:
            return [owner for owner in self._ended if owner.held and owner.has_ended and owner.session is not None]

    def remove_ended_owner(self, owner: LockOwner) -> None:
        """Remove an ended owner from this object, because its stored record was deleted."""
        with self._changed.mutex:
            self._ended = [other for other in self._ended if other is not owner]

    # Holds

    def get_held_locks(self) -> dict[str, HeldLock]:
        """Return the locks that are certainly held, by name."""
        with self._changed.mutex:
            owner = self.current
            return dict(owner.held) if owner is not None and not owner.has_ended else {}

    def find_held_locks(self, names: Sequence[str]) -> tuple[list[HeldLock], list[str]]:
        """Find held locks by name, including lost ones.

        Returns:
            The held locks, and the names that are not held.
        """
        with self._changed.mutex:
            by_name = {held.name: held for held in self._all_held()}
        return [by_name[name] for name in names if name in by_name], [name for name in names if name not in by_name]

    def reserve_names(self, names: Iterable[str], call_id: object) -> list[str]:
        """Reserve lock names for a call, and return the reserved names.

        Names of locks that this keeper holds, and names that are already reserved, are left out.
        """
        with self._changed.mutex:
            self.check_open()
            claimed = [name for name in names if not self._is_held_or_reserved(name)]
            self._reserved.update(dict.fromkeys(claimed, call_id))
            return claimed

    def release_reservations(self, call_id: object) -> list[str]:
        """Release all names that a call has reserved, and return them."""
        with self._changed.mutex:
            claimed = [name for name, other in self._reserved.items() if other is call_id]
            for name in claimed:
                del self._reserved[name]
            return claimed

    def is_held_or_reserved(self, name: str) -> bool:
        """Return whether this keeper holds a lock, or a call has reserved its name."""
        with self._changed.mutex:
            return self._is_held_or_reserved(name)

    def find_reserved(self, names: Iterable[str]) -> list[str]:
        """Return those of the names that calls have reserved."""
        with self._changed.mutex:
            return [name for name in names if name in self._reserved]

    def record_acquired(
        self, owner: LockOwner, holds: Sequence[HeldLock], unconfirmed: Iterable[UnconfirmedWrite], call_id: object
    ) -> dict[str, HeldLock]:
        """Record the results of an acquisition. Ends what ``pin_current_owner`` has begun.

        Args:
            owner: The owner.
            holds: The locks that were acquired.
            unconfirmed: The writes whose outcome is unknown.
            call_id: Identifies the call.
        Returns:
            The held locks by name. Empty if the owner has ended since.
        """
        with self._changed.mutex:
            owner.users.discard(call_id)
            owner.idle_since = self._clock.now()
            self._unconfirmed.update({write.name: write for write in unconfirmed})
            if self._is_closed or owner.has_ended:  # too late: these are no holds, and must not stay in anybody's way
                self._unconfirmed.update({held.name: UnconfirmedWrite(held.name, held.entry) for held in holds})
                return {}
            for held in holds:
                for ended in self._ended:  # a lock that a lost owner held was taken again
                    ended.held.pop(held.name, None)
                owner.held[held.name] = held
        return {held.name: held for held in holds}

    def begin_release(self, holds: Iterable[HeldLock], call_id: object) -> list[UnconfirmedWrite]:
        """Remove locks from the held ones and reserve their names, before the release is sent to the server.

        An unconfirmed write is recorded for each lock, so that the background thread retries the release until the
        caller passes the writes to ``remove_unconfirmed``.

        Returns:
            The unconfirmed writes.
        """
        with self._changed.mutex:
            unconfirmed = [UnconfirmedWrite(held.name, held.entry) for held in holds]
            self._unconfirmed.update({write.name: write for write in unconfirmed})
            for held in holds:
                if held.owner.held.get(held.name) is held:
                    del held.owner.held[held.name]
                held.owner.idle_since = self._clock.now()
                self._reserved.setdefault(held.name, call_id)  # a lost one may be being taken again
        return unconfirmed

    # Doubts

    @property
    def unconfirmed_writes(self) -> list[UnconfirmedWrite]:
        """The writes whose outcome is unknown."""
        with self._changed.mutex:
            return list(self._unconfirmed.values())

    def reserve_for_resolution(self, write: UnconfirmedWrite, call_id: object) -> frozenset[str] | None:
        """Reserve the lock name of an unconfirmed write for the call that will resolve the write.

        Returns:
            IDs of this keeper's owners: if the stored lock names one of them, it must be released. None if the name
                could not be reserved, or the write was already resolved.
        """
        name = write.name
        with self._changed.mutex:
            if self._unconfirmed.get(name) is not write or name in self._reserved:
                return None
            if self._is_held_or_reserved(name):  # taken again since: the doubtful write can land no more
                del self._unconfirmed[name]
                return None
            self._reserved[name] = call_id
            # The work of a lost hold may still be running: its lock expires, or its holder releases it.
            return frozenset(self.ids - {held.owner.id for held in self._all_held() if held.name == name})

    def remove_unconfirmed(self, unconfirmed: Iterable[UnconfirmedWrite]) -> None:
        """Remove unconfirmed writes that have been resolved."""
        with self._changed.mutex:
            for write in unconfirmed:
                if self._unconfirmed.get(write.name) is write:
                    del self._unconfirmed[write.name]

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

    def _is_held_or_reserved(self, name: str) -> bool:
        owner = self.current
        return name in self._reserved or (owner is not None and name in owner.held and not owner.has_ended)
