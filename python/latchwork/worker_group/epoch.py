"""The work of one worker during an epoch (the time between two restarts of its group), and the writer of its record."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from msgspec.structs import replace

from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork.errors import BarrierBroken, Closed, Conflict, OutcomeUnknown, Unavailable
from latchwork.primitives import Barrier
from latchwork.primitives.barrier import Expected, build_arrivals
from latchwork.primitives.waiting import Ownership
from latchwork.store.backoff import Backoff
from latchwork.store.steps import Pause, ask, blocking, coroutine_of
from latchwork.store.store import Store
from latchwork.types import Absent, At, Entry, Fence, Put
from latchwork.worker_group import transactions
from latchwork.worker_group.errors import EpochEnded, GroupTerminated, WorkerRemoved
from latchwork.worker_group.keys import format_rank
from latchwork.worker_group.membership import WorkerMembership
from latchwork.worker_group.observation import WorkerState, explain_exit, explain_refused_write, read_worker_state
from latchwork.worker_group.records import COMPLETED, FULLY_FAILED, WorkerInfo, decode_epoch, format_first_values
from latchwork.worker_group.transactions import (
    BarrierArrivals,
    GroupSnapshot,
    GroupTxn,
    decode_members,
    decode_record_or_none,
)


class WorkerEpoch:
    """One worker's view of one epoch: its fence, guarded work and barriers, which all end with the epoch. Thread-safe.

    A group begins the next epoch when it has lost a worker: all workers restart.

    Attributes:
        epoch: Number of the epoch.
        fence: Proves in transactions that the worker is current and the epoch continues.
        ownership: Guards work in this epoch; lost when the epoch ends or the worker is no longer in the group.
    """

    def __init__(self, store: Store, membership: WorkerMembership, entry: Entry) -> None:
        self._store = store
        self._membership = membership
        self._keys = membership.keys
        self.epoch = decode_epoch(entry)
        self.fence: Fence = membership.build_fence(store, entry)
        self.ownership = Ownership(
            f"epoch {self.epoch} of worker {membership.info.rank} in group {membership.keys.group.group!r}",
            self.fence,
            ttl_s=membership.session.ttl_s,
            remaining_s=membership.session.remaining_s,
            error=EpochEnded,
            clock=store.clock,
        )
        self._lock = mutex()
        self._barriers: dict[str, Barrier] = {}
        self._used: list[Barrier] = []
        self._record: Entry | None = None  # as the watcher knows it, until a transaction has relied on it
        self._is_over = False

    def end(self) -> None:
        """End the epoch for this worker: cancel its waits at barriers, and ask guarded work to stop."""
        with self._lock:
            self._is_over = True
            barriers = list(self._barriers.values())
        self.ownership.mark_lost()
        for barrier in barriers:
            barrier.close()

    def barrier(self, name: str) -> Barrier:
        """Return a barrier of this epoch by name.

        Raises:
            Closed: The epoch has ended.
        """
        with self._lock:
            if self._is_over:
                raise Closed(f"{self.ownership.what} has ended")
            if name not in self._barriers:
                self._barriers[name] = Barrier(
                    self._store,
                    self._keys.barrier_key(self.epoch, name),
                    parties=self._count_expected_workers,
                    member_id=format_rank(self._membership.info.rank),
                    session=self._membership.session,
                    per_generation=True,
                    keeps_arrival=True,  # a worker that returns after a barrier has passed begins another epoch
                )
            return self._barriers[name]

    @contextmanager
    def barrier_in_use(self, name: str, record: Entry | None) -> Iterator[Barrier]:
        """Return a context manager for waiting at a barrier. Inside it, scaling down the group may break the barrier.

        Args:
            name: Name of the barrier.
            record: Entry of the group's record as the watcher knows it; it may be old. None reads it.
        Raises:
            Closed: The epoch has ended.
        """
        barrier = self.barrier(name)
        self._record = record
        self._used.append(barrier)
        try:
            yield barrier
        finally:
            self._used.remove(barrier)

    async def break_barriers_above(self, n: int) -> None:
        """Break the barriers in use that wait for workers which were removed from the group.

        Args:
            n: Number of workers to which the group was scaled down.
        """

        def removed(basis: int) -> list[str]:
            return [format_rank(number) for number in range(n, basis)]

        for barrier in list(self._used):
            with suppress(Closed):
                await coroutine_of(barrier.abort)(f"the group was scaled down to {n} workers", lacking=removed)

    async def build_all_arrivals(self, opened: Entry | None) -> BarrierArrivals:
        """Build the checks and writes with which this worker arrives at all open barriers of the epoch, for a
        transaction.

        Args:
            opened: The key that each opening of a barrier writes, read before this call.
        """
        keys = self._keys
        names = await ask(self._store.children, keys.barriers_prefix(self.epoch))
        barriers = [keys.barrier_key(self.epoch, name) for name in names]
        checks, ops = await build_arrivals(self._store, barriers, format_rank(self._membership.info.rank))
        return BarrierArrivals([Absent(keys.opened) if opened is None else At(opened), *checks], ops)

    @blocking
    async def _count_expected_workers(self) -> Expected:
        """Count the workers that must arrive at a barrier: all that have not completed.

        The first attempt uses the record that the watcher knows. The transaction checks this record, and the next
        attempt reads it.
        """
        entry, self._record = self._record, None
        if entry is None:
            entry = await ask(self._store.get, self._keys.record)
        record = decode_record_or_none(entry, self._keys.run)
        if entry is None or record is None:
            raise Closed(f"group {self._keys.group.group!r} no longer exists; stop the work")
        opened = [Put(self._keys.opened, b"")]
        return Expected(max(1, record.workers - record.completed), [At(entry)], opened, basis=record.workers)


async def explain_broken_barrier(
    store: Store, membership: WorkerMembership, name: str, error: BarrierBroken
) -> BarrierBroken:
    """Return the error of a broken barrier with the names and the status of the missing workers added to its message.

    Args:
        store: Store of the group.
        membership: Membership of the worker that waited.
        name: Name of the barrier.
        error: The error of the wait. It is returned unchanged if the store is unavailable.
    """
    keys = membership.keys
    try:
        infos = decode_members(await ask(store.list, keys.members))
        record = decode_record_or_none(await ask(store.get, keys.record), keys.run)
    except (Unavailable, OutcomeUnknown):
        return error
    completed = {info.rank for info in infos if info.status == COMPLETED}
    arrived = {int(member) for member in error.arrived if member.isdecimal()}
    missing = sorted(set(range(record.workers if record is not None else 0)) - completed - arrived)
    known = {info.rank: f"{info.rank} ({info.key}, {info.status})" for info in infos}
    who = format_first_values([known.get(number, f"{number} (never joined)") for number in missing])
    why = str(error).partition("; ")[0]
    message = f"{why}; missing: {who}" if missing else str(error)
    return BarrierBroken(
        f"group {keys.group.group!r}, barrier {name!r}: {message}",
        tuple(map(str, missing)),
        tuple(map(str, sorted(arrived))),
    )


class RecordWriter:
    """Writes the stored record of one worker, with retries. Thread-safe.

    Args:
        store: Store to write to.
        membership: Membership of the worker.
        what: Description of the worker for messages.
        lost: Set when the worker is no longer in the group; ends pauses between retries.
    """

    def __init__(self, store: Store, membership: WorkerMembership, what: str, lost: Signal) -> None:
        self._store = store
        self._membership = membership
        self._what = what
        self._lost = lost

    async def snapshot(self) -> GroupSnapshot:
        """Read the current state of the group, from which a transaction can be built.

        Raises:
            LatchworkError: The worker is not in the group anymore.
        """
        return await self._build_snapshot(await self._read_state())

    async def raise_if_refused(self, epoch: int | None) -> None:
        """Find out why a write was refused, and raise the matching error. If the write may be retried, return.

        Args:
            epoch: Number of the epoch of the write; None if it belongs to none.
        Raises:
            EpochEnded: Another worker was lost.
            OwnershipLost: This worker is no longer in the group.
        """
        error = await explain_refused_write(self._store, self._membership, epoch)
        if error is not None:
            raise error

    async def complete(self, worker_epoch: WorkerEpoch) -> None:
        """Record that the worker has finished its work, so that barriers no longer wait for it.

        Args:
            worker_epoch: The worker's epoch.
        """
        backoff = Backoff()
        arrivals: BarrierArrivals | None = None
        fence, epoch = worker_epoch.fence, worker_epoch.epoch
        is_retry = False
        while True:
            state = await self._read_state()
            snapshot, member = await self._build_snapshot(state), await self._require_member(state)
            if self._has_status(member, COMPLETED):
                return
            if is_retry and (error := await explain_refused_write(self._store, self._membership, epoch, state)):
                raise error
            if arrivals is None:
                arrivals = await worker_epoch.build_all_arrivals(state.opened)
            txn = transactions.build_complete_txn(snapshot, member, fence, epoch, arrivals)
            try:
                await ask(self._store.commit, txn.checks, txn.ops)
            except Conflict as refused:
                if any(check in arrivals.checks for check in refused.failed):
                    arrivals = None  # otherwise the next transaction checks that they are still complete
            except OutcomeUnknown:
                arrivals = None
            else:
                return
            is_retry = True
            await Pause(self._store.clock, self._lost, backoff.next_s())

    async def fail(self, fence: Fence, epoch: int | None, why: str) -> None:
        """Record that the worker has failed permanently.

        Args:
            fence: Fence of the worker.
            epoch: Record it only if this epoch continues; None records it in any case.
            why: The reason.
        """
        backoff = Backoff()
        while True:
            state = await self._read_state()
            snapshot, member = await self._build_snapshot(state), await self._require_member(state)
            if self._has_status(member, FULLY_FAILED):
                return
            if await self._commit(transactions.build_fail_txn(snapshot, member, fence, why[:1000]), epoch, backoff):
                return

    async def update_info(self, info: WorkerInfo, fence: Fence, epoch: int) -> None:
        """Replace the information that the worker has published about itself.

        Args:
            info: The new information.
            fence: Fence of the worker.
            epoch: Number of its epoch.
        """
        backoff = Backoff()
        while True:
            new_info = replace(info, key=self._membership.info.key)
            member = await self._require_member(await self._read_state())
            txn = transactions.build_update_info_txn(self._membership.keys, member, new_info, fence)
            if await self._commit(txn, epoch, backoff):
                return

    async def count_execution(self, fence: Fence, epoch: int) -> str:
        """Count another execution of the worker's function.

        Args:
            fence: Fence of the worker.
            epoch: Number of its epoch.
        Returns:
            An empty string if the execution is allowed; otherwise an error message about the reached limit.
        """
        state = await self._read_state()
        snapshot, member = await self._build_snapshot(state), await self._require_member(state)
        if WorkerInfo.from_entry(member).executions >= snapshot.record.max_executions:
            info = self._membership.info
            return f"worker {info.rank} ({info.key}) was run again more than {snapshot.record.max_executions} times"
        txn = transactions.build_count_execution_txn(self._membership.keys, member, fence)
        try:
            await ask(self._store.commit, txn.checks, txn.ops)
        except Conflict:
            await self.raise_if_refused(epoch)
        return ""

    async def leave(self) -> None:
        """Leave the group. The last worker to leave an ended group removes the group."""
        membership, backoff = self._membership, Backoff()
        while await explain_exit(self._store, membership, state := await self._read_state()) is None:
            snapshot = await self._build_snapshot(state)
            lease_keys: list[str] = []
            if snapshot.record.is_final:
                lease_keys = [entry.key for entry in await ask(self._store.list, membership.keys.leases)]
            txn = transactions.build_leave_txn(
                snapshot, membership.info.rank, lease_keys, membership.build_fence(self._store)
            )
            try:
                await ask(self._store.commit, txn.checks, txn.ops)
            except (Conflict, OutcomeUnknown):
                await Pause(self._store.clock, self._lost, backoff.next_s())
                continue
            if txn.record is None:
                await ask(self._store.delete_tree, membership.keys.prefix)
            return

    async def _commit(self, txn: GroupTxn, epoch: int | None, backoff: Backoff) -> bool:
        """Try once to commit a transaction.

        Args:
            txn: The transaction.
            epoch: Number of the epoch in which the write is valid; None for any.
            backoff: Pauses between retries.
        Returns:
            Whether it was committed. False after a pause, if the caller should read the group again and retry.
        """
        try:
            await ask(self._store.commit, txn.checks, txn.ops)
        except (Conflict, OutcomeUnknown):
            await self.raise_if_refused(epoch)
            await Pause(self._store.clock, self._lost, backoff.next_s())
            return False
        return True

    async def _read_state(self) -> WorkerState:
        return await read_worker_state(self._store, self._membership)

    async def _build_snapshot(self, state: WorkerState) -> GroupSnapshot:
        """Return the state of the group, from which a transaction can be built.

        Args:
            state: Stored state of the worker.
        Raises:
            LatchworkError: The worker is not in the group anymore.
        """
        keys = self._membership.keys
        if state.record is None or decode_record_or_none(state.record, keys.run) is None:
            error = await explain_exit(self._store, self._membership, state)
            raise error or GroupTerminated(f"{self._what}: the group no longer exists")
        return GroupSnapshot(keys, state.record, time.time())

    async def _require_member(self, state: WorkerState) -> Entry:
        """Return the entry of the worker's record.

        Args:
            state: Stored state of the worker.
        Raises:
            LatchworkError: The worker is not in the group anymore.
        """
        if state.member is None:
            error = await explain_exit(self._store, self._membership, state)
            raise error or WorkerRemoved(f"{self._what} was removed")
        return state.member

    def _has_status(self, member: Entry, status: str) -> bool:
        """Return whether this process has given the worker a status, according to the worker's record."""
        info = WorkerInfo.from_entry(member)
        return info.status == status and info.incarnation == self._membership.info.incarnation
