"""The implementation behind `GroupWorker`: joining, barriers, completion, and explanations of refused writes.

An *epoch* is the time between two restarts of all workers: when a worker is lost, all workers restart in the next
epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork.errors import (
    BarrierBroken,
    Closed,
    Conflict,
    LatchworkError,
    OutcomeUnknown,
    SessionLost,
    Unavailable,
)
from latchwork.primitives.waiting import WaiterRegistry
from latchwork.store.driving.background import Background
from latchwork.store.session import Session
from latchwork.store.steps import ask, call_user_function, coroutine_of, undone_if_interrupted
from latchwork.store.store import Store
from latchwork.types import Entry
from latchwork.worker_group import transactions
from latchwork.worker_group.epoch import RecordWriter, WorkerEpoch, explain_broken_barrier
from latchwork.worker_group.errors import EpochEnded, GroupTerminated, RestartsExceeded
from latchwork.worker_group.events import EventListeners
from latchwork.worker_group.keys import FINAL, INIT, GroupKeys
from latchwork.worker_group.membership import Joiner, WorkerMembership
from latchwork.worker_group.observation import WorkerWatcher, create_epoch_ended_error, explain_refused_write
from latchwork.worker_group.records import COMPLETED, WorkerInfo, decode_epoch
from latchwork.worker_group.transactions import GroupSnapshot, decode_members

_log = logging.getLogger(__name__)


class WorkerCore:
    """The state and the operations of one `GroupWorker`. Thread-safe.

    Attributes:
        what: Description of the worker for messages.
        waits: Calls that wait on behalf of this worker.
        lost: Set when the worker is no longer in the group, except by leaving.
        has_completed: Whether it has completed.
    """

    def __init__(self, store: Store, keys: GroupKeys, joiner: Joiner, session: Session | None) -> None:
        self.store = store
        self.keys = keys
        self.what = f"worker of group {keys.group!r}"
        self.waits = WaiterRegistry(store, self.what, session)
        self.lost = Signal()
        self.has_completed = False
        self._joiner = joiner
        self._lock = mutex()
        self._membership: WorkerMembership | None = None
        self._writer_or_none: RecordWriter | None = None
        self._current: WorkerEpoch | None = None
        self._watcher: WorkerWatcher | None = None
        self._events: EventListeners | None = None
        self._closing = Signal()
        self._undo_task: Background | None = None
        self._exit_error: LatchworkError | None = None
        self._failure: LatchworkError | None = None

    # State

    @property
    def membership(self) -> WorkerMembership | None:
        """The worker's membership; None before it has joined."""
        return self._membership

    @property
    def exit_error(self) -> LatchworkError | None:
        """The error that explains why the worker is no longer in the group. None while it is a member."""
        return self._exit_error

    @property
    def _writer(self) -> RecordWriter:
        self.require_membership()
        assert self._writer_or_none is not None
        return self._writer_or_none

    @property
    def events(self) -> EventListeners:
        """The event listeners of the worker."""
        self.require_membership()
        assert self._events is not None
        return self._events

    def require_membership(self) -> WorkerMembership:
        """Return the worker's membership in its group.

        Raises:
            LatchworkError: The worker has not joined.
        """
        self.waits.home.check()
        if self._membership is None:
            raise LatchworkError(f"{self.what} has not joined; call join() or use it in a with statement")
        return self._membership

    def current_epoch(self) -> WorkerEpoch:
        """Return the current epoch of the worker.

        Raises:
            EpochEnded: The epoch has ended, because another worker was lost.
            LatchworkError: The worker is not in the group, or the group has failed.
        """
        membership = self.require_membership()
        if self._exit_error is not None:
            raise self._exit_error
        current = self._current
        assert current is not None
        if self._failure is not None:
            raise self._failure
        if current.ownership.lost.is_set():
            raise create_epoch_ended_error(membership, current.epoch + 1)
        return current

    # Joining and leaving

    async def join(self, timeout_s: float | None) -> WorkerMembership:
        """Join the group, and return the membership. If the worker has already joined, return its current membership.

        Args:
            timeout_s: Seconds to wait; None waits forever, 0 tries once.
        """
        if self._membership is not None:
            return self._membership
        with undone_if_interrupted(self._undo_join):
            async with self.waits.start(timeout_s) as (waiter, deadline):
                membership = await self._joiner.join(waiter, deadline)
        entry = self._joiner.epoch
        assert entry is not None
        with self._lock:
            self._membership = membership
            self._writer_or_none = RecordWriter(self.store, membership, self.what, self.lost)
            self.has_completed = membership.info.status == COMPLETED
            self._events = EventListeners(self.store, membership)
            self._current = WorkerEpoch(self.store, membership, entry)
        self._watcher = WorkerWatcher(
            self.store,
            membership,
            on_epoch=self._on_epoch,
            on_scale_down=self._on_scale_down,
            on_failed=self._on_failed,
            on_end=self._on_end,
            on_events=self._events.notify,
        )
        return membership

    def _undo_join(self) -> None:
        """Undo an interrupted `join` in the background, so that the worker can join again afterwards."""
        watcher, current, events = self._watcher, self._current, self._events
        self._membership = self._watcher = self._current = self._events = self._writer_or_none = None

        async def undo() -> None:
            if current is not None:
                current.end()
            if watcher is not None:
                await watcher.close()
            if events is not None:
                await events.close()
            await self._joiner.abandon(self._closing)

        self._undo_task = Background(undo, f"latchwork-not-joined-{self.keys.group}")

    async def _read_epoch(self, membership: WorkerMembership) -> Entry:
        entry = await ask(self.store.get, membership.keys.epoch)
        if entry is None:
            raise GroupTerminated(f"{self.what}: the group no longer exists")
        return entry

    async def complete(self) -> None:
        """Record that this worker has finished its work."""
        if self.has_completed:
            return
        current = self.current_epoch()
        await self._writer.complete(current)
        self.has_completed = True

    async def fail(self, why: str) -> None:
        """Record that this worker cannot continue. This fails the group.

        Args:
            why: The reason.
        """
        await self._writer.fail(self.require_membership().build_fence(self.store), None, why)

    async def leave(self) -> None:
        """Leave the group. The last worker to leave an ended group removes the group."""
        if self._membership is None or self._exit_error is not None:
            return
        await self._writer.leave()
        self._set_exit_error(Closed(f"{self.what} has left the group; create another worker"))

    async def close(self) -> None:
        """Leave the group if the worker has joined it, and stop all background work. Idempotent."""
        self._closing.set()
        try:
            await self.leave()
        except LatchworkError as error:
            _log.info("%s could not leave and stays in the group until its session ends: %s", self.what, error)
        self.waits.close()
        if self._watcher is not None:
            await self._watcher.close()
        if self._events is not None:
            await self._events.close()
        if self._current is not None:
            self._current.end()
        if self._undo_task is not None:
            await self._undo_task

    # Members

    async def members(self) -> list[WorkerInfo]:
        """Return the records of all workers, sorted by rank."""
        return decode_members(await ask(self.store.list, self.require_membership().keys.members))

    async def update_info(self, info: WorkerInfo) -> None:
        """Replace the information that this worker published about itself."""
        current = self.current_epoch()
        await self._writer.update_info(info, current.fence, current.epoch)

    async def check(self) -> None:
        """Ask the store whether the worker is still in the group and no other worker was lost.

        Raises:
            EpochEnded: Another worker was lost.
            OwnershipLost: The worker is not in the group anymore.
        """
        await self._writer.raise_if_refused(self.current_epoch().epoch)

    # Barriers

    async def wait_at_barrier(self, worker_epoch: WorkerEpoch, name: str, timeout_s: float | None) -> int:
        """Wait at a barrier until all other workers have arrived.

        Args:
            worker_epoch: The worker's epoch, to which the barrier belongs.
            name: Name of the barrier.
            timeout_s: Seconds to wait; None waits forever.
        Returns:
            The number of the barrier's generation that passed: 0 for the first one.
        """
        membership = self.require_membership()
        if self.has_completed:
            raise LatchworkError(f"{self.what} has completed, so it cannot wait at a barrier")
        while True:
            try:
                watcher = self._watcher
                with worker_epoch.barrier_in_use(name, None if watcher is None else watcher.record_entry) as barrier:
                    if watcher is not None:
                        watcher.recheck_barriers()
                    return await coroutine_of(barrier.wait)(timeout_s, checks=[worker_epoch.fence])
            except BarrierBroken as error:
                raise await explain_broken_barrier(self.store, membership, name, error) from error
            except (Closed, Conflict, SessionLost) as error:
                if not isinstance(error, Conflict):
                    raise await self._explain_wait_error(worker_epoch, error) from error
                await self._writer.raise_if_refused(worker_epoch.epoch)

    async def _explain_wait_error(self, worker_epoch: WorkerEpoch, error: LatchworkError) -> LatchworkError:
        """Return the error to raise after a wait at a barrier has failed.

        If the worker's epoch or membership has ended, the error says so. Otherwise it is the given error.

        Args:
            worker_epoch: The worker's epoch during the wait.
            error: Error of the wait.
        """
        self.waits.ensure_usable(error)
        if self._exit_error is not None:
            return self._exit_error
        if self._failure is not None:
            return self._failure
        membership = self.require_membership()
        try:
            return await explain_refused_write(self.store, membership, worker_epoch.epoch) or error
        except (Unavailable, OutcomeUnknown):
            if membership.session.remaining_s() > 0.0:
                return error
            return SessionLost(
                f"the session of worker {membership.info.rank} has expired and the store is unreachable; join again"
            )

    async def _enter_epoch(self, membership: WorkerMembership) -> WorkerEpoch:
        if self._exit_error is not None:
            raise self._exit_error
        entry = await self._read_epoch(membership)
        with self._lock:
            before, self._current = self._current, WorkerEpoch(self.store, membership, entry)
            current = self._current
        if before is not None:
            before.end()
        await self._writer.raise_if_refused(current.epoch)
        return current

    async def _record_healthy(self, worker_epoch: WorkerEpoch) -> None:
        """Store the event ``healthy`` if this worker has the lowest rank.

        If this worker is lost before it has stored the event, the transaction that records its loss stores the event.

        Args:
            worker_epoch: The worker's epoch.
        """
        assert self._watcher is not None
        if not self._watcher.has_lowest_rank:
            return
        for _ in range(5):
            snapshot = await self.snapshot()
            txn = transactions.build_mark_healthy_txn(snapshot, worker_epoch.fence, worker_epoch.epoch)
            try:
                await ask(self.store.commit, txn.checks, txn.ops)
            except Conflict:
                continue
            except (Unavailable, OutcomeUnknown) as error:
                _log.info("%s: event 'healthy' not written: %s", self.what, error)
            return

    async def initialize(self, timeout_s: float | None, prepare: Callable[[], object] | None = None) -> WorkerEpoch:
        """Enter the current epoch, and wait at its first barrier until all workers have arrived.

        Args:
            timeout_s: Seconds to wait for the other workers. None waits forever.
            prepare: Called in each epoch before the barrier.
        Returns:
            The epoch.
        """
        while True:
            current = await self._enter_epoch(self.require_membership())
            with suppress(EpochEnded):
                if prepare is not None:
                    await call_user_function(prepare)
                if not await self.has_passed(current, INIT):
                    await self.wait_at_barrier(current, INIT, timeout_s)
                    await self._record_healthy(current)
                return current
            # a worker was lost during the wait: enter the next epoch

    async def has_passed(self, worker_epoch: WorkerEpoch, name: str) -> bool:
        """Return whether all workers have passed a barrier.

        Args:
            worker_epoch: The worker's epoch, to which the barrier belongs.
            name: Name of the barrier.
        """
        try:
            return (await coroutine_of(worker_epoch.barrier(name).check)())[0]
        except Closed as error:
            raise await self._explain_wait_error(worker_epoch, error) from error

    # Used by `run_until_complete`

    async def initialize_unless_completed(self, prepare: Callable[[], object] | None) -> bool:
        """Enter the current epoch and wait until all workers have entered it, unless this worker has already completed.

        Args:
            prepare: Called in each epoch before the first barrier.
        Returns:
            False if there is nothing to run: this worker has completed, or all workers have passed the final barrier.
        """
        if self.has_completed:
            return False
        return not await self.has_passed(await self.initialize(None, prepare), FINAL)

    async def wait_at_final_barrier(self) -> None:
        """Wait at the last barrier of the epoch until all workers have finished their function."""
        await self.wait_at_barrier(self.current_epoch(), FINAL, None)

    async def count_execution(self) -> None:
        """Count another execution of the worker's function.

        Raises:
            RestartsExceeded: The function was run too often. The group has failed.
        """
        current = self.current_epoch()
        why = await self._writer.count_execution(current.fence, current.epoch)
        if why:
            await self.fail(why)
            raise RestartsExceeded(f"{why}: group {self.keys.group!r} has failed; find out why workers are lost")

    async def report_failure(self, why: str) -> None:
        """Fail the group, unless another worker was lost before. Errors of the store are logged.

        Args:
            why: The reason why this worker has failed.
        Raises:
            EpochEnded: Another worker was lost before, so the failed work is repeated.
        """
        try:
            current = self.current_epoch()
            await self._writer.fail(current.fence, current.epoch, why)
        except EpochEnded:
            raise
        except LatchworkError as error:
            _log.info("%s: failure not recorded: %s", self.what, error)

    # Callbacks

    async def snapshot(self) -> GroupSnapshot:
        """Read the current state of the group, from which a transaction can be built."""
        return await self._writer.snapshot()

    def _on_epoch(self, entry: Entry) -> None:
        current = self._current
        if current is not None and current.epoch < decode_epoch(entry):
            current.end()

    async def _on_scale_down(self, n: int) -> None:
        current = self._current
        if current is not None:
            await current.break_barriers_above(n)

    def _on_failed(self, error: LatchworkError) -> None:
        """Cancel guarded work and waits, because the group has failed. The worker stays a member until it leaves.

        Args:
            error: The error that says why.
        """
        with self._lock:
            self._failure, current = error, self._current
        if current is not None:
            current.end()

    def _set_exit_error(self, error: LatchworkError) -> None:
        with self._lock:
            if self._exit_error is None:
                self._exit_error = error

    def _on_end(self, error: LatchworkError) -> None:
        self._set_exit_error(error)
        self.lost.set()
        current = self._current
        if current is not None:
            current.end()
