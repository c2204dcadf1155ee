"""Joining of a group: a new worker takes the next rank, and a restarted worker its previous rank.

Threads of one process join one after the other, and each passes the group state that it has read to the next.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from latchwork._base.event import Signal
from latchwork._base.execution_context import current_task_caller
from latchwork._base.interrupts import mutex
from latchwork.errors import BadRecord, Closed, Conflict, LatchworkError, NodeIdInUse, WaitTimeout
from latchwork.primitives import Barrier
from latchwork.primitives.fair import QueuePosition, TicketQueue, await_turn
from latchwork.primitives.waiting import Deadline, Waiter, check_member
from latchwork.store.backoff import Backoff
from latchwork.store.session import Session
from latchwork.store.steps import Pause, ask, coroutine_of
from latchwork.store.store import Store
from latchwork.types import At, Entry, Fence
from latchwork.worker_group import transactions
from latchwork.worker_group.errors import GroupFull, GroupTerminated, RestartsExceeded, WrongRun
from latchwork.worker_group.keys import FINAL, INIT, GroupKeys, RunKeys
from latchwork.worker_group.records import (
    COMPLETED,
    FULLY_FAILED,
    GroupRecord,
    WorkerInfo,
    create_member,
    decode_epoch,
    decode_incarnation,
)
from latchwork.worker_group.transactions import EpochState, GroupSnapshot, GroupTxn, decode_record_or_none

_log = logging.getLogger(__name__)

_join_locks: WeakKeyDictionary[Store, dict[str, JoinLock]] = WeakKeyDictionary()

#: Pauses in seconds between attempts to undo an interrupted join whose write may still arrive.
_ABANDON_PAUSES_S = (0.5, 2.0, 10.0)
#: A worker queues at once if this many threads wait behind it. Its turn is then shared with them for so many seconds.
_TICKET_THRESHOLD, _SHARED_TURN_S = 3, 0.25


@dataclass(frozen=True, slots=True)
class WorkerMembership:
    """The membership of a worker in its group, from joining until it leaves or is restarted.

    Attributes:
        keys: Keys of the run.
        info: Record of the worker as it joined.
        session: Session that its lease is bound to.
        lease: Its lease.
        event_count: Number of events before it joined.
        is_new: Whether it has joined for the first time.
    """

    keys: RunKeys
    info: WorkerInfo
    session: Session
    lease: Entry
    event_count: int
    is_new: bool

    def build_fence(self, store: Store, epoch: Entry | None = None) -> Fence:
        """Return a fence for writes of this worker. Its checks fail once the worker was replaced.

        Args:
            store: Store of the group.
            epoch: Entry of an epoch. The checks also fail once this epoch has ended.
        """
        more = () if epoch is None else (At(epoch),)
        token = max(self.lease.token, epoch.token if epoch is not None else 0)
        return store.fence(token, At(self.lease), self.session.fence, *more)


async def read_epoch_state(store: Store, keys: RunKeys) -> EpochState | None:
    """Read the current epoch of a run, and whether all workers have passed its first and its last barrier.

    Args:
        store: Store of the group.
        keys: Keys of the run.
    Returns:
        The state of the epoch; None if the run no longer exists.
    """
    entry = await ask(store.get, keys.epoch)
    if entry is None:
        return None
    passed: list[bool] = []
    checks = []
    for name in (INIT, FINAL):
        barrier = Barrier(
            store, keys.barrier_key(decode_epoch(entry), name), parties=1, member_id="look", per_generation=True
        )
        has_passed, check = await coroutine_of(barrier.check)()
        passed.append(has_passed)
        checks.append(check)
    is_healthy_recorded = not passed[0] or await ask(store.get, keys.healthy_key(decode_epoch(entry))) is not None
    is_initialized, has_ended = passed
    return EpochState(entry, tuple(checks), is_initialized, has_ended, is_healthy_recorded)


def with_default_key(key: str | None, info: WorkerInfo, description: str) -> WorkerInfo:
    """Return a copy of a worker's information with its key set.

    Args:
        key: Key that identifies the worker over restarts; None uses its IP address and first port.
        info: The information.
        description: Description of the worker for error messages.
    """
    if key is None:
        port = next((info.ports[name] for name in sorted(info.ports)), None)
        if not info.ip or port is None:
            raise ValueError(
                f"{description}: pass a key, or an info with an ip and a port, to identify it after a restart"
            )
        key = f"{info.ip}:{port}"
    return replace(info, key=check_member(key, "worker key"))


class JoinLock:
    """A lock with which the threads of one process join a group one at a time. Thread-safe.

    Attributes:
        record: Cached group record as the last thread to join has written it. It may be outdated.
        epoch: Cached epoch as one of the threads has read it. It may be outdated; a write in an ended epoch is refused.
        shared_until: Time, by the store's clock, until which other threads may join in the turn of one thread.
    """

    def __init__(self, on_empty: Callable[[JoinLock], object] = bool) -> None:
        self.record: Entry | None = None
        self.epoch: Entry | None = None
        self.shared_until = 0.0
        self._emptied = Signal()
        self._on_empty = on_empty
        self._lock = mutex()
        self._queue: list[Signal] = []

    def enqueue(self, turn_signal: Signal) -> None:
        """Add a thread to the queue of threads that want to join.

        Args:
            turn_signal: Signal to set when it is the thread's turn. It identifies the thread in other calls.
        """
        with self._lock:
            self._queue.append(turn_signal)
            first = self._queue[0]
        first.set()

    def leave(self, turn_signal: Signal) -> None:
        """Remove a thread from the queue, and signal the next thread if it was this thread's turn. Idempotent.

        Args:
            turn_signal: Signal that identifies the thread.
        """
        with self._lock:
            if turn_signal in self._queue:
                self._queue.remove(turn_signal)
            first = self._queue[:1]
        for signal in first:
            signal.set()
        if not first:
            self._emptied.set()
            self._on_empty(self)

    def count_threads_behind(self, turn_signal: Signal) -> int:
        """Return the number of threads behind a thread in the queue; 0 if it is not in the queue.

        Args:
            turn_signal: Signal that identifies the thread.
        """
        with self._lock:
            return len(self._queue) - 1 - self._queue.index(turn_signal) if turn_signal in self._queue else 0

    def leave_and_admit_others(self, turn_signal: Signal, until: float) -> Signal:
        """Remove a thread from the queue. For a while, the threads behind it need no ticket in the group's join queue.

        Args:
            turn_signal: Signal of the thread that leaves.
            until: Time, by the store's clock, until which they may join.
        Returns:
            A signal that is set when no thread is left in the queue.
        """
        emptied = self._emptied = Signal()
        self.shared_until = until
        self.leave(turn_signal)
        return emptied


def get_join_lock(store: Store, keys: GroupKeys) -> JoinLock:
    """Return the join lock of a group. Threads that share a store share one lock; each asyncio task has its own.

    Args:
        store: The store.
        keys: Keys of the group.
    """
    if current_task_caller() is not None:  # its event loop may end while it joins
        return JoinLock()
    registry = _join_locks.setdefault(store, {})

    def forget(lock: JoinLock) -> None:  # threads that hold it keep using it; two locks are only slower
        if registry.get(keys.record) is lock:
            registry.pop(keys.record, None)

    return registry.setdefault(keys.record, JoinLock(forget))


class Joiner:
    """Joins one worker to a group. Not thread-safe.

    Args:
        store: Store to write to.
        keys: Keys of the group.
        info: Information about the worker, with its key.
        run: Required run; None accepts the current one.
        create: Record of the group to create if there is none; None waits until another client submits it.
        replace_running: Whether to fence out a running process with the same key instead of waiting for its end.

    Attributes:
        epoch: Epoch in which the worker has joined; None before.
    """

    def __init__(
        self,
        store: Store,
        keys: GroupKeys,
        info: WorkerInfo,
        *,
        run: str | None,
        create: GroupRecord | None,
        replace_running: bool,
    ) -> None:
        self._store = store
        self._group = keys
        self._what = f"group {keys.group!r}"
        self._info = info
        self.epoch: Entry | None = None
        self._join_lock = JoinLock()
        self._turn_signal = Signal()
        self._run = run
        self._create = create
        self._replace_running = replace_running
        self._position: QueuePosition | None = None
        self._queue: TicketQueue | None = None

    async def join(self, waiter: Waiter, deadline: Deadline) -> WorkerMembership:
        """Join the group; see ``GroupWorker.join``. After an interrupt, call `abandon` to remove what was written.

        Args:
            waiter: Waiter of the caller, with its session.
            deadline: Time at which to give up.
        Returns:
            The membership of the worker.
        """
        self._info = replace(self._info, incarnation=uuid.uuid4().hex[:12])
        self._join_lock, backoff = get_join_lock(self._store, self._group), Backoff()
        try:
            while True:
                await self._wait_for_earlier_threads(waiter, deadline)
                cached = self._cached_record()
                if cached is not None and self._needs_ticket():
                    await self._wait_for_turn(self._group.for_run(self._decode(cached).run), waiter, deadline)
                    cached = self._join_lock.record = None
                entry = cached
                if entry is None:
                    entry = await waiter.keep_trying(partial(self._read_or_create, waiter, deadline), deadline)
                snapshot = GroupSnapshot(self._group.for_run(self._decode(entry).run), entry, time.time())
                is_new = cached is not None
                membership = await waiter.keep_trying(
                    partial(self._try_join, snapshot, waiter, deadline, is_new=is_new), deadline
                )
                if membership is not None:
                    await waiter.keep_trying(partial(self._read_epoch, membership), deadline)
                    await self._admit_waiting_threads()
                    return membership
                self._join_lock.record = None
                if cached is not None:
                    continue
                self._raise_if_late(deadline, waiter, "other workers kept joining")
                if self._is_turn_shared:
                    continue
                if self._position is not None:  # workers without a ticket do not wait for ours
                    await waiter.pause(deadline.left_s(backoff.next_s()))
                await self._wait_for_turn(snapshot.keys, waiter, deadline)
        finally:
            self._leave_thread_queue()
            if self._position is not None and self._queue is not None:
                await self._queue.leave(self._position)

    async def _read_epoch(self, membership: WorkerMembership) -> None:
        """Set ``epoch`` to the epoch in which the worker has joined. For a new worker, a cached epoch may be used."""
        known = self._join_lock.epoch
        if known is None or known.key != membership.keys.epoch or not membership.is_new:
            known = self._join_lock.epoch = await ask(self._store.get, membership.keys.epoch)
        if known is None:
            raise GroupTerminated(f"{self._what}: the group no longer exists")
        self.epoch = known

    @property
    def _is_turn_shared(self) -> bool:
        """Whether a thread of this process currently lets others join during its turn."""
        return self._store.clock.now() < self._join_lock.shared_until

    def _needs_ticket(self) -> bool:
        """Return whether to wait in the group's join queue before the first attempt, because many threads wait behind
        this one.
        """
        return (
            self._position is None
            and not self._is_turn_shared
            and self._join_lock.count_threads_behind(self._turn_signal) >= _TICKET_THRESHOLD
        )

    async def _admit_waiting_threads(self) -> None:
        """Let the waiting threads of this process join now, without tickets in the group's join queue.

        Returns when they have joined, or after a short time. Does nothing if this thread has no ticket itself.
        """
        if self._position is not None:
            emptied = self._join_lock.leave_and_admit_others(
                self._turn_signal, self._store.clock.now() + _SHARED_TURN_S
            )
            await Pause(self._store.clock, emptied, _SHARED_TURN_S)

    async def _wait_for_earlier_threads(self, waiter: Waiter, deadline: Deadline) -> None:
        """Wait until the threads of this process that are ahead in the queue have joined.

        Returns early after the deadline. If this thread has a ticket in the group's join queue, it does not wait,
        because an earlier thread may be waiting for that ticket.

        Args:
            waiter: Waiter of the caller.
            deadline: Time at which to give up.
        """
        if self._turn_signal.is_set() or self._position is not None or deadline.has_passed:
            return
        self._join_lock.enqueue(self._turn_signal)
        remove_callback = waiter.cancelled.call_when_set(self._turn_signal.set)
        try:
            await Pause(self._store.clock, self._turn_signal, deadline.left_s())
        finally:
            remove_callback()
        waiter.session.ensure_usable()

    def _cached_record(self) -> Entry | None:
        """Return the cached record of the group if a new worker can join with it; otherwise None."""
        entry = self._join_lock.record
        record = decode_record_or_none(entry)
        is_usable = (
            record is not None and not record.is_final and not record.is_full and self._run in {None, record.run}
        )
        return entry if is_usable else None

    def _leave_thread_queue(self) -> None:
        """Let the next thread of this process join. This thread may enter the queue again."""
        turn, self._turn_signal = self._turn_signal, Signal()
        self._join_lock.leave(turn)

    async def abandon(self, skip_pauses: Signal) -> None:
        """Remove the lease that an interrupted join has written or may still write.

        Args:
            skip_pauses: Signal that ends the pauses between attempts.
        """
        for pause_s in (*_ABANDON_PAUSES_S, 0.0):
            with suppress(LatchworkError):
                await self._undo_join()
            if not skip_pauses.is_set():
                await Pause(self._store.clock, skip_pauses, pause_s)

    async def _undo_join(self) -> None:
        """Delete the worker's lease if this join has written it."""
        entry = await ask(self._store.get, self._group.record)
        record = decode_record_or_none(entry)
        if entry is None or record is None:
            return
        keys = self._group.for_run(record.run)
        member = await ask(self._store.get, keys.member_key(self._info.key))
        info = None if member is None else WorkerInfo.decode_or_none(member)
        if info is None or info.incarnation != self._info.incarnation:
            return
        lease = await ask(self._store.get, keys.lease_key(info.rank))
        if lease is not None and decode_incarnation(lease) == info.incarnation:
            await ask(self._store.delete, lease.key, version=lease.version)

    # Group record

    async def _read_or_create(self, waiter: Waiter, deadline: Deadline) -> Entry:
        """Read the group's record. If there is none, create it, or wait until another client submits the group.

        Args:
            waiter: Waiter of the caller.
            deadline: Time at which to give up.
        Returns:
            The entry of the record.
        """
        while True:
            entry = await ask(self._store.get, self._group.record)
            if entry is not None:
                return entry
            self._leave_thread_queue()
            if self._run is not None:
                raise WrongRun(f"{self._what} and its run {self._run} no longer exist; do not restart this worker")
            if self._create is not None:
                await self._submit(self._create, None)
                continue
            if deadline.has_passed or not await waiter.watch_until(self._group.record, bool, deadline):
                self._raise_if_late(deadline, waiter, "it was not submitted")

    def _decode(self, entry: Entry) -> GroupRecord:
        """Decode the group's record.

        Raises:
            WrongRun: The group is in another run than the required one.
        """
        record = GroupRecord.from_entry(entry)
        if self._run is not None and record.run != self._run:
            raise WrongRun(f"{self._what} is in run {record.run}, not in {self._run}; do not restart this worker")
        return record

    def _raise_if_late(self, deadline: Deadline, waiter: Waiter, why: str) -> None:
        """Raise an error if the worker was closed or the deadline has passed.

        Args:
            deadline: Time at which to give up.
            waiter: Waiter of the caller.
            why: Reason of the delay, for the message.
        """
        if waiter.is_cancelled:
            waiter.session.ensure_usable()
            raise Closed(f"{self._what} was not joined because the worker was closed; create another worker")
        if deadline.has_passed:
            raise WaitTimeout(f"{self._what} could not be joined in time: {why}; nothing was left behind")

    # One attempt

    async def _try_join(
        self, snapshot: GroupSnapshot, waiter: Waiter, deadline: Deadline, *, is_new: bool
    ) -> WorkerMembership | None:
        """Try once to join, based on the state that was read. Return None if the caller should read again and retry.

        Args:
            snapshot: Group state as it was read.
            waiter: Waiter of the caller, with its session.
            deadline: Time left.
            is_new: Whether to treat the worker as new, without reading its record.
        """
        session = waiter.session
        if is_new:
            return await self._take_next_rank(snapshot, session)
        member = await ask(self._store.get, snapshot.keys.member_key(self._info.key))
        if member is None:
            return await self._take_next_rank(snapshot, session)
        old = WorkerInfo.from_entry(member)
        lease = await ask(self._store.get, snapshot.keys.lease_key(old.rank))
        if old.incarnation == self._info.incarnation:  # an earlier attempt succeeded, but its answer was lost
            return self._confirm_earlier_attempt(snapshot, old, session, lease)
        if lease is not None and not self._replace_running:
            return await self._wait_for_predecessor(lease, old, waiter, deadline)
        return await self._rejoin(snapshot, member, old, session)

    async def _take_next_rank(self, snapshot: GroupSnapshot, session: Session) -> WorkerMembership | None:
        """Try once to join as a new worker, with the next free rank. Return None if the group has changed.

        If the group has ended and this worker may create it, submit it again and return None.

        Args:
            snapshot: Group state as it was read.
            session: Session to which the lease is bound.
        Raises:
            GroupFull, GroupTerminated: No worker can join the group.
        """
        record = snapshot.record
        if record.is_final:
            if self._create is not None and not await ask(self._store.children, snapshot.keys.leases):
                if await self._submit(self._create, snapshot.entry):
                    await ask(self._store.delete_tree, snapshot.keys.prefix)
                return None
            raise GroupTerminated(f"{self._what} has ended: {record.state}; submit it again")
        if record.is_full:
            raise GroupFull(
                f"all {record.workers} ranks of {self._what} are taken, none by {self._info.key!r}; scale it up first"
            )
        info = create_member(self._info, record.next_rank, self._info.key, self._info.incarnation)
        is_last = self._position is not None and not self._join_lock.count_threads_behind(self._turn_signal)
        ticket = (self._position.ticket.key,) if self._position is not None and is_last else ()
        membership = await self._commit(
            snapshot, transactions.build_join_txn(snapshot, info, session, ticket), info, session, is_new=True
        )
        if membership is not None and ticket:
            self._position = None  # the transaction has deleted the ticket
        return membership

    async def _submit(self, record: GroupRecord, old: Entry | None) -> bool:
        """Create the group, or replace one that has ended and has no workers.

        Args:
            record: Record of the new group.
            old: Entry of the record to replace; None if there is none.
        Returns:
            False if another client was faster.
        """
        record = replace(record, run=uuid.uuid4().hex[:12], created=time.time())
        txn = transactions.build_create_txn(self._group.for_run(record.run), record, old)
        try:
            await ask(self._store.commit, txn.checks, txn.ops)
        except Conflict:
            return False
        return True

    async def _rejoin(
        self, snapshot: GroupSnapshot, member: Entry, old: WorkerInfo, session: Session
    ) -> WorkerMembership | None:
        """Try once to join with the worker's previous rank. Return None if the group has changed.

        Args:
            snapshot: Group state as it was read.
            member: Stored record of the worker.
            old: The decoded record.
            session: Session to which the lease is bound.
        Raises:
            GroupTerminated: The worker or the group has failed, or the group was terminated.
            RestartsExceeded: The worker was restarted too often. The group has failed.
        """
        record = snapshot.record
        if old.status == FULLY_FAILED or (record.is_final and old.status != COMPLETED):
            raise GroupTerminated(f"{self._what} has ended: {record.why or record.state}; submit it again")
        if old.restarts >= record.max_restarts and old.status != COMPLETED:
            why = f"worker {old.rank} ({old.key}) was restarted more than {record.max_restarts} times"
            txn = transactions.build_restarts_exceeded_txn(snapshot, member, why)
            try:
                await ask(self._store.commit, txn.checks, txn.ops)
            except Conflict:
                return None
            raise RestartsExceeded(f"{why}: {self._what} has failed; find out why it fails and submit the group again")
        epoch_state = await read_epoch_state(self._store, snapshot.keys)
        if epoch_state is None:
            return None
        info = replace(self._info, rank=old.rank)
        txn = transactions.build_rejoin_txn(snapshot, member, info, session, epoch_state)
        return await self._commit(snapshot, txn, info, session, is_new=False)

    async def _commit(
        self, snapshot: GroupSnapshot, txn: GroupTxn, info: WorkerInfo, session: Session, *, is_new: bool
    ) -> WorkerMembership | None:
        """Commit the transaction that joins the worker, and return its membership. Return None after a conflict.

        Args:
            snapshot: Group state from which the transaction was built.
            txn: The transaction.
            info: Record of the worker, with its rank.
            session: Session to which the lease is bound.
            is_new: Whether the worker joins for the first time.
        """
        try:
            done = await ask(self._store.commit, [*txn.checks, session.fence], txn.ops)
        except Conflict:
            session.ensure_usable()
            return None
        self._join_lock.record = done.entries[0] if done.entries[0].key == self._group.record else None
        written = {entry.key: entry for entry in done.entries}
        info = WorkerInfo.from_entry(written[snapshot.keys.member_key(info.key)])
        lease = written[snapshot.keys.lease_key(info.rank)]
        _log.info("worker %r has joined %s with rank %d", info.key, self._what, info.rank)
        return WorkerMembership(snapshot.keys, info, session, lease, snapshot.record.event_count, is_new)

    def _confirm_earlier_attempt(
        self, snapshot: GroupSnapshot, info: WorkerInfo, session: Session, lease: Entry | None
    ) -> WorkerMembership:
        """Return the membership that an earlier attempt of this join has stored.

        Args:
            snapshot: Group state as it was read.
            info: Stored record of the worker.
            session: Session to which the lease must be bound.
            lease: The stored lease; None if there is none.
        Raises:
            NodeIdInUse: Another process has replaced the worker since then.
        """
        if lease is None or decode_incarnation(lease) != info.incarnation or lease.owner != session.id:
            raise NodeIdInUse(
                f"another process has just joined {self._what} as {info.key!r}; give each worker its own key"
            )
        return WorkerMembership(
            snapshot.keys, info, session, lease, max(0, snapshot.record.event_count - 1), not info.restarts
        )

    async def _wait_for_predecessor(
        self, lease: Entry, old: WorkerInfo, waiter: Waiter, deadline: Deadline
    ) -> WorkerMembership | None:
        """Wait until the running process with the same key has ended. Return None: the caller tries again.

        Args:
            lease: Lease of that process.
            old: Stored record of the worker.
            waiter: Waiter of the caller.
            deadline: Time at which to give up.
        Raises:
            NodeIdInUse: The process is still running at the deadline.
        """
        self._leave_thread_queue()

        def is_gone(batch: object) -> bool:
            return all(change.entry is None for change in batch)  # type: ignore[attr-defined]

        if deadline.has_passed or not await waiter.watch_until(lease.key, is_gone, deadline):
            waiter.session.ensure_usable()
            raise NodeIdInUse(
                f"worker {old.rank} ({old.key}) of {self._what} is running elsewhere; "
                "use another key, or pass replace=True"
            )
        return None

    async def _wait_for_turn(self, keys: RunKeys, waiter: Waiter, deadline: Deadline) -> None:
        """Take a ticket in the group's join queue, and wait until it is first. Workers without a ticket may join
        earlier.

        Args:
            keys: Keys of the run.
            waiter: Waiter of the caller, with its session.
            deadline: Time at which to give up.
        """
        if self._position is not None:
            return
        self._queue = TicketQueue(self._store, keys.join_queue, self._what, self._info.key)
        try:
            self._position = await waiter.keep_trying(lambda: self._take_ticket(waiter.session), deadline)
            await waiter.keep_trying(lambda: self._await_first_place(waiter, deadline), deadline)
        except BadRecord:
            _log.warning("%s: ignoring an unreadable ticket in the join queue", self._what)

    async def _take_ticket(self, session: Session) -> QueuePosition:
        assert self._queue is not None
        return await self._queue.join(session)

    async def _await_first_place(self, waiter: Waiter, deadline: Deadline) -> bool:
        assert self._queue is not None
        assert self._position is not None
        return await await_turn(self._queue, self._position, waiter, deadline)
