"""Acquires locks for a lock keeper. Locks acquired before an error remain held.

docs/design/locks.md has the race analysis.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from latchwork._base.event import Signal
from latchwork.errors import Closed, Conflict, LatchworkError, OutcomeUnknown, Unavailable, WaitTimeout
from latchwork.primitives.leased.inspect import read_state
from latchwork.primitives.leased.maintenance import KeeperMaintenance
from latchwork.primitives.leased.owner import HeldLock, LockOwner
from latchwork.primitives.leased.protocol import UnconfirmedWrite
from latchwork.primitives.waiting.arguments import check_name, raise_if_in_callback
from latchwork.primitives.waiting.deadline import Deadline
from latchwork.store.backoff import Backoff
from latchwork.store.steps import Pause, StepCoroutine, undone_if_interrupted
from latchwork.types import At, Entry

_log = logging.getLogger(__name__)
T = TypeVar("T")


class LockAcquirer:
    """Acquires locks for a lock keeper. Thread-safe.

    Args:
        core: State and background work of the keeper.
    """

    def __init__(self, core: KeeperMaintenance) -> None:
        self._core = core
        self._state = core.state
        self._table = core.table
        self._clock = core.clock

    async def acquire(self, name: str, timeout_s: float | None, stop: Signal) -> HeldLock:
        """Wait for a lock and acquire it.

        Args:
            name: Name of the lock.
            timeout_s: Seconds to wait. None waits forever, 0 tries once.
            stop: Ends the wait when it is set.
        Raises:
            Closed: ``stop`` was set before the lock was acquired.
        """
        check_name(name, "lock")
        self._core.fork_guard.check()
        raise_if_in_callback(f"lock {name!r}", timeout_s)
        deadline, backoff = Deadline(self._clock, timeout_s), Backoff()
        while True:
            last_error: LatchworkError | None = None
            try:
                held = (await self.acquire_free([name])).get(name)
            except (Unavailable, OutcomeUnknown) as error:
                held, last_error = None, error
            if held is not None:
                return held
            if deadline.has_passed:
                raise last_error or WaitTimeout(await self._still_held(name, timeout_s))
            pause_s = backoff.next_s()
            if last_error is None and await self._core.waits.wait_until_free(name, deadline, stop):
                backoff.reset()
            elif not stop.is_set():
                await self._sleep(deadline.left_s(pause_s))
            if stop.is_set():
                raise Closed(f"lock {name!r} was closed while waiting; create another one")

    async def acquire_free(self, names: Sequence[str]) -> dict[str, HeldLock]:
        """Acquire the locks that are free, without waiting.

        Returns:
            The acquired locks by name.
        Raises:
            Unavailable, OutcomeUnknown: The server failed before any lock was acquired. If some locks were acquired
                before, they are returned instead.
        """
        self._core.start()
        acquired, call_id = dict[str, HeldLock](), object()
        try:
            undo = undone_if_interrupted(lambda: self._core.release_in_background(list(acquired.values())))
            with undo, self._reserve_names(names, call_id) as claimed:
                await self._acquire_missing(claimed, acquired, call_id)
        except (Unavailable, OutcomeUnknown) as error:
            if not acquired:
                raise
            _log.warning("%d of %d locks were taken, then: %s", len(acquired), len(names), error)
        return acquired

    async def _acquire_missing(
        self, names: Sequence[str], acquired: dict[str, HeldLock], call_id: object, from_owner: str | None = None
    ) -> None:
        """Acquire the free locks that are not yet in ``acquired``. If our owner was removed, retry with a new one.

        Args:
            names: Names of the locks.
            acquired: Receives the acquired locks by name.
            call_id: Identifies the call that has reserved the names.
            from_owner: ID of the owner to take the locks over from, whether it is alive or dead. None acquires free
                locks and locks of dead owners.
        """
        while left := [name for name in names if name not in acquired]:
            owner = await self._get_or_create_owner(call_id)
            written: dict[str, Entry | UnconfirmedWrite] = {}
            try:
                await self._table.acquire(left, owner.id, written, from_owner=from_owner)
            except Conflict:
                pass  # our own O is gone
            else:
                return
            finally:
                acquired.update(self._record_acquired(owner, written, call_id))
            self._core.on_owner_lost(owner, "another owner took it over")

    async def _get_or_create_owner(self, call_id: object) -> LockOwner:
        """Return the current owner of this keeper's locks. Create one if there is none.

        The record of the owner is not deleted before the call ``call_id`` has recorded its results.
        """
        while True:
            self._core.check_owner_expiry()
            owner, version = self._state.pin_current_owner(call_id)
            if owner is not None:
                return owner
            owner = LockOwner(
                self._clock,
                self._core.ttl_s,
                self._core.fork_guard,
                session=self._core.renewals.find_session(),
                renew=self._core.renewals.renew,
                renewed=self._core.handle_renewal_result,
                release=self._core.release,
            )
            if self._state.begin_creation(owner, call_id):
                await self._create_owner(owner)
                return owner
            await self._state.wait_for_change(version, 1.0)  # another thread makes one

    async def _create_owner(self, owner: LockOwner) -> None:
        created = False
        try:
            await self._core.renewals.create(owner)
            created = True
        finally:
            self._state.record_creation_result(owner, created=created)
        owner.start_following_session(self._core.wake.set)
        self._core.wake.set()
        _log.info("lock owner %s created with a ttl of %.3g s", owner.id, self._core.ttl_s)

    def _record_acquired(
        self, owner: LockOwner, written: dict[str, Entry | UnconfirmedWrite], call_id: object
    ) -> dict[str, HeldLock]:
        holds, unconfirmed = [], []
        for name, result in written.items():
            if isinstance(result, UnconfirmedWrite):
                unconfirmed.append(result)
            else:
                holds.append(HeldLock(owner, name, result, self._core.store.fence(result.token, At(result))))
        acquired = self._state.record_acquired(owner, holds, unconfirmed, call_id)
        for name, held in acquired.items():
            _log.debug("lock %r taken by owner %s with token %d", name, owner.id, held.fence.token)
        return acquired

    @contextmanager
    def _reserve_names(self, names: Iterable[str], call_id: object) -> Iterator[list[str]]:
        """Reserve names for a call until the ``with`` block ends, and return the reserved names.

        A name is not reserved if this keeper holds its lock, or if another call has reserved it.
        """
        try:
            yield self._state.reserve_names(names, call_id)
        finally:
            self._core.release_reservations(call_id)

    async def _sleep(self, seconds: float | None) -> None:
        await Pause(self._clock, self._core.closing, seconds)

    async def _still_held(self, name: str, timeout_s: float | None) -> str:
        try:
            holder = (await read_state(self._table, name)).holder
        except LatchworkError:
            holder = None
        return (
            f"lock {name!r} is held by {holder or 'somebody else'} after {timeout_s or 0.0:.3g} s; "
            f"raise timeout_s, or list its holders"
        )

    # Adopting

    async def adopt(self, old_owner: str, names: Collection[str] | None, deadline: Deadline) -> dict[str, HeldLock]:
        """Take over the locks of another owner, and then delete that owner.

        The owner is renewed once before, so that no client considers it dead meanwhile. It is deleted last, so that a
        lock that it acquired after our read becomes free. It is not deleted if it keeps some locks.

        Args:
            old_owner: ID of the other owner.
            names: Take over only these locks. None for all locks of the owner.
            deadline: When to stop retrying after errors.
        Returns:
            The acquired locks by name.
        Raises:
            Unavailable, OutcomeUnknown: The deadline has passed. Locks acquired before the error are held.
        """
        backoff = Backoff()
        acquired: dict[str, HeldLock] = {}
        await self._retry(lambda: self._table.renew_for_adoption(old_owner), deadline, backoff)
        found = await self._retry(lambda: self._table.list_locks_of_owner(old_owner), deadline, backoff)
        left = wanted = [name for name in found if names is None or name in names]
        call_id = object()
        with undone_if_interrupted(lambda: self._core.release_in_background(list(acquired.values()))):
            while left:
                with self._reserve_names(
                    left, call_id
                ) as claimed:  # also during the pause: no other thread settles unconfirmed
                    await self._retry(
                        partial(self._acquire_missing, claimed, acquired, call_id, old_owner), deadline, backoff
                    )
                left = self._state.find_reserved(name for name in left if name not in acquired)
                if left and not await self._pause_before_retry(deadline, backoff):  # another thread is taking them
                    return acquired
            if len(wanted) == len(found):
                await self._core.delete(old_owner)
            return acquired

    async def _retry(self, step: Callable[[], StepCoroutine[T]], deadline: Deadline, backoff: Backoff) -> T:
        """Call ``step`` until it succeeds, and return its result.

        Args:
            step: The call to repeat.
            deadline: When to stop retrying after errors.
            backoff: The delays between two calls.
        Raises:
            Unavailable, OutcomeUnknown: The last call failed after the deadline, or the keeper is closing.
        """
        while True:
            try:
                return await step()
            except (Unavailable, OutcomeUnknown):
                if not await self._pause_before_retry(deadline, backoff):
                    raise

    async def _pause_before_retry(self, deadline: Deadline, backoff: Backoff) -> bool:
        """Wait for the backoff delay after an error. Return False without waiting if the deadline has passed."""
        if deadline.has_passed or self._core.closing.is_set():
            return False
        await self._sleep(deadline.left_s(backoff.next_s()))
        return True
