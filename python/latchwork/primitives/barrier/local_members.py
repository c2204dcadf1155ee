"""The members of a barrier in one process, which combine their reads and writes.

A single member uses the store directly. With more members, their reads are combined, their arrivals share transactions,
and one watch of the barrier's state wakes all, so a hundred members cost about as much as their processes. This module
makes no decisions, and a member that is not woken for a while watches by itself.

Tasks of event loops are not combined, because a loop may end at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from weakref import WeakKeyDictionary

from latchwork._base.event import Signal
from latchwork._base.execution_context import current_task_caller
from latchwork._base.interrupts import mutex
from latchwork.errors import BadRecord, Conflict, LatchworkError, TransactionTooLarge, Unavailable
from latchwork.primitives.barrier.phases import BarrierRecord
from latchwork.primitives.waiting.waiter import Waiter
from latchwork.store.driving.background import Background
from latchwork.store.driving.notifier import Notifier
from latchwork.store.mirror import Mirror
from latchwork.store.steps import Pause, PendingCall, ask
from latchwork.store.store import Store
from latchwork.store.watch import Batch
from latchwork.types import At, Check, Delete, Entry, Fence, Op

#: Maximum number of checks and of writes in a transaction: fewer than any store allows.
_MOST_CHECKS, _MOST_OPS = 90, 60
#: One member of this process opens a phase. A member that has waited this many seconds opens it, too.
_OPENS_S = 0.5


@dataclass(eq=False)
class _Request:
    """A read or write that one member requests, and its answer.

    Attributes:
        keys: Keys to read; empty for a write.
        checks, ops: The transaction.
        done: Set once ``entries`` or ``error`` is known.
    """

    keys: Sequence[str] = ()
    checks: Sequence[Check] = ()
    ops: Sequence[Op] = ()
    done: Signal = field(default_factory=Signal)
    entries: Sequence[Entry | None] = ()
    error: BaseException | None = None

    @property
    def weight(self) -> int:
        """The number of checks in the transaction, counting those inside fences."""
        return sum(len(check.checks) if isinstance(check, Fence) else 1 for check in self.checks)

    def result(self) -> Sequence[Entry | None]:
        """Return the entries of an answered request, or raise its error."""
        if self.error is not None:
            raise self.error
        return self.entries

    def answer(self, entries: Sequence[Entry | None]) -> None:
        self.entries = entries
        self.done.set()

    def refuse(self, error: BaseException) -> None:
        self.error = error
        self.done.set()


class LocalMembers:
    """The members of one barrier on one store in one process, which share requests and a watch. Thread-safe.

    Args:
        store: The store of the barrier.
        name: Name of the barrier.
        on_empty: Called with this object when its last member has left.
    """

    def __init__(self, store: Store, name: str, on_empty: Callable[[LocalMembers], object] = bool) -> None:
        self.clock = store.clock
        self._store = store
        self._name = name
        self._state_key = f"{name}/barrier"
        self._on_empty = on_empty
        self._notifier = Notifier()
        self._members: list[object] = []
        self._waiting: list[_Request] = []
        self._thread: Background | None = None
        self._lock = mutex()
        self._listening: dict[Signal, int] = {}
        self._mirror: Mirror | None = None
        self._begins = False
        self._follower: tuple[object, int] | None = None
        self._opener: tuple[object, int, Signal] | None = None

    # Members

    def add_member(self, member: object) -> None:
        """Add a member that begins to wait in this process."""
        self._members.append(member)

    def remove_member(self, member: object) -> None:
        """Remove a member that no longer waits. Idempotent."""
        with suppress(ValueError):
            self._members.remove(member)
        follower = self._follower
        if follower is not None and follower[0] is member:
            self._follower = None
        self.finish_first_arrival(member)
        if not self._members:
            self._on_empty(self)
            with self._notifier.mutex:
                self._notifier.notify_all()

    def try_become_watcher(self, member: object, phase: int) -> bool:
        """Return whether this member shall watch the arrivals for all members of this process.

        The first member that asks for a phase gets True, and the others False.
        """
        with self._lock:
            if self._follower is None or self._follower[1] != phase:
                self._follower = (member, phase)
            return self._follower[0] is member

    def reserve_first_arrival(self, member: object, phase: int) -> Signal | None:
        """Reserve the first arrival at a phase for this member, so that only one member of this process writes it.

        Returns:
            None if this member shall write it. Otherwise a signal that is set when the member that has reserved it has
            finished.
        """
        with self._lock:
            if self._opener is None or self._opener[1] != phase:
                self._opener = (member, phase, Signal())
            return None if self._opener[0] is member else self._opener[2]

    def finish_first_arrival(self, member: object) -> None:
        """Record that this member's attempt to write a first arrival has ended, and wake the members that wait for it.
        Idempotent.
        """
        opener = self._opener
        if opener is not None and opener[0] is member:
            self._opener = None
            opener[2].set()

    @property
    def _is_single(self) -> bool:
        return len(self._members) < 2

    # Calls

    async def get_many(self, keys: Sequence[str]) -> Sequence[Entry | None]:
        """Read these keys in one request, together with the reads of other members.

        Returns:
            The entries in the order of ``keys``, None for a missing key. They are read after this call began.
        """
        if self._is_single:
            found: Sequence[Entry | None] = await ask(self._store.get_many, list(keys))
            return found
        return await self._ask(_Request(keys=keys))

    async def commit(self, checks: Sequence[Check], ops: Sequence[Op]) -> Sequence[Entry | None]:
        """Commit a transaction, together with those of other members. Return the written entries in order."""
        if self._is_single:
            return (await ask(self._store.commit, checks, ops)).entries
        return await self._ask(_Request(checks=checks, ops=ops))

    async def commit_opening(
        self, opening: tuple[Sequence[Check], Sequence[Op]], arrival: tuple[Sequence[Check], Sequence[Op]]
    ) -> tuple[Sequence[Entry | None], Conflict | None]:
        """Commit the opening of a phase and the arrival of the same member at the same time, as two transactions.

        The opening is sent first, but the server may apply the arrival first.

        Returns:
            The entries that both have written, those of the arrival last; and the conflict of a refused opening, which
                has written none.
        Raises:
            Conflict: The arrival was refused. The opening may have been written.
        """
        if not self._is_single:
            opens, arrives = _Request(checks=opening[0], ops=opening[1]), _Request(checks=arrival[0], ops=arrival[1])
            await self._send(opens, arrives)
            written = arrives.result()
            return (written, opens.error) if isinstance(opens.error, Conflict) else ([*opens.result(), *written], None)
        pending = self._store.start_call("commit", *opening)
        arrived = await ask(self._store.commit, *arrival)
        try:
            opened = await PendingCall(pending)
        except Conflict as error:
            return arrived.entries, error
        return [*opened.entries, *arrived.entries], None

    async def delete(self, entry: Entry) -> None:
        """Delete a key if its entry is unchanged since it was read."""
        if self._is_single:
            await ask(self._store.delete, entry.key, version=entry.version)
        else:
            await self._ask(_Request(checks=[At(entry)], ops=[Delete(entry.key)]))

    async def _ask(self, request: _Request) -> Sequence[Entry | None]:
        await self._send(request)
        return request.result()

    async def _send(self, *requests: _Request) -> None:
        """Send requests, together with those of other members, and wait for their answers."""
        with self._notifier.mutex:
            self._waiting += requests
            self._notifier.notify_all()
            if self._thread is None:
                self._thread = Background(self._run, f"latchwork-barrier-{self._name}")
        for request in requests:
            await Pause(self._store.clock, request.done, None)

    async def _run(self) -> None:
        taken: list[_Request] = []
        try:
            while True:
                with self._notifier.mutex:
                    taken, self._waiting = _next_batch(self._waiting)
                    version = self._notifier.version
                    if not taken and not self._members:
                        self._thread = None
                        return
                if not taken:
                    await self._notifier.wait_for_change(version, self._store.clock, None)
                elif taken[0].keys:
                    await self._read(taken)
                else:
                    await self._commit(taken)
        except BaseException as error:
            with self._notifier.mutex:
                left, self._waiting, self._thread = [*taken, *self._waiting], [], None
            for request in left:
                request.refuse(Unavailable(f"barrier {self._name!r}: the call was not made: {error}"))
            raise

    async def _read(self, requests: Sequence[_Request]) -> None:
        keys = list(dict.fromkeys(key for request in requests for key in request.keys))
        try:
            found = dict(zip(keys, await ask(self._store.get_many, keys), strict=True))
        except LatchworkError as error:
            for request in requests:
                request.refuse(error)
        else:
            for request in requests:
                request.answer([found[key] for key in request.keys])

    async def _commit(self, requests: Sequence[_Request]) -> None:
        checks = list(dict.fromkeys(check for request in requests for check in request.checks))
        try:
            done = await ask(self._store.commit, checks, [op for request in requests for op in request.ops])
        except (Conflict, TransactionTooLarge, ValueError) as error:
            await self._handle_conflict(requests, error)
        except LatchworkError as error:
            for request in requests:
                request.refuse(error)
        else:
            written = {entry.key: entry for entry in done.entries}
            for request in requests:
                request.answer([written[op.key] for op in request.ops if op.key in written])

    async def _handle_conflict(self, requests: Sequence[_Request], error: Exception) -> None:
        """Report a conflict to the requests that caused it, and send the other requests again.

        If the cause is unknown, each request is sent alone.
        """
        failed = error.failed if isinstance(error, Conflict) else ()
        concerned = [each for each in requests if any(one in failed for one in (*each.checks, *each.ops))]
        if len(requests) == 1:
            concerned = list(requests)
        for request in concerned:
            request.refuse(Conflict(str(error), failed) if isinstance(error, Conflict) else error)
        left = [request for request in requests if request not in concerned]
        if concerned and left:
            await self._commit(left)
        elif left:
            for request in left:
                await self._commit([request])

    # The state

    async def wait_for_phase_end(self, phase: int, stop: Signal, timeout_s: float | None) -> bool:
        """Wait until the stored state of the barrier shows that a phase has ended.

        Returns:
            True if the phase seems to have ended: read the state. False after the timeout or when ``stop`` was set.
        """
        signal = Signal()
        remove_call = stop.call_when_set(signal.set)
        try:
            self._listen(signal, phase)
            return await Pause(self._store.clock, signal, timeout_s) and not stop.is_set()
        finally:
            remove_call()
            self.remove_waiter(signal)

    def _listen(self, signal: Signal, phase: int) -> None:
        with self._lock:
            self._listening[signal] = phase
            begins = self._mirror is None and not self._begins
            self._begins = self._begins or begins
        if begins:
            try:
                mirror = self._store.mirror(self._state_key, wait=False)
                with self._lock:
                    self._mirror = mirror
                mirror.on_change(self._on_change)
            finally:
                self._begins = False
            if signal not in self._listening:  # it has stopped waiting already
                self.remove_waiter(signal)
        known = self._mirror
        self._wake(None if known is None else known.get(self._state_key))

    def remove_waiter(self, signal: Signal) -> None:
        """Stop notifying this signal. The shared watch is closed with the last signal. Idempotent."""
        with self._lock:
            self._listening.pop(signal, None)
            mirror = None
            if not self._listening:
                mirror, self._mirror = self._mirror, None
        if mirror is not None:
            mirror.close()

    def _on_change(self, batch: Batch) -> None:
        for change in batch:
            if change.key == self._state_key:
                self._wake(change.entry)

    def _wake(self, entry: Entry | None) -> None:
        """Wake the members whose phase has ended. If the stored state is invalid, wake all members.

        Args:
            entry: Entry of the barrier's state. None wakes no member.
        """
        try:
            open_phase = None if entry is None else BarrierRecord.from_entry(entry).phase
        except BadRecord:
            open_phase = -1
        if open_phase is None:
            return
        with self._lock:
            due = [signal for signal, phase in self._listening.items() if open_phase < 0 or open_phase > phase]
        for signal in due:
            signal.set()


def _next_batch(waiting: Sequence[_Request]) -> tuple[list[_Request], list[_Request]]:
    """Choose the requests to send together. Reads come first, and no key is written twice.

    Returns:
        The requests to send now, and the remaining ones.
    """
    reads = [request for request in waiting if request.keys]
    if reads:
        return reads[:_MOST_OPS], [request for request in waiting if request not in reads[:_MOST_OPS]]
    taken: list[_Request] = []
    keys: set[str] = set()
    checks = 0
    for request in waiting:
        mine = {op.key for op in request.ops}
        checks += request.weight
        if taken and (keys & mine or checks > _MOST_CHECKS or len(keys | mine) > _MOST_OPS):
            break
        taken.append(request)
        keys |= mine
    return taken, [request for request in waiting if request not in taken]


class LocalMember:
    """One member of a barrier in this process while it waits; a context manager. Single-threaded."""

    def __init__(self, members: LocalMembers) -> None:
        self.members = members

    def __enter__(self) -> None:
        self.members.add_member(self)

    def __exit__(self, *_: object) -> None:
        self.end_wait()

    def end_wait(self) -> None:
        """End the wait of this member. Idempotent."""
        self.members.remove_member(self)

    def try_become_watcher(self, phase: int) -> bool:
        """Return whether this member shall watch the arrivals for all members of this process.

        The first member that asks for a phase gets True, and the others False.
        """
        return self.members.try_become_watcher(self, phase)

    async def reserve_first_arrival(self, phase: int, waiter: Waiter) -> bool:
        """Return whether this member shall write the first arrival at a phase.

        If another member of this process is writing it, wait for that member and return False, or True if it takes too
        long.
        """
        signal = self.members.reserve_first_arrival(self, phase)
        if signal is None:
            return True
        remove_call = waiter.cancelled.call_when_set(signal.set)
        try:
            return not await Pause(self.members.clock, signal, _OPENS_S)
        finally:
            remove_call()

    def finish_first_arrival(self) -> None:
        """Record that this member's attempt to write the first arrival at a phase has ended."""
        self.members.finish_first_arrival(self)


_by_store: WeakKeyDictionary[Store, dict[str, LocalMembers]] = WeakKeyDictionary()


def get_local_members(store: Store, name: str) -> LocalMembers:
    """Return the object that all members of a barrier in this process share.

    There is one per store. Members in tasks of an event loop do not share it: each call returns a new object.
    """
    if current_task_caller() is not None:
        return LocalMembers(store, name)
    by_name = _by_store.setdefault(store, {})
    return by_name.setdefault(name, LocalMembers(store, name, partial(_unregister, by_name)))


def _unregister(by_name: dict[str, LocalMembers], one: LocalMembers) -> None:
    """Remove the object of a barrier without members from those that ``get_local_members`` returns.

    A member that still has the object may continue to use it.
    """
    for name, each in list(by_name.items()):
        if each is one:
            by_name.pop(name, None)
